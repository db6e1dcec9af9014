"""What the command `draftlens parse` does. torch is imported only where a target is named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from draftlens.cli.options import NO_DRAFT, Loading
from draftlens.cli.parse_progress import ParseProgress
from draftlens.cli.show import console, near_tie, print_json, say
from draftlens.core.errors import ConfigError, MediaError
from draftlens.core.names import AUTO, READER
from draftlens.documents.drafting import every_page
from draftlens.documents.output import OutputFolder, describe_target, document_name
from draftlens.documents.pipeline_parser import PipelineParser
from draftlens.documents.reading.open import find_files, open_document
from draftlens.documents.results import NO_SOURCE, ParsedPage
from draftlens.documents.settings import OF_READING, ParseSettings, needs_target
from draftlens.media import Limits

if TYPE_CHECKING:
    from draftlens.documents.run import DocumentParser

TOY = (
    "the reader is a toy for measuring, which knows the pages of one generator only: its answers "
    "about other documents are wrong; leave out --target for the text that the documents hold, or "
    "name a document model"
)

_TEXTS = ("markdown", "regions", "stats")
"""What a summary of pages leaves out where these are in files of their own."""

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class ParseRun:
    """What is parsed, and how; the fields are the options of the command.

    Args:
        target: name of the document model; None for the pipeline alone.
        as_json: whether nothing but JSON is printed.
    """

    settings: ParseSettings
    target: str | None
    loading: Loading
    limits: Limits
    calibrate: bool
    compile: Any
    as_json: bool

    @property
    def note(self) -> str | None:
        """What a user of the answers should know of the target."""
        return TOY if self.target == READER else None

    def check(self) -> None:
        """Refuse options of a target where there is none."""
        if self.target is not None:
            return
        self.settings.check_without_target()
        compile = None if self.compile == AUTO else self.compile or None
        for name, value in {**self.loading, "compile": compile}.items():
            if value is not None:
                raise needs_target(name, value)

    def load(self) -> tuple[PipelineParser | DocumentParser, dict[str, Any]]:
        """The parser, and what its answers depend on beside the documents, as JSON values."""
        if self.target is None:
            options = self.settings.of_answers()
            used = {name: options[name] for name in OF_READING if name in options}
            parser = PipelineParser(self.settings, limits=self.limits)
            return parser, {"settings": used, "target": None}

        from draftlens.cli.loading import engine_of
        from draftlens.documents.run import DocumentParser

        if self.note is not None:
            _log.warning(self.note)
        decoding: dict[str, Any] = {"target": self.target, "draft": NO_DRAFT, "method": "plain"}
        decoding |= {"calibrate": False, "compile": self.compile}
        engine = engine_of(decoding, self.loading, self.as_json)
        asking = DocumentParser(engine, self.settings, limits=self.limits)
        if self.calibrate:
            asking.calibrate()
        target = describe_target(engine.target)
        return asking, {"settings": self.settings.of_answers(), "target": target}


@dataclass
class PageCounts:
    """What has become of the pages.

    Args:
        parsed: pages with an answer that is not doubtful, and blank pages.
        doubtful: pages whose answer is not the text of the page (`ParsedPage.doubt`).
        failed: pages and files that were not parsed, or that differ from stock `generate`.
        pages: their JSON values, if `keeps_pages`: a folder may have very many.
        has_text: whether a page has text.
    """

    keeps_pages: bool = False

    parsed: int = 0
    doubtful: int = 0
    failed: int = 0
    skipped: int = 0
    pages: list[dict[str, Any]] = field(default_factory=list)
    has_text: bool = False

    def count(self, page: ParsedPage, without: Iterable[str] = ()) -> None:
        """Count a page; its JSON values are kept but for some."""
        self.failed += page.error is not None or (page.differs and page.lossless is True)
        self.parsed += page.error is None and page.doubt is None
        self.doubtful += page.doubt is not None
        self.has_text |= bool(page.markdown.strip())
        if self.keeps_pages:
            values = page.to_dict()
            self.pages.append({name: values[name] for name in values if name not in without})

    def to_dict(self) -> dict[str, Any]:
        names = ("parsed", "doubtful", "failed", "skipped", "pages")
        return {name: getattr(self, name) for name in names}


def parse_files(inputs: list[Path], out: Path | None, resume: bool, run: ParseRun) -> None:
    """Parse files, and write or print their pages.

    Args:
        out: folder of the results; None to print them.
    """
    run.check()
    files = _readable(inputs)
    if out is None:
        tally = _print_pages(files, resume, run)
    else:
        tally = _write_pages(files, out, resume, run)
    if run.as_json:
        print_json({**tally.to_dict(), "note": run.note})
    elif out is not None:
        is_one = len(files) == 1 and tally.parsed + tally.doubtful
        place = out / f"{document_name(files[0])}.md" if is_one else out
        doubtful = f"{tally.doubtful} doubtful, " if tally.doubtful else ""
        pages = "1 page" if tally.parsed == 1 else f"{tally.parsed} pages"
        counts = f"{pages} parsed, {doubtful}{tally.skipped} left out"
        say(f"{counts}, {tally.failed} failed: {place}", on=console)
    if not (tally.parsed or tally.doubtful or tally.skipped):
        raise typer.Exit(2)
    is_empty = not (tally.has_text or tally.failed or tally.skipped)
    if is_empty:
        names = files[0] if len(files) == 1 else f"the {len(files)} documents"
        say(f"no text was found in {names}")
    if tally.failed or tally.doubtful or is_empty:
        raise typer.Exit(1)


def _readable(inputs: list[Path]) -> list[str]:
    """The files of the command line, each once. An input that is not there does not stop the
    others."""
    missing = [path for path in inputs if not path.exists()]
    if len(missing) == len(inputs):
        raise MediaError(f"cannot read {missing[0]}: there is no such file or folder")
    return list(dict.fromkeys(map(str, find_files(inputs))))


def _print_pages(files: list[str], resume: bool, run: ParseRun) -> PageCounts:
    if resume:
        raise ConfigError("--resume needs --out, the folder of the pages that are there")
    if len(files) > 1:
        raise ConfigError(f"{len(files)} documents need --out, the folder that their pages go to")
    _check_opening(files, run)
    parser, _ = run.load()
    tally = PageCounts(run.as_json)
    progress = ParseProgress(files)
    for page in progress.shown(parser.parse(files, every_page), run.as_json):
        if not run.as_json:
            _print_page(page, is_first=not tally.has_text)
        _print_notes(parser)
        tally.count(page)
    return tally


def _print_page(page: ParsedPage, is_first: bool) -> None:
    if page.error is not None:
        _print_failure(page.error)
        return
    if page.markdown.strip():
        print(page.markdown.strip() if is_first else f"\n{page.markdown.strip()}", flush=True)
    if page.doubt is not None:
        say(f"the answer for {page.name} does not count as parsed: {page.doubt}")


def _write_pages(files: list[str], out: Path, resume: bool, run: ParseRun) -> PageCounts:
    """Write and report pages one after the other.

    What has been written stays when the command is interrupted, and the documents so far are put
    together.
    """
    tally = PageCounts(run.as_json)
    with OutputFolder(out) as folder:
        claimed = _claimed(files, folder, tally, run.as_json)
        if not claimed:
            return tally
        _check_opening(claimed, run)
        parser, options = run.load()
        folder.begin(options)

        def is_wanted(source: str, number: int) -> bool:
            if resume and folder.has(source, number):
                tally.skipped += 1
                return False
            return True

        try:
            _write_all(parser, claimed, is_wanted, folder, tally, run.as_json)
        except KeyboardInterrupt:
            say(f"{tally.parsed} pages are in {out}: --resume goes on with the others")
            raise
    return tally


def _write_all(
    parser: PipelineParser | DocumentParser,
    files: list[str],
    is_wanted: Callable[[str, int], bool],
    folder: OutputFolder,
    tally: PageCounts,
    quiet: bool,
) -> None:
    progress = ParseProgress(files)
    for page in progress.shown(parser.parse(files, is_wanted), quiet):
        try:
            folder.write(page)
        except OSError as error:
            raise ConfigError(f"cannot write {page.name} to {folder.folder}: {error}") from error
        tally.count(page, without=_TEXTS)
        if not quiet:
            _report(page)
        _print_notes(parser)


def _claimed(files: list[str], folder: OutputFolder, tally: PageCounts, quiet: bool) -> list[str]:
    claimed = []
    for file in files:
        try:
            folder.claim(file)
            claimed.append(file)
        except ConfigError as error:
            tally.count(ParsedPage(file, 0, ended="failed", error=str(error)), without=_TEXTS)
            folder.refuse(file, str(error))
            if not quiet:
                _print_failure(str(error))
    return claimed


def _check_opening(files: list[str], run: ParseRun) -> None:
    """Refuse files before a model is loaded, if not one of them can be opened."""
    if run.target is None:
        return
    refusals = []
    for file in files:
        try:
            open_document(file, run.settings.password, run.limits).close()
            return
        except MediaError as error:
            refusals.append(error)
    raise refusals[0]


def _print_notes(parser: PipelineParser | DocumentParser) -> None:
    while parser.notes:
        say(f"note: {parser.notes.pop(0)}")


def _print_failure(sentence: str) -> None:
    say(f"failed: {sentence}", style="red")


def _report(page: ParsedPage) -> None:
    if page.error is not None:
        _print_failure(page.error)
        return
    unread = "no text" if page.ended == "read" else page.ended
    source = unread if page.source == NO_SOURCE else page.source
    parts = _figures(page) if page.by_model else [source]
    if page.doubt is not None:
        parts.append(f"not counted as parsed: {page.doubt}")
    if page.approximate:
        parts.append(f"not exact: {', '.join(page.approximate)}")
    if page.verification is not None:
        parts.append(_comparison(page))
    say(f"{page.name}: {', '.join(parts)}", on=console)


def _figures(page: ParsedPage) -> list[str]:
    parts = [f"{len(page.tokens)} tokens"]
    if page.tokens:
        parts.append(f"{page.stats.e2e:.1f} s")
        parts.append(f"{page.stats.mean_acceptance_length:.1f} tokens a pass")
    if page.ended not in ("end", "regions"):
        parts.append(f"ended by {page.ended}")
    return parts


def _comparison(page: ParsedPage) -> str:
    assert page.verification is not None
    if not page.differs:
        return "identical to stock generate"
    difference = page.verification["first_divergence"]
    near = near_tie(difference["margin"])
    return (
        f"differs from stock generate at token {difference['index']} "
        f"({difference['stock']} there, {difference['ours']} here){near}"
    )
