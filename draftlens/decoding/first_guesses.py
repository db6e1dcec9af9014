"""First guesses: the draft guesses the beginning of an answer before the target reads the prompt,
and the target's prefill checks the guesses.

That saves about one round of each answer and delays its first token by the time that the draft
takes.
"""

from __future__ import annotations

import weakref
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftlens.core.batch import Batch
from draftlens.core.locks import ForkLock
from draftlens.core.proposal import DraftTree
from draftlens.decoding.drafter import TargetContext

MAX_DELAY = 0.02
"""Share of the time to the first token by which automatic first guesses may delay it."""
NUM_TIMINGS = 8
"""Number of latest timings of each size that count."""


class FirstGuesser(Protocol):
    """A drafter that can guess before the target has read the prompt."""

    def guess_first(
        self, batch: Batch, inputs: Mapping[str, Any], context: TargetContext, number: int
    ) -> DraftTree:
        """Read the prompts of rows that will join, and guess the first tokens of their answers.

        Args:
            batch: the rows, without any tokens.
            inputs: the output of the draft's processor for them.
            context: the target's side of them. Its cache is empty, and there are no readings.
            number: most tokens of a chain, at least 1.

        Returns:
            A chain for each row. If no row has any, the rows join by `Drafter.begin`.
        """
        ...

    def join_first(self, batch: Batch, context: TargetContext) -> None:
        """Let the rows of the last `guess_first` join, instead of `Drafter.begin`.

        Args:
            batch: these rows, with the tokens that prefill yielded. Between the two calls the
                drafter receives no other call.
            context: the target's side of them, as for `Drafter.begin`.
        """
        ...


@dataclass(frozen=True)
class Timing:
    """What the beginning of an answer took.

    Args:
        length: tokens of the longest prompt.
        target: seconds of the target's vision and prefill.
        draft: seconds in which the draft reads the prompt and drafts a chain.
    """

    length: int
    target: float
    draft: float


def delay(timing: Timing, length: int, number: int) -> float:
    """The share of the time to the first token by which guesses delay it, by one timing.

    The estimate is rather too high: what the draft takes is not expected to shrink with the prompt.

    Args:
        timing: of an earlier answer.
        length: tokens of the longest prompt.
        number: guesses of each row, which the target's prefill reads too.
    """
    scale = length / timing.length
    target = timing.target * scale
    draft = timing.draft * max(1.0, scale)
    return draft / target + number / length if target > 0 else float("inf")


def are_free(timings: Iterable[Timing], length: int, number: int) -> bool:
    """Whether no timing predicts a delay above `MAX_DELAY`; false if there are no timings."""
    delays = [delay(timing, length, number) for timing in timings]
    return bool(delays) and max(delays) <= MAX_DELAY


class Delays:
    """Timings of the answers of a target with one draft, by number of rows and power of two of the
    prompt's length. Answers that are generated at the same time may share them."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._timings: defaultdict[tuple[int, int], deque[Timing]]
        self._timings = defaultdict(lambda: deque(maxlen=NUM_TIMINGS))
        self._started: set[tuple[int, int]] = set()

    def record(self, num_rows: int, timing: Timing) -> None:
        """Record a timing. The first one of each size does not count, since it includes the time to
        allocate memory and to choose kernels."""
        key = (num_rows, timing.length.bit_length())
        with self._lock:
            if key in self._started:
                self._timings[key].append(timing)
            self._started.add(key)

    def of(self, num_rows: int, length: int) -> tuple[Timing, ...]:
        """The timings of such prompts."""
        with self._lock:
            return tuple(self._timings.get((num_rows, length.bit_length()), ()))


# By target model, draft model and settings; both models are weak keys, as those of tuners.
_DELAYS: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, dict[Hashable, Delays]]]
_DELAYS = weakref.WeakKeyDictionary()


def delays_of(target_model: Any, draft_model: Any, settings: Hashable) -> Delays:
    """The delays of a target and its draft, which keep the timings of earlier answers.

    Args:
        target_model, draft_model: only weakly referenced.
        settings: all other values on which the draft's time depends.
    """
    by_draft = _DELAYS.setdefault(target_model, weakref.WeakKeyDictionary())
    return by_draft.setdefault(draft_model, {}).setdefault(settings, Delays())


@dataclass(frozen=True)
class FirstGuesses:
    """How a session guesses first tokens.

    Args:
        guesser: the session's drafter.
        most: length of the chain.
        delays: timings of earlier answers, by which it is decided whether to guess; None to guess
            always.
        devices: where target and draft run.
    """

    guesser: FirstGuesser
    most: int
    delays: Delays | None = None
    devices: tuple[torch.device, ...] = ()

    def number(self, batch: Batch, length: int, alone: bool = True) -> int:
        """How many first tokens of each row are guessed; 0 for none.

        Args:
            batch: the rows.
            length: tokens of the longest prompt.
            alone: whether no other rows wait for the drafter, which would be read before these.
        """
        if self.delays is None:
            return self.most
        if batch.rejects or not alone:  # rejection: the tokens would depend on measured times
            return 0
        is_free = are_free(self.delays.of(len(batch), length), length, self.most)
        return self.most if is_free else 0

    def record(
        self, num_rows: int, length: int, phases: Mapping[str, float], forwards: int
    ) -> None:
        """Record the timing of an answer behind its first proposal, if timings decide.

        Args:
            num_rows: rows of the batch.
            length: tokens of the longest prompt.
            phases: seconds by phase so far (`Stats.phases`).
            forwards: decode forwards of the draft so far; without any nothing is known.
        """
        if self.delays is None or not forwards:
            return
        chain = self.most * phases["draft"] / forwards
        timing = Timing(
            length=length,
            target=phases["vision"] + phases["target_prefill"],
            draft=phases["prune"] + phases["draft_prefill"] + chain,
        )
        self.delays.record(num_rows, timing)

    def settle(self) -> None:
        """Wait until the devices have done their work, if timings are recorded."""
        for device in self.devices:
            if self.delays is not None and device.type != "cpu":
                torch.accelerator.synchronize(device)
