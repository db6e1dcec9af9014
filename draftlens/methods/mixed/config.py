"""Draft tokens from a model or from texts, whichever is expected to be faster in each round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError, IncompatiblePairError
from draftlens.core.options import Registry, make
from draftlens.decoding.plan import Plan
from draftlens.methods.base import METHODS, Models, draft_use, mixes_as, name_of, resolve_parts
from draftlens.methods.mixed.drafter import MixedDrafter
from draftlens.methods.parts import PARALLEL_DRAFTERS, SAMPLING_RULES, check_choice


@dataclass(frozen=True)
class Mixed:
    """In each round either a model drafts or draft tokens are copied from the prompt, the answer
    and the references of the call: whichever is expected to bring more tokens per second, by what
    was accepted so far and by measured costs.

    Args:
        model: the method whose draft model drafts, by name, as a mapping of a name and options, or
            as a method: `"speculative"` or `"specvlm"`. Its tree is the automatic one.
        copying: the method that copies: `"lookup"` or `"hsd"`. Its `num_speculative_tokens` is
            None.
        sampling_rule: `"coupled"`. Which drafter proposes depends on measured times, and with
            `"rejection"` so would the tokens.
        schedule: `"serial"`.
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.from_dict({"method": "mixed", "model": "specvlm"}).model.prune_ratio
        0.9
    """

    parts: ClassVar[Mapping[str, Registry]] = {"model": METHODS, "copying": METHODS}
    extras: ClassVar[tuple[str, ...]] = ("references",)

    model: Any = "speculative"
    copying: Any = "lookup"
    sampling_rule: str = "coupled"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        check_choice("sampling_rule", self.sampling_rule, SAMPLING_RULES)
        check_choice("schedule", self.schedule, ("serial", *PARALLEL_DRAFTERS))
        if self.sampling_rule != "coupled":
            raise ConfigError(
                "method 'mixed' has sampling_rule 'coupled': measured times decide which drafter "
                "proposes, and with 'rejection' they would decide which tokens are drawn"
            )
        if self.schedule != "serial":
            raise ConfigError(
                "method 'mixed' has schedule 'serial': it compares the costs of its drafters in "
                "each round"
            )
        resolve_parts(self)
        object.__setattr__(self, "model", make(METHODS, self.model, "plan"))
        object.__setattr__(self, "copying", make(METHODS, self.copying, "plan"))

        self._check_parts()

    def _check_parts(self) -> None:
        for role in ("model", "copying"):
            part = getattr(self, role)
            if mixes_as(part) != role:
                known = [name for name in METHODS if mixes_as(METHODS[name]) == role]
                raise ConfigError(
                    f"{role} of method 'mixed' must be one of {', '.join(known)}, "
                    f"not {name_of(part)!r}"
                )
            if part.num_speculative_tokens is not None or part.schedule != "serial":
                raise ConfigError(
                    f"method 'mixed' chooses by measured costs in each round: {role} takes no "
                    "num_speculative_tokens, and its schedule is 'serial'"
                )
        if self.model.tree != "auto":
            raise ConfigError("method 'mixed' chooses the tree by measured costs: leave it out")

    @property
    def draft_use(self) -> str:
        """Whether a draft model is needed (`methods.base.draft_use`)."""
        return draft_use(self.model)

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        if models.draft is not None and models.draft.retokenizer is not None:
            raise IncompatiblePairError(
                f"method 'mixed' chooses trees, and the draft {models.draft.name}, which has "
                "another tokenizer than the target, writes chains: use 'speculative'"
            )
        drafting: Plan = replace(self.model, prefill=self.prefill).plan(models)
        copying: Plan = self.copying.plan(models)
        by_model: Any = drafting.drafter
        by_copying: Any = copying.drafter
        return replace(
            drafting,
            drafter=MixedDrafter(by_model, by_copying),
            acceptance=copying.acceptance,
            extras=copying.extras,
        )
