"""The default: a method by what a call brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from draftlens.decoding.plan import Plan
from draftlens.methods.base import Method, Models, PlainDecoding, plan_of
from draftlens.methods.lookup.config import Lookup
from draftlens.methods.mixed.config import Mixed
from draftlens.methods.speculative import SpeculativeDecoding
from draftlens.prefill.base import make_prefill


@dataclass(frozen=True)
class Automatic:
    """Drafts with the draft model and copied text in turn (`mixed`), or with copied text alone
    where there is no draft model (`lookup`). A draft with another tokenizer drafts alone
    (`speculative`), and a target that only its own `generate` can run drafts nothing (`plain`).

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
        if models.target.plain_only:
            return PlainDecoding(prefill=self.prefill)
        if models.draft is None:
            return Lookup(prefill=self.prefill)
        if models.draft.retokenizer is not None:
            return SpeculativeDecoding(prefill=self.prefill)
        return Mixed(prefill=self.prefill)
