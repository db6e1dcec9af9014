"""Pictures, page and figures of one answer for `draftlens explain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlens.cli.show import console, print_json, say, table
from draftlens.core.errors import ConfigError, InputError
from draftlens.methods.base import Method, resolve
from draftlens_lab.explain import (
    AnswerTrace,
    Trace,
    ViewTrace,
    answer_page,
    chart_of,
    page,
    pruning_method,
    sheet,
    trace,
    trace_answer,
    trace_views,
    viewing_method,
    views_chart,
    views_page,
)
from draftlens_lab.explain.gantt import NEEDS_MATPLOTLIB, has_matplotlib
from draftlens_lab.explain.tracing import Answered
from draftlens_lab.explain.view_page import COLUMNS, view_rows
from draftlens_lab.explain.views import View


def print_answer(subject: Explanation, answer: Any, outputs: Outputs, as_json: bool) -> None:
    if as_json:
        _print_json(subject, answer, outputs)
    else:
        _show(subject, answer, outputs)


def _print_json(subject: Explanation, answer: Any, outputs: Outputs) -> None:
    picture = outputs.written(outputs.picture)
    files = {subject.picture: picture, "chart": outputs.written(outputs.chart)}
    print_json({**files, "page": str(outputs.page), **answer.to_dict()})


def _show(subject: Explanation, answer: Any, outputs: Outputs) -> None:
    for line in subject.summary(answer):
        say(line, on=console)
    if subject.columns:
        table("", subject.columns, subject.rows(answer))
    picture = outputs.written(outputs.picture)
    lines = [*answer.notes]
    if picture:
        lines.append(picture)
    lines += [outputs.written(outputs.chart) or NEEDS_MATPLOTLIB, str(outputs.page)]
    for line in lines:
        say(line, on=console)


@dataclass(frozen=True)
class Explanation:
    """What is shown of an answer.

    Args:
        columns, rows: a table for a terminal; no columns for none.
    """

    picture: str
    suffix: str
    prepare: Callable[[Any], Method]
    trace: Callable[..., Any]
    draw: Callable[[Any, Path], None]
    page: Callable[[Any], str]
    summary: Callable[[Any], list[str]]
    columns: Sequence[str] = ()
    rows: Callable[[Any], list[list[str]]] = lambda trace: []


def pruning_subject() -> Explanation:
    """The visual tokens that are kept for the draft."""

    def draw(answer: Trace, path: Path) -> None:
        sheet(answer).save(path, optimize=True)

    return Explanation("sheet", "", pruning_method, trace, draw, page, summary)


def views_subject() -> Explanation:
    def draw(answer: ViewTrace, path: Path) -> None:
        if has_matplotlib():
            views_chart(answer).savefig(path, pil_kwargs={"optimize": True})

    return Explanation(
        "views",
        "-views",
        viewing_method,
        trace_views,
        draw,
        views_page,
        views_summary,
        COLUMNS,
        view_rows,
    )


def answer_subject() -> Explanation:
    """The tokens of a draft without pruning and views; there is no picture beside the chart."""
    return Explanation(
        "picture", "", resolve, trace_answer, lambda answer, path: None, answer_page, answer_summary
    )


@dataclass(frozen=True)
class Outputs:
    """Where the pictures of some media are written."""

    title: str
    picture: Path
    chart: Path
    page: Path

    def written(self, picture: Path) -> str | None:
        """The path of the main picture or of the chart; None if it could not be drawn."""
        return str(picture) if picture.exists() else None


def outputs_of(media: list[Path], images: bool, out: Path, suffix: str = "") -> Outputs:
    """Return the title of some media and the files to write in a folder."""
    if len(media) > 1 and not images:
        raise InputError("explain takes one clip, or several images with --images")
    title = media[0].name
    stem = media[0].stem
    if len(media) > 1:
        title += f" and {len(media) - 1} more"
        stem += f"-and-{len(media) - 1}-more"
    outputs = Outputs(
        title, out / f"{stem}{suffix}.png", out / f"{stem}-timeline.png", out / f"{stem}.html"
    )
    written = {path.resolve() for path in (outputs.picture, outputs.chart, outputs.page)}
    for file in media:
        if file.resolve() in written:
            raise InputError(
                f"a picture or the page would be written over {file}: name another folder with "
                f"--out"
            )
    return outputs


def write(subject: Explanation, trace: Any, outputs: Outputs) -> None:
    """Draw and write the main picture, the page and, if matplotlib is installed, the chart."""
    try:
        # What an earlier run drew must not pass for this one's.
        outputs.picture.unlink(missing_ok=True)
        outputs.chart.unlink(missing_ok=True)
        subject.draw(trace, outputs.picture)
        if has_matplotlib():
            chart_of(trace).savefig(outputs.chart)
        outputs.page.write_text(subject.page(trace), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        files = f"{outputs.picture}, {outputs.chart} and {outputs.page}"
        raise ConfigError(f"cannot write {files}: {reason}") from error


def summary(trace: Trace) -> list[str]:
    """Return a few lines for a terminal."""
    counts = trace.visual.counts
    views = trace.visual.views
    share = counts.kept / max(1, counts.total)
    lines = [
        f"{trace.title}: {counts.kept} of {counts.total} visual tokens are kept for the draft "
        f"({share * 100:.1f}%)"
    ]
    if len(views) > 1 and counts.kept:
        lines.append(_spread(views))
    return [*lines, *_speed_lines(trace)]


def views_summary(trace: ViewTrace) -> list[str]:
    """Return a few lines for a terminal."""
    first = f"{trace.title}: {len(trace.names)} views of the prompt, {len(trace.tokens)} tokens"
    return [first, *_speed_lines(trace)]


def answer_summary(trace: AnswerTrace) -> list[str]:
    """Return a few lines for a terminal."""
    first = f"{trace.title}: method {trace.method['method']}, {trace.stats.emitted} tokens"
    return [first, *_speed_lines(trace)]


def _speed_lines(trace: Answered) -> list[str]:
    length = trace.stats.mean_acceptance_length
    rounds = f"{len(trace.rounds)} rounds"
    undrafted = sum(not entry.drafted for entry in trace.rounds)
    if undrafted:
        rounds += f" ({undrafted} without draft tokens)"
    lines = [f"{rounds}, mean acceptance length {length:.2f}"]
    speedup = trace.speedup
    if speedup and trace.plain:
        answer = "the same answer" if trace.plain.identical else "a DIFFERENT ANSWER"
        lines.append(
            f"speedup over plain decoding {speedup.end_to_end:.2f}x end to end, "
            f"{speedup.decoding:.2f}x decoding only, with {answer}"
        )
    return lines


def _spread(views: Sequence[View]) -> str:
    """The view with the largest share of kept cells, and the number of views without any."""
    largest = max(views, key=lambda view: view.share)
    name = f"{largest.name} ({largest.when})" if largest.when else largest.name
    num_empty = sum(not view.kept.any() for view in views)
    return (
        f"largest share in {name}: {largest.counts.kept} of {largest.counts.total}; "
        f"{num_empty} of {len(views)} views have no kept cells"
    )
