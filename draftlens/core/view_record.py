"""Record of what each view of a draft would propose for the tokens of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weighed:
    """One token of an answer and the views' proposals in its place.

    Args:
        row: of the batch, at the time.
        index: of the token in its answer.
        weights: of each view when the token was drafted; 0 for views that were not evaluated.
        hits: whether each view proposes the token; None for views that were not evaluated.
    """

    row: int
    index: int
    token: int
    views: tuple[str, ...]
    weights: tuple[float, ...]
    hits: tuple[bool | None, ...]
