"""Guesses from the prompt and the answer so far, without a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.core.checks import shown
from draftlens.core.errors import ConfigError
from draftlens.core.references import NO_REFERENCES, References, references_of
from draftlens.core.tree import chain
from draftlens.decoding.acceptance import Acceptance
from draftlens.decoding.plan import ExtraSource, Plan, make_schedule
from draftlens.drafting.adaptive.history import costs_of
from draftlens.methods.base import Models
from draftlens.methods.lookup.acceptance import GuessBudget
from draftlens.methods.lookup.drafter import REFERENCES, LookupDrafter
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.methods.parts import (
    DEFAULT_LENGTH,
    SAMPLING_RULES,
    check_choice,
    check_number,
    check_room,
    resolve_parts,
)
from draftlens.models.adapter import Backbone

LONGEST_CANDIDATE = 40
"""Tokens of a candidate whose length is not given."""
MOST_GUESSES = 48
"""Most guesses of a row where the length is not given."""
MAX_WINDOW = 16
"""The longest window that is indexed: each token costs as many entries of a dictionary."""


@dataclass(frozen=True)
class Lookup:
    """The last tokens of the answer are looked up in the prompt, in the answer itself and in the
    references of the call, and what followed there is guessed. There is no draft model, and tokens
    that stand for pixels are never guessed.

    Args:
        num_speculative_tokens: tokens of a candidate, all of which are checked. None checks as many
            guesses as are expected to save time, by how often guesses were right behind matches of
            the same length and by what forwards of the target cost; none at all if that is fastest
            (with rejection sampling, a length of 5).
        window: n, tokens of the window that is looked up; where it does not match, shorter windows
            down to a single token.
        max_branches: most candidates, which are merged into one tree; 1 for a chain.
        sampling_rule: `"coupled"` (the tokens of plain sampling with the same seed) or
            `"rejection"`. Guesses have no probabilities here, so under `"rejection"` a token is
            drawn from the target's distribution and guesses are followed while it is among them.
        schedule: the order of drafting and verifying, `"serial"`.
        prefill: how the target reads prompts (`prefill.PREFILLS`).

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.Lookup().window
        3
        >>> draftlens.from_dict({"method": "lookup", "num_speculative_tokens": 10}).max_branches
        4
    """

    draft_use: ClassVar[str] = "unused"
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
        if self.schedule != "serial":
            raise ConfigError(
                "there is no draft that could work beside the target: method 'lookup' has the "
                f"schedule 'serial' only, not {shown(self.schedule)}"
            )

    def plan(self, models: Models) -> Plan:
        """See `Method.plan`."""
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
        max_nodes = MOST_GUESSES
        if length is None:
            costs, lock = costs_of(target)
            budget = GuessBudget(costs, lock, MOST_GUESSES)
        else:
            max_nodes = length * self.max_branches
        return LookupDrafter(
            Vocabulary(target.vocab_size, target.pixel_ids),
            length or LONGEST_CANDIDATE,
            self.max_branches,
            max_nodes,
            self.window,
            budget,
        )


def read_references(given: Any, source: ExtraSource) -> References:
    """The references that a caller gave.

    Raises:
        InputError: they have another form, or do not go with the rows.
    """
    if given is None:
        return NO_REFERENCES
    return references_of(given, source.num_rows, source.tokenizer)
