"""The command `draftlens parse`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.model_options import PLAIN, Loading

PageTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="Document model that reads the pages: a folder or a Hub id of a vision-language "
        "model, or `reader` for the toy of draftlens-lab. Without it, the text is that of the text "
        "layer, or else of optical character recognition.",
    ),
]


@dataclass(frozen=True)
class PageOptions:
    """How pages are read and answered: fields of `draftlens.ParseSettings`."""

    drafter: Annotated[
        str,
        typer.Option(
            help="Reader of the text, or of the drafts of a target: `auto` (the text layer, else "
            "optical character recognition), `none`, or readers such as `text-layer`, "
            "`tesseract`, `rapidocr`, several of them with commas between.",
        ),
    ] = "auto"
    layout: Annotated[
        str, typer.Option(help="Layout that divides pages into regions: `auto` or a name.")
    ] = "auto"
    stages: Annotated[
        str,
        typer.Option(
            help="`page`, `regions+page` (the regions' crops first), or `regions` (these alone, "
            "which is not exact)."
        ),
    ] = "page"
    tolerance: Annotated[
        float,
        typer.Option(
            help="1 keeps the tokens of stock generate; below 1, draft tokens may replace somewhat "
            "likelier ones, which is not exact."
        ),
    ] = 1.0
    batch: Annotated[int, typer.Option(help="Number of pages that are answered together.")] = 1
    dpi: Annotated[
        float | None,
        typer.Option(help="Resolution of the picture for the target, in pixels per inch."),
    ] = None
    password: Annotated[str | None, typer.Option(help="Password of encrypted files.")] = None
    page_timeout: Annotated[
        float | None, typer.Option(help="Time limit of a page in seconds; its answer ends there.")
    ] = None
    on_loop: Annotated[
        str, typer.Option(help="`stop` an answer that repeats itself without end, or `ignore` it.")
    ] = "stop"
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt for a page. [default: that of the target]", show_default=False),
    ] = None
    region_prompt: Annotated[
        str | None,
        typer.Option(help="Prompt for a crop. [default: that of the target]", show_default=False),
    ] = None
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Format of the answers, such as markdown or doctags. [default: that of the "
            "target, else Markdown of all text]",
            show_default=False,
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of a page.")
    ] = None
    method: Annotated[
        str, typer.Option(help="`hsd`, `lookup` (no pipeline) or `plain` (no draft tokens).")
    ] = "hsd"
    verify: Annotated[
        bool, typer.Option("--verify", help="Also answer with stock generate, and compare.")
    ] = False


def parse_command(
    inputs: Annotated[list[Path], typer.Argument(help="PDF files, images, or folders of them.")],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder that the results go to. Without it, the Markdown of one document is "
            "printed.",
        ),
    ] = None,
    pages: Annotated[
        str | None, typer.Option(help="Pages to parse, from 1, such as 1-3,7. [default: all]")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            "--skip-existing",
            help="Leave out pages whose results are in the folder, of the same file, settings and "
            "target. Without it, all pages are parsed and written again.",
        ),
    ] = False,
    target: PageTarget = None,
    answers: PageOptions,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    compile: opt.Compile = "no",
    as_json: opt.AsJson = False,
) -> None:
    """Turn documents into Markdown and JSON, each page written or printed as it ends.

    Without --target, the text is that of the documents themselves, or what is recognized on their
    pictures. With --target, a document model reads the pages. The exit status is 1 if pages failed
    or differ from stock generate, if an answer has nothing in common with the text of its page, or
    if no text was found at all, and 2 if nothing could begin.
    """
    from draftlens.cli.parse_pages import ParseRun, parse_files
    from draftlens.documents.settings import ParseSettings

    run = ParseRun(
        settings=ParseSettings(pages=pages, **asdict(answers)),
        target=target,
        loading=loading,
        limits=opt.parse_limits(limits),
        calibrate=calibrate,
        compile=opt.parse_compile(compile),
        as_json=as_json,
    )
    parse_files(inputs, out, resume, run)
