"""Where an answer can be seen: frames, and cells of them.

A frame has 16 cells, four rows of four in reading order, as many as the embedded pair has visual
tokens for a frame of a video.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from draftlens_lab.world.renderer import frame_times
from draftlens_lab.world.scene import PLACES

ROWS = 4  # of cells, and columns
ALL_CELLS = tuple(range(ROWS * ROWS))
STRIP_CELLS = ALL_CELLS[-ROWS:]  # where the strip of a text is
PLACE_CELLS = {
    place: tuple(
        ROWS * (2 * (index // 2) + row) + 2 * (index % 2) + column
        for row in (0, 1)
        for column in (0, 1)
    )
    for index, place in enumerate(PLACES)
}
"""The four cells of each quarter of the picture."""


@dataclass(frozen=True)
class Region:
    """A part of a clip."""

    start: float
    end: float
    cells: tuple[int, ...] = ALL_CELLS


@dataclass(frozen=True)
class Evidence:
    """The frames that an answer depends on, and their cells.

    Args:
        frames: numbers of frames, ascending, from 0.
    """

    frames: tuple[int, ...]
    cells: tuple[tuple[int, ...], ...]

    @property
    def num_cells(self) -> int:
        return sum(len(cells) for cells in self.cells)


def evidence(regions: Iterable[Region], num_frames: int) -> Evidence:
    """The frames and cells of some regions in a clip of ``num_frames`` frames.

    A pair of pictures counts as a clip of two frames.

    Example:
        >>> evidence([Region(0.25, 0.5, (0, 1))], 8)
        Evidence(frames=(2, 3), cells=((0, 1), (0, 1)))
    """
    cells_of: dict[int, set[int]] = {}
    times = frame_times(num_frames)
    for region in regions:
        for frame, time in enumerate(times):
            if region.start <= time < region.end:
                cells_of.setdefault(frame, set()).update(region.cells)
    frames = tuple(sorted(cells_of))
    return Evidence(frames, tuple(tuple(sorted(cells_of[frame])) for frame in frames))
