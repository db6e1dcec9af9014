"""Pictures of an answer: the visual tokens that a pruned draft keeps, as a contact sheet and an
HTML page; the views of the prompt, as a chart and a page; the tokens of other drafts, as a page;
and a timeline."""

from draftlens_lab.explain.contact_sheet import sheet
from draftlens_lab.explain.gantt import chart, chart_of
from draftlens_lab.explain.html import answer_page, page
from draftlens_lab.explain.tracing import (
    AnswerTrace,
    Trace,
    prunes,
    pruning_method,
    trace,
    trace_answer,
)
from draftlens_lab.explain.view_chart import views_chart
from draftlens_lab.explain.view_page import views_page
from draftlens_lab.explain.view_trace import ViewTrace, has_views, trace_views, viewing_method

__all__ = [
    "AnswerTrace",
    "Trace",
    "ViewTrace",
    "answer_page",
    "chart",
    "chart_of",
    "has_views",
    "page",
    "prunes",
    "pruning_method",
    "sheet",
    "trace",
    "trace_answer",
    "trace_views",
    "viewing_method",
    "views_chart",
    "views_page",
]
