"""The command `draftlens parse`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.options import PLAIN, Loading, option
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO


@dataclass(frozen=True)
class PageOptions:
    """How pages are read and answered: fields of `draftlens.ParseSettings`.

    Args:
        drafter: Reader of the text, or of the drafts of a target: `auto` (the text layer, else
            optical character recognition), `none`, or readers such as `text-layer`, `tesseract`,
            `rapidocr`, several of them with commas between; with --target also a JSON file of
            Docling, MinerU or PP-StructureV3, or a folder of them.
        layout: Layout that divides pages into regions: `auto` or a name.
        ocr_languages: Languages of scans and pictures, as names of tesseract's data, joined by +,
            such as deu+eng. [default: those that are installed of the pages' script, at most three]
        running_heads: Keep running heads and feet and page numbers. Not with --target, whose prompt
            decides.
        pictures: Write the pictures of pages beside their Markdown, which names them. Needs --out;
            not with --target.
        stages: `page`, or `regions` (crops of the page's regions alone, which is not exact).
        tolerance: 1 keeps the tokens of stock generate; below 1, draft tokens may replace somewhat
            likelier ones, which is not exact.
        batch: Number of pages that are answered together.
        dpi: Resolution of the picture for the target, in pixels per inch.
        password: Password of encrypted files.
        page_timeout: Time limit of a page in seconds; its answer ends there.
        on_loop: `stop` an answer that repeats itself without end, or `ignore` it.
        prompt: Prompt for a page. [default: that of the target]
        region_prompt: Prompt for a crop. [default: that of the target]
        form: Format of the answers, such as markdown or doctags. [default: that of the target, else
            Markdown]
        max_new_tokens: Maximum number of tokens of a page.
        method: `hsd`, `lookup` (no pipeline) or `plain` (no draft tokens).
        verify: Also answer with stock generate, and compare.
    """

    drafter: str = "auto"
    layout: str = "auto"
    ocr_languages: str | None = option(None, show_default=False)
    running_heads: bool = False
    pictures: bool = False
    stages: str = "page"
    tolerance: float = 1.0
    batch: int = 1
    dpi: float | None = None
    password: str | None = None
    page_timeout: float | None = None
    on_loop: str = "stop"
    prompt: str | None = option(None, show_default=False)
    region_prompt: str | None = option(None, show_default=False)
    form: str | None = option(None, "--format", show_default=False)
    max_new_tokens: int | None = option(None, min=1)
    method: str = "hsd"
    verify: bool = False


def parse_command(
    inputs: list[Path],
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o")] = None,
    pages: str | None = None,
    resume: Annotated[bool, typer.Option("--resume", "--skip-existing")] = False,
    target: Annotated[str | None, typer.Option("--target", "-t")] = None,
    answers: PageOptions,
    loading: Loading = PLAIN,
    limits: str | None = None,
    calibrate: bool = True,
    compile: str = AUTO,
    as_json: bool = False,
) -> None:
    """Turn documents into Markdown and JSON, each page written or printed as it ends.

    Without --target, the text is that of the documents themselves, or what is recognized on their
    pictures. With --target, a document model reads the pages. The exit status is 1 if pages failed
    or differ from stock generate, if an answer has nothing in common with the text of its page, or
    if no text was found at all, and 2 if nothing could begin.

    Args:
        inputs: PDF files, images, or folders of them.
        out: Folder that the results go to. Without it, the Markdown of one document is printed.
        pages: Pages to parse, from 1, such as 1-3,7. [default: all]
        resume: Leave out pages whose results are in the folder, of the same file, settings and
            target. Without it, all pages are parsed and written again.
        target: Document model that reads the pages: a folder or a Hub id of a vision-language
            model, or `reader` for the toy of draftlens-lab. Without it, the text is that of the
            text layer, or else of optical character recognition.
    """
    if answers.pictures and out is None:
        raise ConfigError("--pictures needs a folder for them: -o")
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
