"""`draftlens explain`: the visual tokens kept for the draft, as a contact sheet and a page, and who
did what when, as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.loading import load_engine, make_folder, read_files
from draftlens.cli.progress import spinner
from draftlens.cli.show import console, print_json
from draftlens.core.errors import ConfigError, InputError
from draftlens.models.zoo import EMBEDDED, draft_for

if TYPE_CHECKING:
    from draftlens.explain import Trace
    from draftlens.explain.views import View

AUTO = "auto"


def explain(
    media: Annotated[
        list[Path], typer.Argument(help="One video file, or image files with --images.")
    ],
    images: opt.Images = False,
    target: opt.Target = EMBEDDED,
    draft: Annotated[
        str | None,
        typer.Option(
            "--draft",
            "-d",
            help="Draft model: a smaller model with the same tokenizer, `auto` for the one known "
            "for the target, or `none`. Without a draft the target drafts for itself.",
        ),
    ] = AUTO,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            "-m",
            help="Decoding method; `specvlm` is the only one that prunes visual tokens.",
        ),
    ] = "specvlm",
    speculative_config: opt.SpeculativeConfig = None,
    frames: opt.Frames = 8,
    prompt: opt.MediaPrompt = "",
    max_new_tokens: opt.MaxNewTokens = 320,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the contact sheet and the chart (PNG) and the page (HTML)."),
    ] = Path("explain"),
    compare: Annotated[
        bool,
        typer.Option("--compare/--no-compare", help="Measure plain decoding for comparison."),
    ] = True,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show which visual tokens are kept for the draft, and who did what when.

    Writes a contact sheet, a chart and an HTML page. Sheet and page show the kept parts of each
    frame and what the pruner ranks them by, or else the attention of the target; the page also
    shows which tokens of the answer the draft supplied. The chart shows what target and draft did
    at each moment.
    """
    from draftlens.explain import pruning_method, trace  # takes a second to import
    from draftlens.explain.gantt import NEEDS_MATPLOTLIB, has_matplotlib

    decoding = pruning_method(opt.parse_method(method, speculative_config))
    outputs = outputs_of(media, images, out)
    text = opt.prompt_or_default(prompt, images)
    chat = read_files(as_json, limits, text, frames, media, images)
    make_folder(out)
    draft_name = draft_for(target) if draft == AUTO else draft
    engine = load_engine(target, draft_name, decoding, device, dtype, as_json, calibrate=False)
    with spinner("answering", as_json):
        answer = trace(
            engine,
            chat,
            outputs.title,
            method=decoding,
            compare=compare,
            max_new_tokens=max_new_tokens,
        )
    with spinner("drawing", as_json):
        write(answer, outputs)
    if as_json:
        chart = str(outputs.chart) if has_matplotlib() else None
        files = {"sheet": str(outputs.sheet), "chart": chart, "page": str(outputs.page)}
        print_json({**files, **answer.to_dict()})
        return
    chart_line = str(outputs.chart) if has_matplotlib() else NEEDS_MATPLOTLIB
    for line in (*summary(answer), str(outputs.sheet), chart_line, str(outputs.page)):
        console.print(line, markup=False, soft_wrap=True)


@dataclass(frozen=True)
class Outputs:
    """Where the pictures of some media are written.

    Args:
        title: name of the media.
        sheet: path of the contact sheet.
        chart: path of the chart.
        page: path of the page.
    """

    title: str
    sheet: Path
    chart: Path
    page: Path


def outputs_of(media: list[Path], images: bool, out: Path) -> Outputs:
    """Return the title of some media and the files to write in a folder.

    Raises:
        InputError: there are several clips, or a file would be written over one of the media.
    """
    if len(media) > 1 and not images:
        raise InputError("explain takes one clip, or several images with --images")
    title = media[0].name
    stem = media[0].stem
    if len(media) > 1:
        title += f" and {len(media) - 1} more"
        stem += f"-and-{len(media) - 1}-more"
    outputs = Outputs(
        title, out / f"{stem}.png", out / f"{stem}-timeline.png", out / f"{stem}.html"
    )
    written = {path.resolve() for path in (outputs.sheet, outputs.chart, outputs.page)}
    for file in media:
        if file.resolve() in written:
            raise InputError(
                f"a picture or the page would be written over {file}: name another folder with "
                f"--out"
            )
    return outputs


def write(trace: Trace, outputs: Outputs) -> None:
    """Draw and write the contact sheet, the page and, if matplotlib is installed, the chart.

    Raises:
        ConfigError: a file cannot be written.
    """
    from draftlens.explain import chart_of, page, sheet
    from draftlens.explain.gantt import has_matplotlib

    try:
        sheet(trace).save(outputs.sheet, optimize=True)
        if has_matplotlib():
            chart_of(trace).savefig(outputs.chart)
        outputs.page.write_text(page(trace), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        files = f"{outputs.sheet}, {outputs.chart} and {outputs.page}"
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
    length = trace.stats.mean_acceptance_length
    lines.append(f"{len(trace.rounds)} rounds, mean acceptance length {length:.2f}")
    speedup = trace.speedup
    if speedup and trace.plain:
        answer = "the same answer" if trace.plain.identical else "a DIFFERENT ANSWER"
        lines.append(
            f"speedup over plain decoding {speedup.end_to_end:.2f}x end to end, "
            f"{speedup.decoding:.2f}x decoding only, with {answer}"
        )
    return [*lines, *trace.notes]


def _spread(views: Sequence[View]) -> str:
    """The view with the largest share of kept cells, and the number of views without any."""
    largest = max(views, key=lambda view: view.share)
    name = f"{largest.name} ({largest.when})" if largest.when else largest.name
    num_empty = sum(not view.kept.any() for view in views)
    return (
        f"largest share in {name}: {largest.counts.kept} of {largest.counts.total}; "
        f"{num_empty} of {len(views)} views have no kept cells"
    )
