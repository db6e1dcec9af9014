"""The hooks by which others follow an answer while it is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from draftlens.core.prefill_readings import NO_READINGS, ReadingSpec
from draftlens.core.view_record import Weighed
from draftlens.pruning import Choice


def ignore(*_: Any) -> None:
    """The default of hooks."""


def no_phase(name: str) -> AbstractContextManager[None]:
    """Measures nothing."""
    return nullcontext()


@dataclass(frozen=True)
class Observer:
    """What follows an answer. A hook that is not given does nothing.

    Args:
        readings: readings of the target's prefill that are taken besides those of the method.
        on_choice: receives each choice of a pruner.
        on_prune: receives the number of visual tokens of a prompt before and after pruning.
        on_weights: receives what each token shows about the views of a draft.
        on_reference: receives, for each accepted draft token, its row in the call and the index of
            the reference that it comes from; -1 for the prompt and the answer itself.
        phase: measures a stretch of time: ``with observer.phase("prune"): ...``. A session replaces
            it by that of its clock.
    """

    readings: ReadingSpec = NO_READINGS
    on_choice: Callable[[Choice], None] = ignore
    on_prune: Callable[[int, int], None] = ignore
    on_weights: Callable[[Weighed], None] = ignore
    on_reference: Callable[[int, int], None] = ignore
    phase: Callable[[str], AbstractContextManager[None]] = no_phase

    @property
    def wants_choices(self) -> bool:
        """Whether the choices of a pruner are used: sending them between processes takes time."""
        return self.on_choice is not ignore


NO_OBSERVER = Observer()
