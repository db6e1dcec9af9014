"""The target reads crops of regions (HSD, equations 1 to 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from draftlens.core.sequence import Sequence as Row
from draftlens.core.stats import Clock, Stats
from draftlens.decoding.loop import step
from draftlens.documents.asking import Asker, Ending
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.formats.base import region_drafts
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region
from draftlens.request import Request, add_rows, open_call, prepare
from draftlens.streaming import result_of

MARGIN = 5
"""Pixels around a region."""

MOST_ROWS = 16
"""Largest number of crops in a batch."""

MOST_PIXELS = 4_000_000
"""Bound on rows times the pixels of the largest crop, to which smaller ones are padded."""

MOST_ROOM = 8192
"""Bound on rows times the longest answer in a batch, in tokens."""

_ALIKE = 2.0
"""Largest ratio of pixels between two crops of a group."""

_SPARE = 1.15
_SPARE_TOKENS = 12
"""A crop's answer has at most `_SPARE` times the tokens of its draft plus as many as this."""


@dataclass(frozen=True)
class Crop:
    """A region that the target reads by itself.

    Args:
        page: index of its page among those that are answered together.
        place: index of the region on its page.
        drafts: texts that the answer may repeat, in the target's format.
        room: most tokens of the answer.
    """

    page: int
    region: Region
    place: int
    picture: Image.Image
    prompt: str
    drafts: tuple[str, ...]
    room: int

    @property
    def pixels(self) -> int:
        return self.picture.width * self.picture.height


def cropped(page: DraftedPage, region: Region) -> Image.Image:
    """A region with its margin, in the resolution of the page's picture."""
    assert page.picture is not None
    whole = Box(0.0, 0.0, *map(float, page.picture.size))
    box = page.canvas.pixels(region.box).padded(MARGIN).within(whole)
    edges = (int(box.left), int(box.top), round(box.right + 0.5), round(box.bottom + 0.5))
    return page.picture.crop(edges)


def room_for(num_draft_tokens: int) -> int:
    return int(num_draft_tokens * _SPARE) + _SPARE_TOKENS


def groups_of(crops: Sequence[Crop], most_rows: int = MOST_ROWS) -> list[list[Crop]]:
    """Crops of similar size in groups within the bounds on rows, pixels and room; a crop above a
    bound is a group of its own."""
    groups: list[list[Crop]] = []
    for crop in sorted(crops, key=lambda crop: (-crop.pixels, -crop.room)):
        if not groups or not _fits(groups[-1], crop, most_rows):
            groups.append([])
        groups[-1].append(crop)
    return groups


def _fits(group: Sequence[Crop], crop: Crop, most_rows: int) -> bool:
    rows = len(group) + 1
    largest = group[0].pixels
    room = max(crop.room, *(member.room for member in group))
    return (
        rows <= most_rows
        and largest <= _ALIKE * crop.pixels
        and rows * largest <= MOST_PIXELS
        and rows * room <= MOST_ROOM
    )


@dataclass(frozen=True)
class RegionAnswers:
    """Answers by index of the page and place of the region; `stats` are of all crops together."""

    texts: dict[tuple[int, int], str]
    stats: Stats
    num_crops: int

    def of_page(self, index: int) -> dict[int, str]:
        return {place: text for (page, place), text in self.texts.items() if page == index}


def crops_of(pages: Sequence[DraftedPage], asker: Asker) -> list[Crop]:
    """The crops of pages: regions that have a draft."""
    crops = []
    for index, page in enumerate(pages):
        for place, region in enumerate(page.regions):
            drafts = region_drafts(asker.form, region)
            if not drafts:
                continue
            longest = max(asker.count_tokens(draft) for draft in drafts)
            crop = Crop(
                page=index,
                region=region,
                place=place,
                picture=cropped(page, region),
                prompt=asker.profile.prompt_for(region.kind),
                drafts=tuple(drafts),
                room=min(room_for(longest), asker.profile.max_new_tokens),
            )
            crops.append(crop)
    return crops


def read_regions(
    crops: Sequence[Crop], asker: Asker, ending: Ending, most_rows: int = MOST_ROWS
) -> RegionAnswers:
    """Read one or more crops as rows of one ragged batch: rows that have ended leave, and the next
    group joins where it fits. Each crop's room bounds the length of its answer."""
    waiting = groups_of(crops, most_rows)
    batch = _RegionBatch(asker, ending, waiting.pop(0))
    while waiting or batch.running:
        while waiting and batch.fits(waiting[0], most_rows):
            batch.add(waiting.pop(0))
        batch.step()
    return batch.answers()


class _RegionBatch:
    """A session whose rows are crops.

    `scheduling.Scheduler` does not serve here: it reports no counters of a batch, bounds memory
    instead of tokens, and takes requests whose inputs and time limits exist before their turn.
    """

    def __init__(self, asker: Asker, ending: Ending, group: Sequence[Crop]) -> None:
        self._asker = asker
        self._ending = ending
        self._clock = Clock(Stats())
        models = asker.engine.models
        self._call = open_call(models.target, models.draft, self._request(group), self._clock)
        self._rows = list(zip(group, self._call.sequences, strict=True))

    def _request(self, group: Sequence[Crop]) -> Request:
        inputs = self._asker.process(
            [crop.picture for crop in group], [crop.prompt for crop in group]
        )
        seconds = self._ending.seconds
        if seconds is not None:
            seconds = max(seconds - self._clock.stats.e2e, 0.001)
        room = max(crop.room for crop in group)
        ending = Ending(room, seconds, self._ending.stops_loops)
        drafts = [crop.drafts for crop in group]
        return self._asker.request(inputs, drafts, self._asker.region_method, ending)

    @property
    def running(self) -> list[Row]:
        """Rows that go on or have not been read yet."""
        return [row for crop, row in self._rows if not row.finished and len(row.tokens) < crop.room]

    def fits(self, group: Sequence[Crop], most_rows: int) -> bool:
        """Whether a group may join; always where no row is running."""
        running = self.running
        if not running:
            return True
        rows = len(running) + len(group)
        room = max(*(row.remaining for row in running), *(crop.room for crop in group))
        return rows <= most_rows and rows * room <= MOST_ROOM

    def add(self, group: Sequence[Crop]) -> None:
        request = self._request(group)
        session = self._call.session
        prepared = prepare(session.target, request)
        rows = add_rows(session, self._call.plan, prepared, request)
        self._rows += zip(group, rows, strict=True)

    def step(self) -> None:
        """Run one round and remove rows without room, but never the last row."""
        session = self._call.session
        step(session)
        running = self.running
        for row in list(session.sequences):
            if row not in running and len(session.sequences) > 1:
                session.remove(row)

    def answers(self) -> RegionAnswers:
        texts = {
            (crop.page, crop.place): self._asker.text(row.tokens[: crop.room])
            for crop, row in self._rows
        }
        return RegionAnswers(texts, result_of(self._call).stats, len(self._rows))
