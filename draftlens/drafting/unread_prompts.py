"""Prompts that a draft model has not read, because drafting does not pay yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftlens.core.batch import Batch
from draftlens.decoding.drafter import TargetContext

MOST_EVENTS = 64


@dataclass(frozen=True)
class Arrivals:
    """Rows that have joined, and the output of the draft's processor for them."""

    batch: Batch
    inputs: Mapping[str, Any]
    context: TargetContext
    lengths: Sequence[int]  # tokens of each row that the model will read


class UnreadPrompts:
    """How the rows of a batch have joined and left since its beginning."""

    def __init__(self) -> None:
        self._events: list[Arrivals | int] = []
        self._num_rows = 0

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def are_wanted(self) -> bool:
        """Whether the prompts are to be read now, whether or not that pays: later turns begin with
        what is read, explanations draw it, and the list must not grow for ever."""
        return len(self._events) >= MOST_EVENTS or any(
            each.context.prompt.namespace is not None or each.context.observer.wants_choices
            for each in self._arrivals()
        )

    @property
    def length(self) -> int:
        """Tokens of the longest prompt."""
        return max(max(each.lengths) for each in self._arrivals())

    def add(self, arrivals: Arrivals) -> None:
        self._events.append(arrivals)
        self._num_rows += len(arrivals.batch)

    def remove(self, row: int) -> None:
        """Drop a row; the last row takes its place."""
        self._events.append(row)
        self._num_rows -= 1
        if not self._num_rows:
            self._events.clear()

    def _arrivals(self) -> Iterator[Arrivals]:
        return (event for event in self._events if isinstance(event, Arrivals))

    def replay(self, join: Callable[[Arrivals], None], remove: Callable[[int], None]) -> None:
        """Let the rows join and leave in the order in which they did, and forget them."""
        events, self._events, self._num_rows = self._events, [], 0
        for event in events:
            if isinstance(event, Arrivals):
                join(event)
            else:
                remove(event)
