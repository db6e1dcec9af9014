"""Methods and the library's own ways of generating, timed on the same clips: `draftlens bench`."""

from draftlens_lab.bench.contestants import line_up
from draftlens_lab.bench.options import Options
from draftlens_lab.bench.report import markdown, tables
from draftlens_lab.bench.runner import Plan, prepare, run
from draftlens_lab.bench.store import Store
from draftlens_lab.bench.summary import summarize

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
