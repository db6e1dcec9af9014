"""Visual tokens of films, as pruners receive them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from draftlens.pruning import Visual

RASTERS: Mapping[str, list[tuple[int, int]]] = {
    "nothing": [],
    "a token": [(1, 1)],
    "a square": [(6, 6)],
    "a column": [(9, 1)],
    "a page": [(5, 11)],
    "a film": [(4, 4)] * 6,
    "a wide film": [(2, 7)] * 5,
    "dots": [(1, 1)] * 8,
    "pictures of all sizes": [(3, 5), (1, 1), (7, 2), (4, 4), (1, 6)],
}
"""Heights and widths of the frames."""


def film(rasters: list[tuple[int, int]], seed: int = 0) -> Visual:
    """Frames of these sizes with random features and scores."""
    cells = [
        (t, h, w)
        for t, (high, wide) in enumerate(rasters)
        for h in range(high)
        for w in range(wide)
    ]
    generator = torch.Generator().manual_seed(seed)
    count = len(cells)
    return Visual(
        torch.tensor(cells, dtype=torch.long).view(count, 3),
        torch.randn(count, 8, generator=generator),
        torch.rand(count, generator=generator) ** 6,  # a long tail
    )


def newlines(visual: Visual) -> Visual:
    """The same with two tokens more that have the cell of the last one."""
    assert visual.scores is not None
    cells, features, scores = (
        torch.cat([part, part[-1:], part[-1:]])
        for part in (visual.cells, visual.features, visual.scores)
    )
    return Visual(cells, features, scores)


def frames_of(visual: Visual, kept: Tensor) -> Counter[int]:
    """Kept tokens by frame."""
    return Counter(visual.cells[kept, 0].tolist())


def check_evenly_spaced(places: list[int], count: int) -> None:
    """Gaps differ by one at most, and half a gap is left at either end."""
    if not places:
        return
    gaps = [other - one for one, other in pairwise(places)]
    assert not gaps or max(gaps) - min(gaps) <= 1
    half = count / len(places) / 2
    assert abs(places[0] - half) <= 1
    assert abs(count - 1 - places[-1] - half) <= 1.5
