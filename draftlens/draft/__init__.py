"""Drafters, which guess the next tokens."""

from draftlens.draft.base import Drafter, NoDraft, TargetContext
from draftlens.draft.disagreement import Disagreement
from draftlens.draft.document_drafter import DocumentDrafter
from draftlens.draft.lookup import LookupDrafter
from draftlens.draft.model_drafter import ModelDrafter
from draftlens.draft.pruned import Pruning
from draftlens.draft.readers import DraftModelReader, SelfReader

__all__ = [
    "Disagreement",
    "DocumentDrafter",
    "DraftModelReader",
    "Drafter",
    "LookupDrafter",
    "ModelDrafter",
    "NoDraft",
    "Pruning",
    "SelfReader",
    "TargetContext",
]
