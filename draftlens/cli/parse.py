"""The command `draftlens parse`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from draftlens.api import Engine
from draftlens.cli import options as opt
from draftlens.cli.loading import NO_DRAFT, load_engine, make_folder
from draftlens.cli.progress import spinner
from draftlens.cli.show import console, error_console, print_json
from draftlens.core.errors import ConfigError, MediaError
from draftlens.documents.open import find_files
from draftlens.parsing import DocumentParser, ParsedPage, ParseSettings
from draftlens.parsing.output import OutputFolder, describe_target
from draftlens.parsing.reader import reader_path

PageTarget = Annotated[
    str | None,
    typer.Option(
        "--target",
        "-t",
        help="Document model: a folder or a Hub id of a vision-language model. The default is the "
        "reader in the package.",
    ),
]


@dataclass
class Tally:
    """What has become of the pages.

    Args:
        pages: results as JSON values without their texts, where they are kept.
        parsed: pages that were answered.
        failed: pages and files that were not, or that differ from stock `generate`.
    """

    pages: list[dict[str, Any]] = field(default_factory=list)
    parsed: int = 0
    failed: int = 0
    skipped: int = 0


def parse(
    inputs: Annotated[list[Path], typer.Argument(help="PDF files, images, or folders of them.")],
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
    drafter: Annotated[
        str,
        typer.Option(
            help="What drafts are made of: `auto` (the text layer, else optical character "
            "recognition), `none`, or readers such as `text-layer`, `tesseract`, `rapidocr`, "
            "several of them with commas between.",
        ),
    ] = "auto",
    layout: Annotated[
        str, typer.Option(help="What divides pages into regions: `auto`, or a layout's name.")
    ] = "auto",
    stages: Annotated[
        str,
        typer.Option(
            help="`page`, `regions+page` (the regions' crops first), `regions` (these alone, which "
            "is not exact), or `auto`, which measures."
        ),
    ] = "auto",
    tolerance: Annotated[
        float,
        typer.Option(
            help="1 keeps the tokens of stock generate; below 1, drafted tokens may stand instead "
            "of somewhat likelier ones, which is not exact."
        ),
    ] = 1.0,
    batch: Annotated[int, typer.Option(help="Pages that are answered at once.")] = 1,
    dpi: Annotated[
        float | None, typer.Option(help="Pixels an inch of the picture that the target sees.")
    ] = None,
    password: Annotated[str | None, typer.Option(help="Password of encrypted files.")] = None,
    page_timeout: Annotated[
        float | None, typer.Option(help="Seconds after which a page's answer ends where it is.")
    ] = None,
    on_loop: Annotated[
        str, typer.Option(help="`stop` an answer that repeats itself for ever, or `ignore` that.")
    ] = "stop",
    prompt: Annotated[
        str | None,
        typer.Option(help="Prompt for a page. [default: that of the target]", show_default=False),
    ] = None,
    region_prompt: Annotated[
        str | None,
        typer.Option(help="Prompt for a crop. [default: that of the target]", show_default=False),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", help="Format of the target's answers, such as markdown or doctags."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens of a page.")
    ] = None,
    method: Annotated[
        str, typer.Option(help="`hsd`, `lookup` (no pipeline) or `plain` (no guesses).")
    ] = "hsd",
    verify: Annotated[
        bool, typer.Option("--verify", help="Let stock generate answer, too, and compare.")
    ] = False,
    device: opt.Device = None,
    dtype: opt.Dtype = None,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
    as_json: opt.AsJson = False,
) -> None:
    """Turn documents into Markdown and JSON, each page written as it ends.

    The exit status is 1 if pages failed or differ from stock generate, and 2 if nothing could
    begin.
    """
    settings = ParseSettings(
        pages=pages,
        drafter=drafter,
        layout=layout,
        stages=stages,
        tolerance=tolerance,
        batch=batch,
        dpi=dpi,
        password=password,
        page_timeout=page_timeout,
        on_loop=on_loop,
        prompt=prompt,
        region_prompt=region_prompt,
        form=form,
        max_new_tokens=max_new_tokens,
        method=method,
        verify=verify,
    )
    media_limits = opt.parse_limits(limits)
    files = _readable(inputs)
    make_folder(out)
    name = target if target is not None else reader_path()
    engine = load_engine(name, NO_DRAFT, "plain", device, dtype, as_json, calibrate=False)
    parser = DocumentParser(engine, settings, limits=media_limits)
    if calibrate:
        parser.calibrate()
    folder = OutputFolder(out, inputs, _answers(engine, settings))
    tally = _run(parser, files, folder, skip_existing, as_json)
    if as_json:
        counts = {"parsed": tally.parsed, "failed": tally.failed, "skipped": tally.skipped}
        print_json({**counts, "pages": tally.pages})
    else:
        console.print(
            f"{tally.parsed} pages parsed, {tally.skipped} left out, {tally.failed} failed: {out}",
            markup=False,
            soft_wrap=True,
        )
    if not tally.parsed and not tally.skipped:
        raise typer.Exit(2)
    if tally.failed:
        raise typer.Exit(1)


def _readable(inputs: list[Path]) -> list[Path]:
    """The files of the command line. An input that is not there does not stop the others.

    Raises:
        MediaError: not one is there.
    """
    missing = [path for path in inputs if not path.exists()]
    if len(missing) == len(inputs):
        raise MediaError(f"cannot read {missing[0]}: there is no such file or folder")
    return find_files(inputs)


def _answers(engine: Engine, settings: ParseSettings) -> dict[str, Any]:
    return {"settings": settings.of_answers(), "target": describe_target(engine.target)}


def _run(
    parser: DocumentParser,
    files: list[Path],
    folder: OutputFolder,
    skip_existing: bool,
    quiet: bool,
) -> Tally:
    """Parse, write and report pages one after the other.

    What has been written stays when the command is interrupted, and the documents so far are put
    together.
    """
    tally = Tally()

    def is_wanted(source: str, number: int) -> bool:
        if skip_existing and folder.has(source, number):
            tally.skipped += 1
            return False
        return True

    done: list[str] = []
    try:
        for page in _with_spinner(parser.parse(files, is_wanted), quiet):
            if page.source not in done:
                done.append(page.source)
            _keep(page, folder, tally)
            if not quiet:
                _report(page)
            while parser.notes:
                note = parser.notes.pop(0)
                error_console.print(f"note: {note}", markup=False, soft_wrap=True)
    finally:
        for source in done:
            folder.join(source)
    return tally


def _with_spinner(pages: Iterator[ParsedPage], quiet: bool) -> Iterator[ParsedPage]:
    """The same pages; a spinner is shown while one is awaited."""
    while True:
        with spinner("reading", quiet):
            page = next(pages, None)
        if page is None:
            return
        yield page


def _keep(page: ParsedPage, folder: OutputFolder, tally: Tally) -> None:
    """Write a page and count it.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.write(page)
    except OSError as error:
        raise ConfigError(f"cannot write {page.name} to {folder.folder}: {error}") from error
    failed = page.error is not None or (page.differs and page.lossless)
    tally.failed += failed
    tally.parsed += page.error is None
    summary = page.to_dict()
    for name in ("markdown", "regions", "stats"):
        del summary[name]
    tally.pages.append(summary)


def _report(page: ParsedPage) -> None:
    """Print a line about a page."""
    if page.error is not None:
        error_console.print(f"failed: {page.error}", style="red", markup=False, soft_wrap=True)
        return
    parts = [f"{len(page.tokens)} tokens"]
    if page.tokens:
        parts.append(f"{page.stats.e2e:.1f} s")
        parts.append(f"{page.stats.mean_acceptance_length:.1f} tokens a pass")
    if page.ended not in ("end", "regions"):
        parts.append(f"ended by {page.ended}" if page.ended != "blank" else "blank")
    if page.approximate:
        parts.append(f"not exact: {', '.join(page.approximate)}")
    if page.verification is not None:
        parts.append(_comparison(page))
    console.print(f"{page.name}: {', '.join(parts)}", markup=False, soft_wrap=True)


def _comparison(page: ParsedPage) -> str:
    assert page.verification is not None
    if not page.differs:
        return "identical to stock generate"
    difference = page.verification["first_divergence"]
    margin = difference["margin"]
    near = "" if margin is None else f", with a logit margin of {margin:.3g}"
    return (
        f"differs from stock generate at token {difference['index']} "
        f"({difference['stock']} there, {difference['ours']} here){near}"
    )
