"""Shows what a pruned draft saw, and why: a sheet to look at and a page to explore."""

from draftlens.explain.html import page
from draftlens.explain.sheet import sheet
from draftlens.explain.trace import Trace, pruning_method, trace

__all__ = ["Trace", "page", "pruning_method", "sheet", "trace"]
