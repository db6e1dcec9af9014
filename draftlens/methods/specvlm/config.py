"""SpecVLM: the draft reads only the visual tokens that the target attends to.

The scores are in `pruning.attention`, the pruned prompt in `drafting.pruning`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.core.errors import ConfigError, IncompatiblePairError
from draftlens.core.tree import Topology
from draftlens.decoding.plan import Plan
from draftlens.drafting.draft_prompt import DraftPromptBuilder, PromptBuilder, SelfPromptBuilder
from draftlens.drafting.model_drafter import Disagreement, ModelDrafter
from draftlens.drafting.pruning import Pruning
from draftlens.methods.base import Models, name_of, resolve_parts
from draftlens.methods.parts import (
    Tree,
    check_choice,
    controllers_of,
    draft_of,
    draft_use_of,
    drafting_plan,
    resolve_drafting,
    settings_of,
    topology_of,
)
from draftlens.models.adapter import Backbone
from draftlens.models.checks import is_blind


@dataclass(frozen=True)
class SpecVLM:
    """The draft reads only the visual tokens that the target attends to (SpecVLM).

    Args:
        num_speculative_tokens, tree, sampling_rule, schedule, prefill: as for
            `SpeculativeDecoding`. The paper's tree is `"eagle"`.
        prune_ratio: r, the share of visual tokens that the draft does not read.
        pruner: which tokens these are: a name of `pruning.PRUNERS`, a mapping of a name and options
            such as ``{"name": "specvlm", "attention_mass": 0.2}``, or a pruner. `"specvlm"` is that
            of the paper, `"uv"` that of ParallelVLM; `"attention-sampled"` and `"uv-sampled"` make
            order samples by the same scores.
        draft: `"model"` for a draft model, `"self"` for the target's own weights, which go on from
            its keys and values of the kept tokens, `"auto"` for the draft model if there is one.

    Raises:
        ConfigError: a value makes no sense.

    Example:

        >>> import draftlens
        >>> draftlens.SpecVLM(pruner={"name": "specvlm", "attention_mass": 0.2}).pruner
        SpecVLMPruner(attention_mass=0.2)
    """

    mixes_as: ClassVar[str] = "model"
    removed: ClassVar[Mapping[str, str]] = {
        "positions": "kept tokens stay at their positions",
        "kv": "draft 'self' takes the target's keys and values; method 'self-sd' of draftlens-lab "
        "has other sources",
    }

    num_speculative_tokens: int | None = None
    tree: Tree = None
    sampling_rule: str = "coupled"
    prune_ratio: float = 0.9
    pruner: Any = "attention-sampled"
    draft: str = "auto"
    schedule: str = "serial"
    prefill: Any = "full"

    def __post_init__(self) -> None:
        resolve_drafting(self)
        if not isinstance(self.prune_ratio, (int, float)) or not 0 <= self.prune_ratio <= 1:
            raise ConfigError(f"prune_ratio is a share between 0 and 1, not {self.prune_ratio!r}")
        check_choice("draft", self.draft, ("auto", "model", "self"))
        resolve_parts(self, pruner=True)

    @property
    def draft_use(self) -> str:
        """Whether a draft model is needed (`methods.base.draft_use`)."""
        return draft_use_of(self.draft)

    @property
    def topology(self) -> Topology:
        """The tree that the draft grows; the largest one of an automatic tree."""
        return topology_of(self.tree, self.num_speculative_tokens)

    @property
    def pruning(self) -> Pruning:
        """How the draft's prompt is pruned."""
        return Pruning(self.pruner, self.prune_ratio)

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        pruning = self.pruning
        drafts_for_itself = self.draft == "self" or (self.draft == "auto" and models.draft is None)
        prompts: PromptBuilder
        if drafts_for_itself:
            prompts = self.self_prompts(models.target)
        else:
            self._check_sight(models)
            described = f"method {name_of(self)!r} with draft 'model'"
            prompts = DraftPromptBuilder(draft_of(models, described), pruning)
        settings = (type(prompts).__name__, *settings_of(pruning))
        disagreement = None if drafts_for_itself else Disagreement(prompts.backbone.name)
        drafter = ModelDrafter(
            prompts,
            self.topology,
            models.target.vocab_size,
            controllers_of(self.tree, models.target, prompts.backbone, settings),
            disagreement,
        )
        return drafting_plan(self, models, drafter, pruning, drafts_for_itself)

    def self_prompts(self, target: Backbone) -> PromptBuilder:
        """What the target reads where it drafts for itself."""
        return SelfPromptBuilder(target, self.pruning)

    def _check_sight(self, models: Models) -> None:
        """Refuse a draft without visual tokens."""
        if models.draft is not None and is_blind(models.target, models.draft):
            raise IncompatiblePairError(
                f"method {name_of(self)!r} prunes visual tokens, and the draft "
                f"{models.draft.name} takes none: method 'speculative' with schedule "
                f"{self.schedule!r} lets it draft from the words"
            )
