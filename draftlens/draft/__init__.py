"""Drafters: who guesses the next tokens."""

from draftlens.draft.base import Drafter, NoDraft
from draftlens.draft.self_draft import SelfDrafter
from draftlens.draft.small_model import SmallModelDrafter
from draftlens.sequences.rows import Rows

__all__ = ["Drafter", "NoDraft", "Rows", "SelfDrafter", "SmallModelDrafter"]
