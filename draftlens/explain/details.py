"""Places of the detail that LLaVA-NeXT and LLaVA-OneVision show behind a picture's overview.

They join the tiles of a picture, cut off the padding and end every row with a newline token, so the detail of one
picture is one grid of the picture's own aspect, not several square tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from PIL import Image

Cells = np.ndarray[Any, np.dtype[np.int64]]

FAR = log(1.3)
"""How far a grid's aspect may be from its picture's: grids are small, and roundings large."""


def with_details(
    cells: Cells, runs: Sequence[slice], images: Sequence[Image.Image], inputs: Mapping[str, Any]
) -> tuple[Cells, dict[int, int]]:
    """The cells of a prompt with details as grids, and for each time (t) that is known its picture.

    Args:
        cells: int64 ``[n, 3]``, frame, row and column of each visual token (`models.cells`).
        runs: stretches of visual tokens without text between them.
        images: the pictures of the prompt.
        inputs: what the processor made of them; `image_sizes` among them tells the two families.
    """
    if "image_sizes" not in inputs or len(runs) != len(images):
        return cells, {int(cells[0, 0]): 0} if len(cells) else {}
    placed, known, time = cells.copy(), dict[int, int](), 0
    for number, (run, image) in enumerate(zip(runs, images, strict=True)):
        own = cells[run]
        own[:, 0] += time - own[0, 0]
        known[time] = number
        overview = int((own[:, 0] == time).sum())
        shape = _shape(len(own) - overview, image.width / image.height)
        if own[-1, 0] > time and shape:
            rows, columns = shape
            index = np.arange(rows * (columns + 1))
            own[overview:, 0] = time + 1
            own[overview:, 1] = index // (columns + 1)
            own[overview:, 2] = np.minimum(index % (columns + 1), columns - 1)
            known[time + 1] = number
        placed[run] = own
        time = int(own[-1, 0]) + 1
    return placed, known


def _shape(count: int, aspect: float) -> tuple[int, int] | None:
    """Rows and columns of the grid of this width / height that has `count` tokens, one at each row's end included."""
    grids = [(rows, count // rows - 1) for rows in range(1, count // 2 + 1) if count % rows == 0]
    best = min(grids, key=lambda grid: abs(log(grid[1] / grid[0] / aspect)), default=None)
    return best if best and abs(log(best[1] / best[0] / aspect)) <= FAR else None
