"""Speculative decoding with a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.core.errors import IncompatiblePairError
from draftlens.core.tree import Topology
from draftlens.decoding.plan import Acceptance, Plan
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import Disagreement, ModelDrafter
from draftlens.drafting.retokenized import RetokenizedDrafter
from draftlens.methods.base import Models, name_of, resolve_parts
from draftlens.methods.parts import (
    DEFAULT_LENGTH,
    Tree,
    controllers_of,
    draft_prompts,
    drafting_plan,
    resolve_drafting,
    topology_of,
)
from draftlens.models.adapter import Backbone


@dataclass(frozen=True)
class SpeculativeDecoding:
    """A smaller model drafts, and the target checks all draft tokens in one forward (Leviathan et
    al. 2023). A language model as the draft reads the words of the prompt.

    Args:
        num_speculative_tokens: γ, the length of a chain. None leaves the choice to `tree`.
        tree: `"auto"` for the chain or tree that is expected to be fastest by what forwards cost
            and how often draft tokens are accepted (none at all if drafting does not pay),
            `"eagle"` for EAGLE's static tree of 25 nodes, or a list of paths of ranks such as
            ``[[0], [1], [0, 0]]``. None means a chain if a length is given, else `"auto"` (with
            rejection sampling, which it does not allow, a chain of 5).
        sampling_rule: `"coupled"` (the tokens of plain sampling with the same seed) or
            `"rejection"` (the papers' rule: same distribution, other tokens, accepts a little
            more).
        schedule: the order of drafting and verifying (`decoding.plan.SCHEDULES`).
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.SpeculativeDecoding().tree
        'auto'
        >>> len(draftlens.SpeculativeDecoding(num_speculative_tokens=3).topology)
        3
    """

    draft_use: ClassVar[str] = "needed"
    mixes_as: ClassVar[str] = "model"

    num_speculative_tokens: int | None = None
    tree: Tree = None
    sampling_rule: str = "coupled"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        resolve_drafting(self)
        resolve_parts(self)

    @property
    def topology(self) -> Topology:
        """The tree that the draft grows; the largest one of an automatic tree."""
        return topology_of(self.tree, self.num_speculative_tokens)

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        prompts = draft_prompts(models, f"method {name_of(self)!r}")
        if prompts.backbone.retokenizer is not None:
            return self._retokenized(prompts, models.target)
        drafter = ModelDrafter(
            prompts,
            self.topology,
            models.target.vocab_size,
            controllers_of(self.tree, models.target, prompts.backbone),
            Disagreement(prompts.backbone.name),
        )
        return drafting_plan(self, models, drafter)

    def _retokenized(self, prompts: DraftPromptBuilder, target: Backbone) -> Plan:
        """The plan with a draft of another tokenizer, which writes chains."""
        retokenizer = prompts.backbone.retokenizer
        assert retokenizer is not None
        is_chain = self.tree in (None, "auto")
        if not is_chain or self.schedule != "serial":
            feature = "trees" if not is_chain else f"schedule {self.schedule!r}"
            raise IncompatiblePairError(
                f"the draft {prompts.backbone.name} has another tokenizer than the target, which "
                f"only chains with schedule 'serial' allow, not {feature}"
            )
        length = self.num_speculative_tokens or DEFAULT_LENGTH
        return Plan(
            drafter=RetokenizedDrafter(prompts, retokenizer, length, target.vocab_size),
            prefill=self.prefill,
            acceptance=Acceptance(self.sampling_rule),
            uses_draft=True,
        )
