"""`draftlens explain`: the visual tokens kept for the draft, as a contact sheet and a page, or
which view of the prompt was right, as a chart and a page; and who did what when, as a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftlens.cli import options as opt
from draftlens.cli.help import MODELS
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.core.errors import ConfigError, InputError
from draftlens.core.names import AUTO, EMBEDDED

if TYPE_CHECKING:
    from draftlens.methods.base import Method
    from draftlens_lab.explain import Trace, ViewTrace
    from draftlens_lab.explain.tracing import Answered
    from draftlens_lab.explain.views import View


def explain(
    media: Annotated[
        list[Path], typer.Argument(help="One video file, or image files with --images.")
    ],
    images: opt.Images = False,
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            "-d",
            help="Draft model: a smaller model with the same tokenizer, `auto` for the one known "
            "for the target, or `none`. Without a draft the target drafts for itself.",
            rich_help_panel=MODELS,
        ),
    ] = AUTO,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Decoding method: `specvlm` or `parallelvlm`, which prune visual tokens, or "
            "`tabed`, whose draft reads the prompt in several views. The default is `specvlm`.",
            rich_help_panel=MODELS,
            autocompletion=opt.completes(lambda: ("specvlm", "parallelvlm", "tabed")),
        ),
    ] = None,
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: opt.MediaPrompt = "",
    max_new_tokens: opt.MaxNewTokens = 320,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the pictures (PNG) and the page (HTML)."),
    ] = Path("explain"),
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Measure plain decoding for comparison."),
    ] = True,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Show which visual tokens are kept for the draft or which view was right, and who did what
    when.

    Writes pictures and an HTML page. With `specvlm`, a contact sheet and the page show the kept
    parts of each frame and what the pruner ranks them by, or else the attention of the target; the
    page also shows which tokens of the answer the draft supplied. With `tabed`, a chart and the
    page show, token by token, the weights of the views and which of them would have guessed the
    token. Another chart shows what target and draft did at each moment.
    """
    opt.check_media(media, opt.parse_limits(limits))
    from draftlens.cli.loading import load_engine, make_folder, read_files
    from draftlens.cli.progress import spinner
    from draftlens_lab.explain import has_views

    chosen = opt.parse_method(method, speculative_config, default="specvlm")
    subject = views_subject() if has_views(chosen) else pruning_subject()
    decoding = subject.prepare(chosen)
    outputs = outputs_of(media, images, out, subject.suffix)
    text = opt.prompt_or_default(prompt, images)
    chat = read_files(as_json, limits, text, frames, media, images)
    make_folder(out)
    engine = load_engine(target, draft, decoding, loading, as_json, calibrate)
    answering = {"method": chosen, "compare": compare, "max_new_tokens": max_new_tokens}
    with spinner("answering", as_json):
        answer = subject.trace(engine, chat, outputs.title, **answering)
    with spinner("drawing", as_json):
        write(subject, answer, outputs)
    if as_json:
        _print_json(subject, answer, outputs)
    else:
        _show(subject, answer, outputs)


def _print_json(subject: Explanation, answer: Any, outputs: Outputs) -> None:
    from draftlens.cli.show import print_json

    picture = outputs.written(outputs.picture)
    files = {subject.picture: picture, "chart": outputs.written(outputs.chart)}
    print_json({**files, "page": str(outputs.page), **answer.to_dict()})


def _show(subject: Explanation, answer: Any, outputs: Outputs) -> None:
    from draftlens.cli.show import console, table
    from draftlens_lab.explain.gantt import NEEDS_MATPLOTLIB

    for line in subject.summary(answer):
        console.print(line, markup=False, soft_wrap=True)
    if subject.columns:
        table("", subject.columns, subject.rows(answer))
    picture = outputs.written(outputs.picture)
    lines = [*answer.notes]
    if picture:
        lines.append(picture)
    lines += [outputs.written(outputs.chart) or NEEDS_MATPLOTLIB, str(outputs.page)]
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


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
    from draftlens_lab.explain import page, pruning_method, sheet, trace

    def draw(answer: Trace, path: Path) -> None:
        sheet(answer).save(path, optimize=True)

    return Explanation("sheet", "", pruning_method, trace, draw, page, summary)


def views_subject() -> Explanation:
    from draftlens_lab.explain import trace_views, viewing_method, views_chart, views_page
    from draftlens_lab.explain.gantt import has_matplotlib
    from draftlens_lab.explain.view_page import COLUMNS, view_rows

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
    from draftlens_lab.explain import chart_of
    from draftlens_lab.explain.gantt import has_matplotlib

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
