"""What a draft worker reads, and which of the two models prunes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from draftlens.decoding.plan import TargetContext
from draftlens.drafting.pruning import Pruning
from draftlens.methods.parallelvlm.messages import Read, TargetSide


@dataclass(frozen=True)
class OwnPrompt:
    """The worker's model encodes its own prompt and prunes it, if `pruning` is given. `readable`
    selects what of the draft's inputs the model takes; None for all of it."""

    pruning: Pruning | None = None
    readable: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def waits(self) -> bool:
        """Pruners with features of the target's prefill wait for it."""
        return self.pruning is not None and bool(self.pruning.pruner.readings)

    def inputs(self, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of the draft's inputs that the worker needs."""
        return inputs if self.readable is None else self.readable(inputs)

    def message(self, answer: int, context: TargetContext) -> Read:
        """The message for which the worker waits; `answer` is the session in the worker."""
        return Read(answer, side=TargetSide(context.prompt.outline(), context.readings))


@dataclass(frozen=True)
class TargetsPrompt:
    """The worker drafts with the target's own model: it reads the target's prompt, pruned here."""

    own_pruning: Pruning
    pruning: None = None
    waits: bool = True

    def inputs(self, inputs: Mapping[str, Any]) -> None:
        """The target has encoded the prompt."""

    def message(self, answer: int, context: TargetContext) -> Read:
        return Read(answer, prompt=self.own_pruning.apply(context.prompt, context).prompt)


DraftReading = OwnPrompt | TargetsPrompt
"""How the prompts of rows get to the draft worker; see `OwnPrompt`."""
