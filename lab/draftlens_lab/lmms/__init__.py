"""draftlens as a model of lmms-eval, and the procedural world as tasks of lmms-eval."""

from __future__ import annotations

from typing import Any

MODEL = "draftlens"
"""The name of the model in lmms-eval."""


def manifest() -> Any:
    """What lmms-eval registers, by the entry point `lmms_eval.models`."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(MODEL, chat_class_path="draftlens_lab.lmms.model.DraftlensModel")
