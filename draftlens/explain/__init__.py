"""Pictures of the visual tokens that a pruned draft keeps: a contact sheet and an HTML page."""

from draftlens.explain.contact_sheet import sheet
from draftlens.explain.html import page
from draftlens.explain.tracing import Trace, pruning_method, trace

__all__ = ["Trace", "page", "pruning_method", "sheet", "trace"]
