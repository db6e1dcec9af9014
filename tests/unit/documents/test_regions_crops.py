"""The parts of parsing that need no model."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from draftlens_lab.two_stages import TwoStageSettings
from PIL import Image

from draftlens import ConfigError, ParseSettings
from draftlens.core.repetition import LONGEST_PERIOD, LoopCriterion
from draftlens.core.stats import Stats
from draftlens.documents.drafting import DraftedPage, one_ahead
from draftlens.documents.parser import shares_of, spans_of
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.regions import MOST_PIXELS, MOST_ROOM, Crop, cropped, groups_of
from draftlens.documents.run import ReadingPayoff


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"stages": "both"}, "stages must be one of page, regions"),
        ({"stages": "regions+page"}, "stages must be one of page, regions"),
        ({"on_loop": "go"}, "on_loop must be one of stop, ignore"),
        ({"tolerance": 0}, "tolerance must be a number above 0"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"dpi": -1.0}, "dpi must be a positive number"),
        ({"page_timeout": 0.0}, "page_timeout must be a positive number"),
        ({"pages": "x"}, "pages are numbers"),
        ({"pages": 5}, "pages must be numbers from 1"),
        ({"dpi": []}, "dpi must be a positive number"),
        ({"password": 5}, "password must be a text"),
        ({"verify": [1, 2]}, "verify must be true or false"),
        ({"on_loop": [[1]] * 999}, r"on_loop must be one of stop, ignore, not .{0,60}$"),
        ({"form": "rtf"}, "unknown format 'rtf'; known: doclang, doctags, grounding, "),
        ({"method": "plain", "stages": "regions"}, "no use for crops"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ParseSettings(**options)


def test_a_bad_tolerance_of_crops_is_refused() -> None:
    with pytest.raises(ConfigError, match="region_tolerance must be a number"):
        TwoStageSettings(region_tolerance="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tolerance must be a number above 0"):
        TwoStageSettings(tolerance=0)


def test_settings_of_answers_leave_out_what_changes_no_answer() -> None:
    same = ParseSettings(pages="1", verify=True, page_timeout=3, password="x").of_answers()
    assert same == ParseSettings().of_answers()
    assert same != ParseSettings(tolerance=0.5).of_answers()


def read_page(read: float, rounds: float, tokens: int = 100) -> Stats:
    """Figures of a page with half a second of prefill and a tenth of layout."""
    stats = Stats(emitted=tokens)
    phases = {"layout": 0.1, "read": read, "target_prefill": 0.5, "verify": rounds}
    stats.phases.update(phases)
    return stats


@pytest.mark.parametrize(
    ("read", "rounds", "beside", "after"),
    [
        (0.2, 0.5, True, True),  # plain decoding takes a second
        (0.2, 0.9, True, False),  # 0.3 + 1.4 against 0.1 + 1.5
        (1.6, 0.2, False, False),
        (1.3, 0.2, True, False),
    ],
)
def test_reading_pays_if_it_saves_more_than_it_takes(
    read: float, rounds: float, beside: bool, after: bool
) -> None:
    for ahead, pays in ((True, beside), (False, after)):
        payoff = ReadingPayoff(0.01, ahead)
        assert payoff.pays(read_page(read, rounds))
        assert payoff.pays(read_page(read, rounds)) is pays


def test_one_losing_page_among_others_does_not_end_reading() -> None:
    payoff = ReadingPayoff(0.01, ahead=False)
    for _ in range(3):
        assert payoff.pays(read_page(5.0, 0.2))
        assert payoff.pays(read_page(0.1, 0.2))
    assert payoff.pays(read_page(5.0, 0.2))
    assert not payoff.pays(read_page(5.0, 0.2))


def slow_loop(tokens: list[int], repeats: int, least: int) -> bool:
    """Whether a pattern of any allowed length, written often enough, is the end."""
    for period in range(1, LONGEST_PERIOD + 1):
        count = max(repeats, -(-least // period))
        end = (tokens[-period:] * count)[-max(period * repeats, least) :]
        if len(tokens) >= len(end) and tokens[-len(end) :] == end:
            return True
    return False


def test_loops_against_writing_them_out() -> None:
    rng = random.Random(0)
    criterion = LoopCriterion(prompt_length=4, repeats=3, least_tokens=12)
    found = []
    for _ in range(300):
        pattern = [rng.randrange(3) for _ in range(rng.randrange(1, 8))]
        head = [rng.randrange(3) for _ in range(rng.randrange(6))]
        tokens = head + (pattern * 20)[: rng.randrange(1, 30)]
        ids = torch.tensor([[9, 9, 9, 9, *tokens]])
        ends = bool(criterion(ids, None))
        assert ends == slow_loop(tokens, 3, 12), tokens
        found.append(ends)
    assert 50 < sum(found) < 250


def test_placeholders_of_pictures_are_no_loop() -> None:
    ids = torch.full((2, 700), 5)
    ids[1, 600:] = torch.arange(100)
    assert LoopCriterion(500)(ids, None).tolist() == [True, False]
    assert LoopCriterion(600)(ids, None).tolist() == [False, False]
    with pytest.raises(ConfigError, match="at least 2 repetitions"):
        LoopCriterion(0, repeats=1)


def crop(side: int, room: int, place: int) -> Crop:
    picture = Image.new("RGB", (side, side))
    return Crop(0, Region(Box(0, 0, 1, 1), "text"), place, picture, "", (), room)


def test_groups_hold_every_crop_once_and_keep_their_bounds() -> None:
    rng = random.Random(1)
    crops = [crop(rng.choice([40, 60, 300, 900]), rng.randrange(20, 2500), n) for n in range(80)]
    groups = groups_of(crops, most_rows=8)
    assert sorted(c.place for group in groups for c in group) == list(range(80))
    for group in groups:
        pixels = [c.pixels for c in group]
        assert len(group) <= 8
        assert max(pixels) <= 2 * min(pixels)
        assert len(group) == 1 or len(group) * max(pixels) <= MOST_PIXELS
        assert len(group) == 1 or len(group) * max(c.room for c in group) <= MOST_ROOM
    assert len(groups) < 40


def test_crops_have_a_margin_within_the_page() -> None:
    picture = Image.new("RGB", (200, 100))
    page = DraftedPage("a", 1, Box(0, 0, 400, 200), picture)
    assert cropped(page, Region(Box(100, 100, 200, 120), "text")).size == (61, 21)
    assert cropped(page, Region(Box(0, 0, 400, 200), "text")).size == (200, 100)


def region(source: str, *lines: str) -> Region:
    return Region(Box(0, 0, 1, 1), "text", 0, (RegionText(source, lines),))


def test_spans_of_regions() -> None:
    regions = [
        region("reader", "The mill stands by", "the river."),
        region("reader", "nothing of", "the kind"),
        region("other", "The mill stands in", "the valley."),
    ]
    answer = "# Title\n\nThe mill stands by the river.\n\nThe mill stands in the valley."
    spans = spans_of(regions, answer)
    assert [answer[slice(*span)] if span else None for span in spans] == [
        "The mill stands by the river.",
        None,
        "The mill stands in the valley.",
    ]


def test_shares_of_sources() -> None:
    """Several references may come from one source."""
    sources = ["regions", "reader", "reader", "other"]
    assert shares_of(20, {0: 4, 1: 2, 2: 3, -1: 1}, sources) == {
        "answer": 0.05,
        "reader": 0.25,
        "regions": 0.2,
        "target": 0.5,
    }
    assert shares_of(0, {}, sources) == {}


def test_the_next_item_is_made_while_this_one_is_worked_on() -> None:
    made: list[int] = []
    second = threading.Event()

    def items() -> Iterator[int]:
        for number in range(4):
            made.append(number)
            if number == 1:
                second.set()
            yield number

    ahead = one_ahead(items())
    assert next(ahead) == 0
    assert second.wait(10)
    assert list(ahead) == [1, 2, 3]
    assert made == [0, 1, 2, 3]


def test_an_error_comes_in_its_turn() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("second")

    ahead = one_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="second"):
        next(ahead)
