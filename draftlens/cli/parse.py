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
        help="Document model: a folder or a Hub id of a vision-language model. The default is the "
        "reader in the package.",
    ),
]


@dataclass(frozen=True)
class PageOptions:
    """How pages are drafted and answered: fields of `draftlens.parsing.ParseSettings`."""

    drafter: Annotated[
        str,
        typer.Option(
            help="What drafts are made of: `auto` (the text layer, else optical character "
            "recognition), `none`, or readers such as `text-layer`, `tesseract`, `rapidocr`, "
            "several of them with commas between.",
        ),
    ] = "auto"
    layout: Annotated[
        str, typer.Option(help="What divides pages into regions: `auto`, or a layout's name.")
    ] = "auto"
    stages: Annotated[
        str,
        typer.Option(
            help="`page`, `regions+page` (the regions' crops first), `regions` (these alone, which "
            "is not exact), or `auto`, which measures."
        ),
    ] = "auto"
    tolerance: Annotated[
        float,
        typer.Option(
            help="1 keeps the tokens of stock generate; below 1, drafted tokens may stand instead "
            "of somewhat likelier ones, which is not exact."
        ),
    ] = 1.0
    batch: Annotated[int, typer.Option(help="Pages that are answered at once.")] = 1
    dpi: Annotated[
        float | None, typer.Option(help="Pixels an inch of the picture that the target sees.")
    ] = None
    password: Annotated[str | None, typer.Option(help="Password of encrypted files.")] = None
    page_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a page's answer ends where it is.")
    ] = None
    on_loop: Annotated[
        str, typer.Option(help="`stop` an answer that repeats itself for ever, or `ignore` that.")
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
            "--format", help="Format of the target's answers, such as markdown or doctags."
        ),
    ] = None
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of a page.")
    ] = None
    method: Annotated[
        str, typer.Option(help="`hsd`, `lookup` (no pipeline) or `plain` (no guesses).")
    ] = "hsd"
    verify: Annotated[
        bool, typer.Option("--verify", help="Let stock generate answer, too, and compare.")
    ] = False


def parse(
    inputs: Annotated[list[Path], typer.Argument(help="PDF files, images, or folders of them.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder that the results go to.")],
    pages: Annotated[
        str | None, typer.Option(help="Pages to parse, from 1, such as 1-3,7. [default: all]")
    ] = None,
    skip_existing: Annotated[
        bool,
        typer.Option(
            "--skip-existing",
            help="Leave out pages whose results are there, of the same file, settings and target.",
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
    """Turn documents into Markdown and JSON, each page written as it ends.

    The exit status is 1 if pages failed or differ from stock generate, and 2 if nothing could
    begin.
    """
    from draftlens.cli.parse_pages import parse_files
    from draftlens.parsing import ParseSettings

    parse_files(
        inputs,
        out,
        ParseSettings(pages=pages, **asdict(answers)),
        target=target,
        loading=loading,
        limits=limits,
        skip_existing=skip_existing,
        calibrate=calibrate,
        compile=opt.parse_compile(compile),
        as_json=as_json,
    )
