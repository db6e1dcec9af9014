"""Crops of regions, in groups that are answered together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.values import Region

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
