"""Drafters: who guesses the next tokens."""

from draftlens.draft.base import Drafter, NoDraft
from draftlens.draft.rows import Rows
from draftlens.draft.self_draft import SelfDrafter
from draftlens.draft.small_model import SmallModelDrafter

__all__ = ["Drafter", "NoDraft", "Rows", "SelfDrafter", "SmallModelDrafter"]
