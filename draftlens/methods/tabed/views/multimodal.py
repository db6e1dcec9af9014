"""Everything: the view M of TABED."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftlens.core.prefill_readings import NO_READINGS
from draftlens.drafting.draft_prompt import DraftPrompt, append_slots, prefilled
from draftlens.methods.tabed.views.base import Source
from draftlens.models.kv_cache import KVCache


@dataclass(frozen=True)
class MultimodalView:
    """The draft reads the whole prompt. If the target drafts for itself, its keys and values are
    copied and nothing is read twice."""

    label = "multimodal"
    same_without_media = True
    rewriting = ""
    needs_eyes = True
    readings = NO_READINGS

    def read(self, source: Source) -> DraftPrompt:
        """See `View.read`."""
        if not source.is_target:
            return prefilled(source.backbone, source.whole)
        lengths = source.whole.lengths

        def fill(cache: KVCache) -> None:
            kept = [torch.arange(length) for length in lengths]
            append_slots(source.context.cache, cache, [kept] * len(cache.layers))

        return DraftPrompt(source.whole, fill)
