"""What the command `draftlens parse` does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from draftlens.api import Engine
from draftlens.cli import options as opt
from draftlens.cli.loading import load_engine, make_folder
from draftlens.cli.model_options import NO_DRAFT, Loading
from draftlens.cli.progress import spinner
from draftlens.cli.show import console, error_console, print_json
from draftlens.core.errors import ConfigError, MediaError
from draftlens.core.files import only_writer
from draftlens.documents.open import find_files
from draftlens.parsing import DocumentParser, ParsedPage, ParseSettings
from draftlens.parsing.output import OutputFolder, describe_target
from draftlens.parsing.reader import reader_path

TOY = (
    "the reader in the package is a toy that knows the pages of one generator only: its answers "
    "about other documents are wrong; name a document model with --target"
)

_log = logging.getLogger("draftlens")


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


def parse_files(
    inputs: list[Path],
    out: Path,
    settings: ParseSettings,
    *,
    target: str | None,
    loading: Loading,
    limits: str | None,
    skip_existing: bool,
    calibrate: bool,
    compile: Any,
    as_json: bool,
) -> None:
    """Parse files, write and report their pages; the arguments are the options of the command.

    Raises:
        DraftlensError: nothing can begin.
        typer.Exit: pages failed.
    """
    media_limits = opt.parse_limits(limits)
    files = _readable(inputs)
    make_folder(out)
    name = target
    if name is None:
        name = reader_path()
        _log.warning(TOY)
    engine = load_engine(
        name, NO_DRAFT, "plain", loading, as_json, calibrate=False, compile=compile
    )
    parser = DocumentParser(engine, settings, limits=media_limits)
    if calibrate:
        parser.calibrate()
    folder = OutputFolder(out, inputs, _answers(engine, settings))
    with only_writer(out):
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
