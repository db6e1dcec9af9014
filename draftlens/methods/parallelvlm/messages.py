"""Messages between the target's side and the draft worker, and the link that carries them.

Only the target verifies. It sends the tokens of the answer; the worker compares them with its own
and rolls back what differs. Messages of one direction arrive in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from draftlens.core.errors import DraftlensError
from draftlens.core.prefill_readings import PrefillFeatures
from draftlens.core.sequence import Batch
from draftlens.core.timeline import Span
from draftlens.drafting.pruning import Pruning
from draftlens.models.prompt import Prompt
from draftlens.passes import BY_MODULES, PassEngine
from draftlens.pruning import Choice


@dataclass(frozen=True)
class Open:
    """A session begins."""

    answer: int  # number of the session in the worker, in every further message
    vocab_size: int  # ids that the target has
    pruning: Pruning | None  # None: the draft reads all visual tokens
    shows_choices: bool  # whether the choices of the pruner are sent back
    engine: PassEngine = BY_MODULES  # computes the passes of the draft


@dataclass(frozen=True)
class Arrive:
    """Rows that the target is about to read."""

    answer: int
    rows: tuple[int, ...]  # number of each row in the session
    batch: Batch  # without any token yet
    # output of the draft's processor; None if a `Read` brings the prompt
    inputs: Mapping[str, Any] | None
    room: int  # most tokens that an answer may gain
    limit: int  # length up to which the answers may be drafted before the first `Decide`
    waits: bool  # whether the prompt may only be read after a `Read`


@dataclass(frozen=True)
class TargetSide:
    """What a pruner needs of the target."""

    prompt: Prompt  # embeddings and further tensors of the language model may be missing
    readings: PrefillFeatures = field(default_factory=PrefillFeatures)  # of the target's prefill


@dataclass(frozen=True)
class Read:
    """The rows of a waiting `Arrive` may be read."""

    answer: int
    rows: tuple[int, ...]  # of the `Arrive`
    side: TargetSide | None = None  # None if `prompt` is given
    prompt: Prompt | None = None  # pruned already; None if the draft prunes its own


@dataclass(frozen=True)
class Decision:
    """What one row gained in one round."""

    row: int
    start: int  # index in the answer of the first of `tokens`
    tokens: tuple[int, ...]  # emitted ids; the last is the root of the next tree
    limit: int  # length up to which the answer may be drafted from now on
    finished: bool = False


@dataclass(frozen=True)
class Decide:
    """The verdicts of one round."""

    answer: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Leave:
    """A row leaves the session; before its `Read` all rows of its `Arrive` do."""

    answer: int
    row: int


@dataclass(frozen=True)
class Close:
    """The session has ended."""

    answer: int


ToDraft = Open | Arrive | Read | Decide | Leave | Close


@dataclass(frozen=True)
class Joined:
    """The draft has read the prompts of some rows."""

    answer: int
    visual: int  # visual tokens before pruning
    kept: int  # visual tokens after pruning
    cache_bytes: int  # of the draft's keys and values
    choices: tuple[Choice, ...]  # of the pruner, if requested
    spans: tuple[Span, ...]  # how the worker spent its time


@dataclass(frozen=True)
class DraftToken:
    """One draft token."""

    row: int
    epoch: int  # how often the row's draft tokens have been replaced
    position: int  # index in the answer
    token: int
    # float32 ``[V]`` on the CPU that it was drawn from; None without rejection sampling
    probs: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class DraftTokens:
    """The tokens of one forward of the draft."""

    answer: int
    tokens: tuple[DraftToken, ...]  # at most one for each row
    cache_bytes: int  # of the draft's keys and values
    span: Span  # the time that the forward took


@dataclass(frozen=True)
class Failed:
    """The draft cannot follow the session."""

    answer: int
    error: Exception


FromDraft = Joined | DraftTokens | Failed


class WorkerLostError(DraftlensError):
    """The draft worker has ended, hangs or never started. The target goes on without it."""


class UnsendableError(WorkerLostError):
    """A message cannot be sent to another process. Nothing was sent, and the worker goes on."""


class Link(Protocol):
    """Connects sessions with a draft worker."""

    cores: int  # that the worker keeps busy and the target does not use

    @property
    def processes(self) -> Sequence[int]:
        """The ids of other processes that work for the worker."""
        ...

    def wait_until_ready(self) -> None:
        """Wait until the worker can draft, or is lost."""
        ...

    def new_answer(self) -> int:
        """A number for a session, unique in the worker.

        Raises:
            WorkerLostError: the worker cannot be reached.
        """
        ...

    def send(self, message: ToDraft) -> None:
        """Send a message.

        Raises:
            WorkerLostError: the worker cannot be reached.
            TypeError, AttributeError, pickle.PicklingError: the message cannot be sent to another
                process. Nothing was sent.
        """
        ...

    def forget(self, answer: int) -> None:
        """Drop further messages for a session that has ended."""
        ...

    def receive(self, answer: int, timeout: float) -> list[FromDraft]:
        """The messages for a session, in order; waits `timeout` seconds at most for the first.

        Raises:
            WorkerLostError: the worker cannot be reached.
        """
        ...
