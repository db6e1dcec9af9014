"""`draftlens bench`: measures the speed of methods, with a report and plots."""

from __future__ import annotations

from draftlens.cli.options import PLAIN, Loading
from draftlens.core.names import AUTO, EMBEDDED
from draftlens_lab.cli.bench_options import (
    ClipOptions,
    ContestantOptions,
    MeasuringOptions,
    ReportOptions,
)


def bench(
    *,
    target: str = EMBEDDED,
    draft: str = AUTO,
    clips: ClipOptions,
    contestants: ContestantOptions,
    measuring: MeasuringOptions,
    report: ReportOptions,
    loading: Loading = PLAIN,
    as_json: bool = False,
) -> None:
    """Measure the speed of decoding methods on the same clips.

    All methods take turns on each clip, next to the decoding of transformers. The exit status is
    1 if every clip failed.
    """
    from draftlens_lab.cli.bench_run import check_options, measure_and_save, options_of

    options = options_of(clips, contestants, measuring)
    check_options(options, measuring, report)
    measure_and_save(options, report, (target, draft, loading), as_json)
