"""Some of the visual tokens: as SpecVLM and ParallelVLM read the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from draftlens.core.errors import ConfigError
from draftlens.core.options import describe
from draftlens.core.prefill_readings import ReadingSpec
from draftlens.drafting.draft_prompt import DraftPrompt, SelfReader, prefilled
from draftlens.drafting.pruning import Pruning
from draftlens.methods.tabed.views.base import Source
from draftlens.pruning import PRUNERS, make_pruner


@dataclass(frozen=True)
class PrunedView:
    """The draft reads the visual tokens that a pruner keeps. If the target drafts for itself, their
    keys and values are copied.

    Args:
        pruner: a name, a mapping of a name and options, or a pruner.
        ratio: share of visual tokens that are removed, 0 to 1.

    Raises:
        ConfigError: a value makes no sense.
    """

    pruner: Any = "specvlm"
    ratio: float = 0.9

    same_without_media = True
    rewriting = ""
    needs_eyes = True

    def __post_init__(self) -> None:
        is_number = isinstance(self.ratio, (int, float)) and not isinstance(self.ratio, bool)
        if not is_number or not 0 <= self.ratio <= 1:
            raise ConfigError(f"ratio is a share between 0 and 1, not {self.ratio!r}")
        object.__setattr__(self, "pruner", make_pruner(self.pruner))

    @property
    def label(self) -> str:
        """The pruner and the ratio; two views may prune by the same name with other options."""
        options = describe(PRUNERS, self.pruner)
        name = options.pop("name")
        chosen = "".join(f",{key}={value}" for key, value in options.items())
        return f"{name}({self.ratio:g}{chosen})"

    @property
    def readings(self) -> ReadingSpec:
        """The readings that the pruner needs."""
        spec: ReadingSpec = self.pruner.readings
        return spec

    def read(self, source: Source) -> DraftPrompt:
        """See `View.read`."""
        pruning = Pruning(self.pruner, self.ratio)
        if source.is_target:
            return SelfReader(source.backbone, pruning, "gather").read(None, source.context)
        pruned = pruning.apply(source.whole, source.context)
        return prefilled(source.backbone, pruned.prompt)
