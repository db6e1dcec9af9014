"""Record of what each view of a draft would propose for the tokens of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Weighed:
    """One token of an answer and the views' proposals in its place.

    `row` is the row in its call, `index` counts in the answer. `weights` (when the token
    was drafted) are 0 and `hits` None for views that were not evaluated.
    """

    row: int
    index: int
    token: int
    views: tuple[str, ...]
    weights: tuple[float, ...]
    hits: tuple[bool | None, ...]
