"""The default: a method by what a call brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.decoding.plan import Plan
from draftlens.methods.base import METHODS, Method, Models, from_dict, plan_of
from draftlens.models.support import changing_frequencies
from draftlens.prefill.base import make_prefill


@dataclass(frozen=True)
class Automatic:
    """Drafts with the draft model and copied text in turn (`mixed`), or with copied text alone
    where there is no draft model (`lookup`). A draft with another tokenizer drafts alone
    (`speculative`). Without a draft model, nothing is drafted for a target that only its own
    `generate` can run, or whose rotary frequencies change with the length (`plain`).

    Args:
        prefill: how the target reads prompts (`prefill.base.PREFILLS`).

    Raises:
        ConfigError: the prefill is unknown.

    Example:

        >>> import draftlens
        >>> draftlens.load(device="cpu").method
        Automatic(prefill=FullPrefill())
    """

    draft_use: ClassVar[str] = "optional"
    drafts: ClassVar[bool] = False
    extras: ClassVar[tuple[str, ...]] = ("references",)

    prefill: Any = "full"

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefill", make_prefill(self.prefill))

    def plan(self, models: Models) -> Plan:
        """How a session answers by this method."""
        return plan_of(self.method_for(models), models)

    def method_for(self, models: Models) -> Method:
        """The method that these models answer by."""
        names = ["mixed", "speculative"]
        target = models.target
        if models.draft is None:
            # Such frequencies let no draft token pass the length at which they change.
            changes = changing_frequencies(target.text_config)
            names = [] if target.plain_only or changes else ["lookup"]
        elif models.draft.retokenizer is not None:
            names = ["speculative"]
        name = next((name for name in names if name in METHODS), "plain")
        return from_dict({"method": name, "prefill": self.prefill})
