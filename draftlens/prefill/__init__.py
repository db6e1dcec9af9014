"""Ways to read a prompt: from a prompt to a filled cache, first logits and readings."""

from draftlens.prefill.base import PREFILLS, Prefill, PrefillOutput, make_prefill
from draftlens.prefill.full import FullPrefill
from draftlens.prefill.reading import Reading
from draftlens.prefill.ring import RingPrefill
from draftlens.prefill.spava import SpavaPrefill
from draftlens.prefill.star import StarPrefill

__all__ = [
    "PREFILLS",
    "FullPrefill",
    "Prefill",
    "PrefillOutput",
    "Reading",
    "RingPrefill",
    "SpavaPrefill",
    "StarPrefill",
    "make_prefill",
]
