"""Hooks that follow an answer while it is made, and the statistics that they fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from draftlens.core.prefill_readings import NO_FEATURES, FeatureSpec
from draftlens.core.sequence import Emission, Sequence
from draftlens.core.stats import Clock, ViewStats
from draftlens.core.timeline import DISCARDED
from draftlens.core.tree import DraftTree, Verdict
from draftlens.pruning import Choice


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


def ignore(*_: Any) -> None:
    """The default of hooks."""


def no_phase(name: str) -> AbstractContextManager[None]:
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

    readings: FeatureSpec = NO_FEATURES
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


class StatsRecorder:
    """Counts the tokens, forwards and observations of a session; `caller` receives these, too."""

    def __init__(self, clock: Clock, caller: Observer) -> None:
        self.clock = clock
        self.stats = clock.stats
        # what drafters get in place of `caller`
        self.observer = replace(
            caller,
            on_prune=self._on_prune,
            on_weights=self._on_weights,
            on_reference=self._on_reference,
            phase=clock.phase,
        )
        self._caller = caller
        self._num_checked = 0

    def prefilled(self, emissions: Seq[Emission]) -> None:
        """Count the first tokens of rows, which no pass verified."""
        first = sum(emission.count for emission in emissions)
        self.stats.first += first
        self.stats.emitted += first
        if self.stats.ttft == 0:
            self.clock.mark_first()
        self.clock.mark_last()

    def checked(self, sequences: Seq[Sequence], tree: DraftTree) -> None:
        """Count a pass of the target and the draft tokens in it."""
        self.stats.target_forwards += 1
        drafted = 0
        for sequence, topology in zip(sequences, tree.topologies, strict=True):
            if not sequence.finished:
                self.stats.passes += 1
                sequence.drafted += len(topology)
                drafted += len(topology)
        self.stats.drafted += drafted
        self._num_checked = drafted
        self.clock.annotate("draft", tokens=drafted)
        self.clock.annotate("verify", tokens=drafted)

    def accepted(self, verdict: Verdict, emissions: Seq[Emission]) -> None:
        """Count the tokens of a pass, as far as they were emitted."""
        total = 0
        for path, emission in zip(verdict.paths, emissions, strict=True):
            self.stats.emitted += emission.count
            if emission.count:
                accepted = min(emission.count, len(path))
                total += accepted
                self.stats.accepted_by_depth[accepted] += 1
        self.stats.accepted += total
        for tolerated, emission in zip(verdict.tolerated, emissions, strict=False):
            self.stats.tolerated += sum(tolerated[: emission.count])
        self.clock.annotate("verify", accepted=total)
        if self._num_checked and not total:
            self.clock.annotate("draft", outcome=DISCARDED)

    def _on_prune(self, visual: int, kept: int) -> None:
        self.stats.visual += visual
        self.stats.kept += kept
        self._caller.on_prune(visual, kept)

    def _on_weights(self, weighed: Weighed) -> None:
        for name, weight, hit in zip(weighed.views, weighed.weights, weighed.hits, strict=True):
            self.stats.views.setdefault(name, ViewStats()).count(weight, hit)
        self._caller.on_weights(weighed)

    def _on_reference(self, row: int, reference: int) -> None:
        self.stats.accepted_by_reference.setdefault(row, Counter())[reference] += 1
        self._caller.on_reference(row, reference)
