"""Methods and the library's own ways of generating, timed on the same clips: `draftlens bench`."""

from draftlens_lab.bench.contestants import line_up
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.report import bench_page, bench_tables
from draftlens_lab.bench.runner import BenchRun, prepare, run
from draftlens_lab.bench.store import Store
from draftlens_lab.bench.summary import summarize

__all__ = [
    "BenchOptions",
    "BenchRun",
    "Store",
    "bench_page",
    "bench_tables",
    "line_up",
    "prepare",
    "run",
    "summarize",
]
