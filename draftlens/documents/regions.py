"""The first stage: the target reads crops of regions (HSD, equations 1 to 3). Its answers are
drafts of the page's, or joined to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from draftlens.core.references import references_of
from draftlens.core.sequence import Sequence as Row
from draftlens.core.stats import Clock, Stats
from draftlens.documents.asking import Asker, Ending
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.formats.base import region_drafts
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region
from draftlens.streaming import Stream

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
    """Read one or more crops as rows of one ragged batch: finished rows leave, and the next group
    joins where it fits. Each crop's room bounds the length of its answer."""
    return _RegionBatch(groups_of(crops, most_rows), asker, ending, most_rows).run()


class _RegionBatch:
    def __init__(
        self, groups: list[list[Crop]], asker: Asker, ending: Ending, most_rows: int
    ) -> None:
        self._waiting = groups
        self._asker = asker
        self._ending = ending
        self._most_rows = most_rows
        self._clock = Clock(Stats())
        self._crops: list[Crop] = []
        self._tokens: list[list[int]] = []

    def run(self) -> RegionAnswers:
        stream = self._open(self._waiting.pop(0))
        for chunk in stream:
            self._tokens[chunk.row] += chunk.tokens
            if chunk.tokens:
                self._retire(stream)
                self._admit(stream)
        texts = {}
        for crop, tokens in zip(self._crops, self._tokens, strict=True):
            texts[crop.page, crop.place] = self._asker.text(tokens[: crop.room])
        return RegionAnswers(texts, stream.result.stats, len(self._crops))

    def _open(self, group: list[Crop]) -> Stream:
        asker = self._asker
        inputs = asker.process([crop.picture for crop in group], [crop.prompt for crop in group])
        drafts = [crop.drafts for crop in group]
        self._join(group)
        ending = self._ending_of(group)
        return asker.answer(inputs, drafts, asker.region_method, ending, self._clock)

    def _join(self, group: list[Crop]) -> None:
        self._crops += group
        self._tokens += [[] for _ in group]

    def _ending_of(self, group: Sequence[Crop]) -> Ending:
        seconds = self._ending.seconds
        if seconds is not None:
            seconds = max(seconds - self._clock.stats.e2e, 0.001)
        room = max(crop.room for crop in group)
        return Ending(room, seconds, self._ending.stops_loops)

    def _retire(self, stream: Stream) -> None:
        """Remove finished rows and rows without room, but never the last row."""
        session = stream.session
        for sequence in list(session.sequences):
            if self._has_ended(sequence) and len(session.sequences) > 1:
                session.remove(sequence)

    def _has_ended(self, row: Row) -> bool:
        is_full = len(self._tokens[row.number]) >= self._crops[row.number].room
        return row.finished or is_full

    def _admit(self, stream: Stream) -> None:
        """Add groups while they fit, and at least one where no row is running."""
        while self._waiting and self._has_room(stream, self._waiting[0]):
            self._add(stream, self._waiting.pop(0))

    def _has_room(self, stream: Stream, group: Sequence[Crop]) -> bool:
        running = [row for row in stream.session.sequences if not row.finished]
        if not running:
            return stream.session.done
        rows = len(running) + len(group)
        room = max(*(row.remaining for row in running), *(crop.room for crop in group))
        return rows <= self._most_rows and rows * room <= MOST_ROOM

    def _add(self, stream: Stream, group: list[Crop]) -> None:
        asker = self._asker
        inputs = asker.process([crop.picture for crop in group], [crop.prompt for crop in group])
        options = self._ending_of(group).options(inputs.target["input_ids"].shape[1])
        prepared = asker.engine.target.backbone.prepare(inputs.target, **options)
        drafts = [list(crop.drafts) for crop in group]
        references = references_of(drafts, len(group), asker.tokenizer)
        stream.session.add(prepared, [0] * len(group), {}, {"references": references})
        self._join(group)
