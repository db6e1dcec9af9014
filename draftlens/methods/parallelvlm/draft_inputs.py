"""What a draft worker reads, and which of the two models prunes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from draftlens.decoding.drafter import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.messages import Read, TargetSide


class Reading(Protocol):
    """How the prompts of rows get to the draft worker."""

    @property
    def pruning(self) -> Pruning | None:
        """The pruning that the worker does itself."""
        ...

    @property
    def waits(self) -> bool:
        """Whether the worker needs a message of the target before it reads."""
        ...

    def inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The part of the draft's inputs that the worker needs."""
        ...

    def message(self, answer: int, context: TargetContext) -> Read:
        """The message for which the worker waits.

        Args:
            answer: the session in the worker.
            context: the target's side of the rows, with the readings.
        """
        ...


@dataclass(frozen=True)
class OwnPrompt:
    """The worker's model encodes and prunes its own prompt.

    Args:
        pruning: which visual tokens it reads; None for all.
    """

    pruning: Pruning | None = None

    @property
    def waits(self) -> bool:
        """Pruners that look at the target's prefill wait for it."""
        return self.pruning is not None and bool(self.pruning.pruner.readings)

    def inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """All of them."""
        return inputs

    def message(self, answer: int, context: TargetContext) -> Read:
        """The readings, and where the target has its visual tokens."""
        return Read(answer, side=TargetSide(context.prompt.outline(), context.readings))


@dataclass(frozen=True)
class TargetsPrompt:
    """The worker's model is the target's own: it reads the target's prompt, which this process
    prunes.

    Args:
        own_pruning: which visual tokens it reads.
    """

    own_pruning: Pruning
    pruning: None = None
    waits: bool = True

    def inputs(self, inputs: Mapping[str, Any]) -> None:
        """The target has encoded the prompt."""

    def message(self, answer: int, context: TargetContext) -> Read:
        """The prompt, pruned."""
        return Read(answer, prompt=self.own_pruning.apply(context.prompt, context).prompt)
