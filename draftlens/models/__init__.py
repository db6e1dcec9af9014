"""The seam to transformers: backbone, prompt and cache."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftlens.models.backbone import Backbone
    from draftlens.models.cache import KVCache
    from draftlens.models.prompt import Prepared, Prompt

__all__ = ["Backbone", "KVCache", "Prepared", "Prompt"]

_HOMES = {
    "Backbone": "draftlens.models.backbone",
    "KVCache": "draftlens.models.cache",
    "Prepared": "draftlens.models.prompt",
    "Prompt": "draftlens.models.prompt",
}
"""The module of each name. They are imported on first use, since the known pairs need no torch."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
