"""Pictures of an answer: the visual tokens that a pruned draft keeps, as a contact sheet and an
HTML page, and who did what when, as a chart."""

from draftlens.explain.contact_sheet import sheet
from draftlens.explain.gantt import chart, chart_of
from draftlens.explain.html import page
from draftlens.explain.tracing import Trace, pruning_method, trace

__all__ = ["Trace", "chart", "chart_of", "page", "pruning_method", "sheet", "trace"]
