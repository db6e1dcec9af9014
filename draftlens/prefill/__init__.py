"""Ways to read a prompt: from a prompt to a filled cache, first logits and readings."""

from draftlens.prefill.base import PREFILLS, Prefill, PrefillOutput, make_prefill
from draftlens.prefill.full import FullPrefill

__all__ = ["PREFILLS", "FullPrefill", "Prefill", "PrefillOutput", "make_prefill"]
