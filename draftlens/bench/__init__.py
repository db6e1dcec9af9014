"""Methods and the library's own ways of generating, timed on the same clips: `draftlens bench`."""

from draftlens.bench.contestants import line_up
from draftlens.bench.options import Options
from draftlens.bench.report import markdown, tables
from draftlens.bench.runner import Plan, prepare, run
from draftlens.bench.store import Store
from draftlens.bench.summary import summarize

__all__ = [
    "Options",
    "Plan",
    "Store",
    "line_up",
    "markdown",
    "prepare",
    "run",
    "summarize",
    "tables",
]
