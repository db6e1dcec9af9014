"""The seam to transformers: backbone, prompt and cache."""

from draftlens.models.backbone import Backbone
from draftlens.models.cache import KVCache
from draftlens.models.prompt import Prepared, Prompt

__all__ = ["Backbone", "KVCache", "Prepared", "Prompt"]
