"""Messages between the target's side and the draft worker.

Only the target judges. It sends the tokens of the answer; the worker compares them with its own and
rolls back what differs. Messages of one direction arrive in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from draftlens.core.batch import Batch
from draftlens.core.prefill_readings import Readings
from draftlens.core.timeline import Span
from draftlens.drafting.pruning import Pruning
from draftlens.models.prompt import Prompt
from draftlens.pruning import Choice


@dataclass(frozen=True)
class Open:
    """A session begins.

    Args:
        answer: number of the session in the worker; every further message carries it.
        vocab_size: ids that the target has.
        pruning: which visual tokens the draft reads; None for all.
        shows_choices: whether the choices of the pruner are sent back.
    """

    answer: int
    vocab_size: int
    pruning: Pruning | None
    shows_choices: bool


@dataclass(frozen=True)
class Arrive:
    """Rows that the target is about to read.

    Args:
        answer: the session.
        rows: number of each row in the session.
        batch: the rows, without any token yet.
        inputs: the output of the draft's processor; None if a `Read` brings the prompt.
        room: most tokens that an answer may gain.
        limit: length up to which the answers may be drafted before the first `Decide`.
        waits: whether the prompt may only be read after a `Read`.
    """

    answer: int
    rows: tuple[int, ...]
    batch: Batch
    inputs: Mapping[str, Any] | None
    room: int
    limit: int
    waits: bool


@dataclass(frozen=True)
class TargetSide:
    """What a pruner needs of the target.

    Args:
        prompt: as the target's language model read it; its embeddings and further tensors of the
            language model may be missing.
        readings: of the target's prefill.
    """

    prompt: Prompt
    readings: Readings = field(default_factory=Readings)


@dataclass(frozen=True)
class Read:
    """The rows of the oldest `Arrive` that waits may be read.

    Args:
        answer: the session.
        side: the target's side of the rows; None if `prompt` is given.
        prompt: what the draft reads, pruned already; None if it prunes its own.
    """

    answer: int
    side: TargetSide | None = None
    prompt: Prompt | None = None


@dataclass(frozen=True)
class Decision:
    """What one row gained in one round.

    Args:
        row: number of the row.
        start: index in the answer of the first of `tokens`.
        tokens: the emitted ids; of these the last is the root of the next tree.
        limit: length up to which the answer may be drafted from now on.
        finished: whether the answer has ended.
    """

    row: int
    start: int
    tokens: tuple[int, ...]
    limit: int
    finished: bool = False


@dataclass(frozen=True)
class Decide:
    """The verdicts of one round."""

    answer: int
    decisions: tuple[Decision, ...]


@dataclass(frozen=True)
class Leave:
    """A row leaves the session."""

    answer: int
    row: int


@dataclass(frozen=True)
class Close:
    """The session has ended."""

    answer: int


ToDraft = Open | Arrive | Read | Decide | Leave | Close


@dataclass(frozen=True)
class Joined:
    """The draft has read the prompts of some rows.

    Args:
        answer: the session.
        visual, kept: visual tokens before and after pruning.
        cache_bytes: bytes of the draft's keys and values.
        choices: of the pruner, if they are wanted.
        spans: how the worker spent its time.
    """

    answer: int
    visual: int
    kept: int
    cache_bytes: int
    choices: tuple[Choice, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Guess:
    """One draft token.

    Args:
        row: number of the row.
        epoch: how often the row's hypothesis has been replaced so far.
        position: index of the token in the answer.
        token: its id.
        probs: the probabilities that it was drawn from, float32 ``[V]`` on the CPU; None for a row
            without rejection sampling.
    """

    row: int
    epoch: int
    position: int
    token: int
    probs: Tensor | None = field(default=None, compare=False)


@dataclass(frozen=True)
class DraftTokens:
    """The tokens of one forward of the draft.

    Args:
        answer: the session.
        tokens: at most one for each row.
        cache_bytes: bytes of the draft's keys and values.
        span: the time that the forward took.
    """

    answer: int
    tokens: tuple[Guess, ...]
    cache_bytes: int
    span: Span


@dataclass(frozen=True)
class Failed:
    """The draft cannot follow the session.

    Args:
        answer: the session.
        error: why.
    """

    answer: int
    error: Exception


FromDraft = Joined | DraftTokens | Failed
