"""Draft tokens from the prompt and the answer so far, without a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown
from draftlens.core.references import NO_REFERENCES, References, references_of
from draftlens.core.tree import chain
from draftlens.decoding.plan import Acceptance, ExtraSource, Plan, make_schedule
from draftlens.drafting.adaptive.history import costs_of
from draftlens.methods.base import Models, resolve_parts
from draftlens.methods.lookup.acceptance import DraftBudget
from draftlens.methods.lookup.drafter import REFERENCES, LookupDrafter
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.methods.parts import (
    DEFAULT_LENGTH,
    SAMPLING_RULES,
    check_choice,
    check_number,
    check_room,
)
from draftlens.models.adapter import Backbone

LONGEST_CANDIDATE = 40  # Tokens of a candidate if `num_speculative_tokens` is None.
MAX_DRAFT_TOKENS = 48  # Draft tokens of a row if `num_speculative_tokens` is None.
MAX_WINDOW = 16  # Each token of a text costs as many dictionary entries.


@dataclass(frozen=True)
class Lookup:
    """Copies draft tokens from the prompt, the answer and the references of the call: the last
    tokens of the answer are looked up there, and what followed them is proposed. There is no draft
    model. Ids of visual tokens are never proposed.

    Args:
        num_speculative_tokens: tokens of a candidate, all of which are verified. None chooses the
            number of draft tokens in each round from past acceptance after matches of the same
            length and from the measured cost of a target forward; it may be zero. With rejection
            sampling None means 5.
        window: n, tokens of the longest window; where it has no match, shorter windows are tried.
        max_branches: most candidates, which are merged into one tree; 1 for a chain.
        sampling_rule: `"coupled"` (the tokens of plain sampling with the same seed) or
            `"rejection"`. Draft tokens have no probabilities here, so `"rejection"` draws from the
            target's distribution and accepts draft tokens as long as they equal the drawn ones.
        schedule: `"serial"`.
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a value is out of range.

    Example:

        >>> import draftlens
        >>> draftlens.Lookup().window
        3
        >>> draftlens.from_dict({"method": "lookup", "num_speculative_tokens": 10}).max_branches
        4
    """

    draft_use: ClassVar[str] = "unused"
    mixes_as: ClassVar[str] = "copying"
    extras: ClassVar[tuple[str, ...]] = (REFERENCES,)

    num_speculative_tokens: int | None = None
    window: int = 3
    max_branches: int = 4
    sampling_rule: str = "coupled"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        check_choice("sampling_rule", self.sampling_rule, SAMPLING_RULES)
        if self.num_speculative_tokens is not None:
            check_number("num_speculative_tokens", self.num_speculative_tokens)
        elif self.sampling_rule == "rejection":
            object.__setattr__(self, "num_speculative_tokens", DEFAULT_LENGTH)
        check_number("window", self.window, MAX_WINDOW)
        check_number("max_branches", self.max_branches)
        resolve_parts(self)
        check_in_turn("lookup", self.schedule)

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        is_automatic = self.num_speculative_tokens is None
        check_room(chain(self.num_speculative_tokens or 0), models)
        return Plan(
            drafter=self._drafter(models.target),
            schedule=make_schedule(self.schedule),
            prefill=self.prefill,
            acceptance=Acceptance(self.sampling_rule),
            timed=(models.target,) if is_automatic else (),
            extras={REFERENCES: read_references},
        )

    def _drafter(self, target: Backbone) -> LookupDrafter:
        length = self.num_speculative_tokens
        budget = None
        max_nodes = MAX_DRAFT_TOKENS
        if length is None:
            costs, lock = costs_of(target)
            budget = DraftBudget(costs, lock, MAX_DRAFT_TOKENS)
        else:
            max_nodes = length * self.max_branches
        return LookupDrafter(
            Vocabulary(target.vocab_size, target.pixel_ids),
            length or LONGEST_CANDIDATE,
            1 if target.chains_only else self.max_branches,
            max_nodes,
            self.window,
            budget,
        )


def check_in_turn(name: str, schedule: str) -> None:
    """Refuse to copy ahead of the target: no time is hidden, and each rejection costs a forward
    without draft tokens."""
    if schedule != "serial":
        raise ConfigError(
            f"method {name!r} copies its draft tokens in about a millisecond, and to copy ahead of "
            "the target would cost more forwards than that is worth: its schedule is 'serial', not "
            f"{shown(schedule)}"
        )


def read_references(given: Any, source: ExtraSource) -> References:
    """The caller's references.

    Raises:
        InputError: they have another form, or do not go with the rows.
    """
    if given is None:
        return NO_REFERENCES
    return references_of(given, source.num_rows, source.tokenizer)
