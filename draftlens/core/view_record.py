"""What the tokens of an answer show about the views of a draft that reads the prompt in several
ways."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weighed:
    """One token of an answer and what the views would have guessed in its place.

    Args:
        row: of the batch, at the time.
        index: of the token in its answer.
        token: the target's.
        views: names of the views.
        weights: of each view when the token was guessed; 0 for views that were not asked.
        hits: whether each view would have guessed the token; None for views that were not asked.
    """

    row: int
    index: int
    token: int
    views: tuple[str, ...]
    weights: tuple[float, ...]
    hits: tuple[bool | None, ...]
