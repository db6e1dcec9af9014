"""Hierarchical speculative decoding (HSD): draft tokens from texts that were read on the page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError
from draftlens.core.options import shown
from draftlens.core.references import References
from draftlens.decoding.plan import Acceptance, ExtraSource, Plan, make_schedule
from draftlens.drafting.adaptive.history import costs_of
from draftlens.methods.base import Models, resolve_parts
from draftlens.methods.hsd.drafter import DocumentDrafter, DocumentOptions
from draftlens.methods.hsd.pictures import read_pictures
from draftlens.methods.lookup.acceptance import DraftBudget
from draftlens.methods.lookup.config import MAX_WINDOW, check_in_turn, read_references
from draftlens.methods.lookup.drafter import REFERENCES
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.methods.parts import (
    DEFAULT_LENGTH,
    SAMPLING_RULES,
    check_choice,
    check_number,
    check_switch,
)
from draftlens.models.adapter import Backbone

MOST_NODES = 256  # Draft tokens of a row in one pass, as in the authors' code.
MATCHINGS = ("text", "tokens")


@dataclass(frozen=True)
class HSD:
    """For answers that repeat a document: the text that a cheap reader has found on the page is the
    draft. There is no draft model.

    The drafts are the `references` of a call. The last tokens of the answer are looked up in them,
    what follows there is proposed, and all candidates are merged into one tree, which the target
    verifies in one pass. Without references `Engine` reads them from the pictures of the prompt if
    a reader is installed; otherwise this is method `lookup`.

    Args:
        num_speculative_tokens: as for `Lookup`.
        window: n, tokens of the longest window; where it has no match, shorter windows are tried.
        max_branches: most candidates, which are merged into one tree, besides what may follow the
            end of the first one.
        max_nodes: most draft tokens of a row in one pass.
        max_depth: most tokens of a candidate; None for `max_nodes`.
        tolerance: τ (HSD, equation 10). 1 accepts the target's own tokens only. Below 1, a draft
            token u passes if log p(û) / log p(u) >= τ, where û is the target's own token; the
            paper uses 0.75. Such answers are greedy, may differ from those of stock `generate`,
            and are named in `Result.approximate`.
        matching: `"text"` compares letters and digits, `"tokens"` token ids. `"text"` needs
            the target's tokenizer; without it token ids are compared.
        variants: also propose references with lines joined and hyphenated words closed.
        recovery: after a rejected draft token, also propose continuations as if a token of the
            reference had been substituted, inserted or left out.
        heads: at the beginning of an answer and after a reference, propose the beginnings of
            unused references, in their order, and the end of the answer.
        sampling_rule: `"coupled"` (the tokens of plain sampling with the same seed) or
            `"rejection"`, as for `Lookup`.
        schedule: `"serial"`.
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a value is out of range.

    Example:

        >>> import draftlens
        >>> draftlens.HSD().window, draftlens.HSD().tolerance
        (3, 1.0)
        >>> draftlens.from_dict({"method": "hsd", "tolerance": 0.75}).max_nodes
        256
    """

    draft_use: ClassVar[str] = "unused"
    mixes_as: ClassVar[str] = "copying"
    extras: ClassVar[tuple[str, ...]] = (REFERENCES,)

    num_speculative_tokens: int | None = None
    window: int = 3
    max_branches: int = 4
    max_nodes: int = MOST_NODES
    max_depth: int | None = None
    tolerance: float = 1.0
    matching: str = "text"
    variants: bool = True
    recovery: bool = True
    heads: bool = True
    sampling_rule: str = "coupled"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        check_choice("sampling_rule", self.sampling_rule, SAMPLING_RULES)
        check_choice("matching", self.matching, MATCHINGS)
        if self.num_speculative_tokens is not None:
            check_number("num_speculative_tokens", self.num_speculative_tokens, MOST_NODES)
        elif self.sampling_rule == "rejection":
            object.__setattr__(self, "num_speculative_tokens", DEFAULT_LENGTH)
        check_number("window", self.window, MAX_WINDOW)
        check_number("max_branches", self.max_branches)
        check_number("max_nodes", self.max_nodes, MOST_NODES)
        if self.max_depth is not None:
            check_number("max_depth", self.max_depth, MOST_NODES)
        for switch in ("variants", "recovery", "heads"):
            check_switch(switch, getattr(self, switch))
        self._check_tolerance()
        resolve_parts(self)
        check_in_turn("hsd", self.schedule)

    def _check_tolerance(self) -> None:
        is_number = type(self.tolerance) in (int, float)
        if not is_number or not 0 < self.tolerance <= 1:
            raise ConfigError(
                f"tolerance must be a number above 0 and up to 1, not {shown(self.tolerance)}"
            )
        if self.tolerance < 1 and self.sampling_rule == "rejection":
            raise ConfigError(
                "tolerance below 1 is for greedy decoding, and sampling_rule 'rejection' for "
                "sampling: use one of them"
            )

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        is_automatic = self.num_speculative_tokens is None
        drafter = self._drafter(models.target)
        return Plan(
            drafter=drafter,
            schedule=make_schedule(self.schedule),
            prefill=self.prefill,
            acceptance=Acceptance(self.sampling_rule, float(self.tolerance)),
            timed=(models.target,) if is_automatic else (),
            extras={REFERENCES: partial(_references, _names_of(models.target.model.config))},
        )

    def _drafter(self, target: Backbone) -> DocumentDrafter:
        length = self.num_speculative_tokens
        longest = self.max_depth or self.max_nodes
        budget = None
        max_nodes = self.max_nodes
        if length is None:
            costs, lock = costs_of(target)
            budget = DraftBudget(costs, lock, self.max_nodes)
        else:
            longest = min(longest, length)
            max_nodes = min(max_nodes, length * self.max_branches)
        max_nodes = min(max_nodes, target.passes.most_nodes or max_nodes)
        options = DocumentOptions(
            window=self.window,
            by_text=self.matching == "text",
            variants=self.variants,
            recovery=self.recovery,
            heads=self.heads,
            chains=bool(target.chains_only),
        )
        return DocumentDrafter(
            Vocabulary(target.vocab_size, target.pixel_ids),
            longest,
            1 if target.chains_only else self.max_branches,
            max_nodes,
            options,
            budget,
        )


def _names_of(config: Any) -> tuple[str, str]:
    """The type of a model, and the name that it was loaded by."""
    return str(config.model_type), str(getattr(config, "_name_or_path", ""))


def _references(target: tuple[str, str], references: Any, source: ExtraSource) -> References:
    """The caller's references, or those that are read from the pictures of the messages."""
    if references is None and source.chat is not None:
        references = read_pictures(target, source.chat, source.phase)
    return read_references(references, source)
