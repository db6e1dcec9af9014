"""The chart and the page of an answer whose draft reads the prompt in several views."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest
from draftlens_lab.explain import gantt, viewing_method, views_chart, views_page
from draftlens_lab.explain.tracing import PlainRun, Round
from draftlens_lab.explain.view_chart import BAND_TOKENS, MAX_BANDS, bands_of, colour_of, word_of
from draftlens_lab.explain.view_page import COLUMNS, view_rows
from draftlens_lab.explain.view_trace import ViewToken, ViewTrace, has_views, length_alone

from draftlens.core.errors import ConfigError
from draftlens.core.stats import Stats, ViewStats
from draftlens.core.timeline import Span, Timeline
from draftlens.methods.base import to_dict

NAMES = ("whole", "<text>", "silent")
WORDS = ("A", " red", " <ball>", "\n", " moves", ".", "")
HITS = ((True, None), (True, False), (False, False), (False, True), (True, True), (True, False))


def trace_of(tokens: tuple[ViewToken, ...] | None = None) -> ViewTrace:
    """Seven tokens in three rounds, the last of which nobody weighed."""
    if tokens is None:
        rounds = (0, 1, 1, 2, 3, 3)
        known = []
        for number, (word, hits) in enumerate(zip(WORDS, HITS, strict=False)):
            weights = (0.75, 0.25, 0.0)
            drafted = number in (1, 4)
            known.append(ViewToken(word, drafted, rounds[number], weights, (*hits, None)))
        tokens = (*known, ViewToken("", False, 3, None, (None, None, None)))
    stats = Stats(emitted=7, first=1, passes=3, accepted=2, drafted=9, e2e=2.0, ttft=0.5)
    stats.views = {"whole": ViewStats(6, 4, 4.5, 6), "<text>": ViewStats(5, 2, 1.5, 6)}
    spans = (Span("draft", "draft", 0.5, 1.0, 3), Span("target", "verify", 1.0, 2.0, 3))
    return ViewTrace(
        title="clip.mp4",
        prompt="What is it?",
        method=to_dict(viewing_method("tabed")),
        length=2,
        names=NAMES,
        tokens=tokens,
        rounds=(Round(3, 1, 2), Round(3, 0, 1), Round(3, 1, 3)),
        stats=stats,
        plain=PlainRun(4.0, 3.5, True),
        settings={"target": "t"},
        notes=("A note.",),
        timelines={"serial": Timeline(spans, 0.5, 2.0)},
    )


def slow_length(hits: tuple[bool, ...], length: int) -> float:
    """The same count, one draft token at a time."""
    done, passes = 1, 0
    while done < len(hits):
        passes += 1
        for draft_token in range(length + 1):
            if done == len(hits):
                break
            done += 1
            if draft_token == length or not hits[done - 1]:
                break
    return (len(hits) - 1) / passes


@pytest.mark.parametrize("length", [1, 2, 3, 9])
def test_the_length_of_one_view_alone(length: int) -> None:
    for size in (2, 3, 7):
        for hits in product((True, False), repeat=size):
            assert length_alone(hits, length) == slow_length(hits, length)


def test_a_token_that_decides_must_be_known() -> None:
    assert length_alone([None, True, None], 1) == 2.0  # behind a whole chain nobody is asked
    assert length_alone([None, None, True], 1) is None
    assert length_alone([True, False, None], 3) == 1.0  # the last token ends the answer
    assert length_alone([True], 3) is None


def test_figures_of_the_views() -> None:
    trace = trace_of()
    whole, text, silent = trace.figures
    assert (whole.weight, whole.asked, whole.right, whole.alone) == (0.75, 6, 4, 2.0)
    assert (text.asked, text.right) == (5, 2)
    assert (silent.weight, silent.asked, silent.alone) == (None, 0, None)
    rows = view_rows(trace)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert rows[0] == ["whole", "0.75", "6", "4 (67%)", "2.00"]
    assert rows[2] == ["silent", "", "0", "", ""]
    assert rows[-1][-1] == "2.00"
    assert trace.speedup is not None
    assert trace.speedup.end_to_end == 2.0


def test_a_weight_is_an_area_and_a_hit_a_cell() -> None:
    figure = views_chart(trace_of())
    (axes,) = figure.axes
    by_id = {artist.get_gid(): artist for artist in axes.collections}
    right = by_id["right: whole"].get_paths()
    assert [round(path.vertices[0][0] - 0.06) for path in right] == [0, 1, 4, 5]
    assert len(by_id["wrong: <text>"].get_paths()) == 3
    assert len(by_id["accepted"].get_paths()) == 2
    assert not by_id["right: silent"].get_paths()
    heights = by_id["weights: whole"].get_paths()[0].vertices[:, 1]
    assert max(heights) - min(heights) == pytest.approx(0.95 * 0.75, rel=1e-3)
    words = [text.get_text() for text in axes.texts]
    assert words == ["A", "red", "<ball>", "\\n", "moves", ".", ""]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[0] == "whole: 4 of 6 right, 2.00 a pass alone"
    assert legend[2:] == ["silent: not asked", "accepted: 2.00 tokens a pass"]


def test_long_answers_have_bands_of_equal_length() -> None:
    token = ViewToken(" internationalization", True, 1, (0.5, 0.5, 0.0), (True, False, None))
    lengths = [len(band.tokens) for band in bands_of((token,) * 70)]
    assert lengths == [35, 35]
    longest = bands_of((token,) * 5000)
    assert len(longest) == MAX_BANDS
    assert longest[-1].first == (MAX_BANDS - 1) * BAND_TOKENS
    assert word_of(token) == "internati…"
    assert len(views_chart(trace_of((token,) * 70)).axes) == 2
    assert colour_of(0) == colour_of(7)


def test_the_page_shows_every_view_and_loads_nothing() -> None:
    html = views_page(trace_of())
    assert not re.search(r"https?:", html)
    assert "<ball>" not in html
    assert html.count("data:image/png") == 4
    data = json.loads(html.split('id="trace">')[1].split("</script>")[0])
    assert data == json.loads(json.dumps(trace_of().to_dict()))
    answer = html.split('<div class="answer seen">')[1].split("</section>")[0]
    words = re.findall(r'<span[^>]*title="([^"]*)">([^<]*)((?:<i [^>]*></i>)*)</span>', answer)
    assert [word for _, word, _ in words] == ["A", "red", "&lt;ball&gt;", "moves", "."]
    assert (
        words[1][0] == "round 1, whole 0.75 right, &lt;text&gt; 0.25 wrong, silent 0.00 not asked"
    )
    assert words[0][0].startswith("from prefill, ")
    assert [strips.count("transparent") for _, _, strips in words] == [2, 2, 3, 1, 2]
    assert answer.count('class="drafted"') == 2
    assert "A note." in html
    assert "right most often" in html


def test_without_matplotlib_there_is_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gantt, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs matplotlib"):
        views_chart(trace_of())
    html = views_page(trace_of())
    assert "data:image/png" not in html
    assert "needs matplotlib" in html


def test_which_methods_have_views() -> None:
    assert has_views("tabed")
    assert not has_views("specvlm")
    assert to_dict(viewing_method({"method": "tabed", "tree": "auto"}))["tree"] == "auto"
    assert to_dict(viewing_method("tabed"))["rest"] is False
    with pytest.raises(ConfigError, match="'specvlm' reads its prompt in one way only"):
        viewing_method("specvlm")
