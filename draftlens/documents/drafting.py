"""From pages of files to the target's input: picture and drafts, one page ahead."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from PIL import Image

from draftlens.core.errors import DraftlensError, MediaError
from draftlens.core.stats import Lane
from draftlens.documents.reading.formats import Canvas, DraftFormat
from draftlens.documents.reading.formats.base import draft_sources
from draftlens.documents.reading.geometry import NOWHERE, Box
from draftlens.documents.reading.open import Document, PageNumbers, find_files, open_document
from draftlens.documents.reading.page import Page, Region, in_order
from draftlens.documents.reading.pipeline import (
    LayoutPipeline,
    StandardPipeline,
    parse_readers,
)
from draftlens.documents.reading.readers import TESSERACT
from draftlens.documents.reading.targets import TargetProfile
from draftlens.documents.results import ParsedPage
from draftlens.documents.settings import ParseSettings
from draftlens.media import Limits
from draftlens.media.limits import refusal
from draftlens.media.reader import MediaReader

MOST_SHRUNK = 3.0
"""A page that must be rendered this many times smaller than usual gets a note."""

MOST_PROBES = 1000
"""Number of missing pages of a file that are tried individually."""


PageFilter = Callable[[str, int], bool]
"""Whether a page, given by file and number, has to be parsed."""


def every_page(source: str, number: int) -> bool:
    return True


def documents_of(inputs: str | Path | Iterable[str | Path]) -> list[str]:
    """Files among inputs and in their folders; raises MediaError for a folder without documents."""
    paths = [inputs] if isinstance(inputs, str | Path) else inputs
    return [str(path) for path in find_files(paths)]


@dataclass(frozen=True)
class DraftedPage:
    """A page before the target reads it.

    Args:
        number: of the page, from 1; 0 for the whole file.
        box: the page, in points.
        picture: for the target; None if the page failed, or without a target if it holds text.
        regions: texts of the pipeline, in reading order.
        seconds: of the pipeline, by phase.
        error: why the page cannot be read, as a sentence.
        note: a problem that does not change the answer, as a sentence.
    """

    source: str
    number: int
    box: Box = NOWHERE
    picture: Image.Image | None = None
    regions: tuple[Region, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    note: str | None = None

    @property
    def canvas(self) -> Canvas:
        assert self.picture is not None
        width, height = self.picture.size
        return Canvas(self.box, width, height)

    @property
    def is_blank(self) -> bool:
        """Whether the picture has one grey level only."""
        assert self.picture is not None
        grey = self.picture.convert("L").getextrema()
        return grey[0] == grey[1]

    def unanswered(self) -> ParsedPage:
        """The result of a page that failed or is blank."""
        if self.error is not None:
            return self.failed(self.error)
        return ParsedPage(self.source, self.number, ended="blank", box=self.box)

    def failed(self, sentence: str) -> ParsedPage:
        return ParsedPage(self.source, self.number, ended="failed", box=self.box, error=sentence)

    def drafts(self, form: DraftFormat) -> list[str]:
        """Drafts in the target's format."""
        return list(self.sources(form))

    def sources(self, form: DraftFormat) -> dict[str, str]:
        """The drafts with their sources (`formats.base.draft_sources`)."""
        return draft_sources(form, self.regions, self.canvas)


def standard_pipeline(settings: ParseSettings, alone: bool = False) -> StandardPipeline | None:
    """The pipeline of the settings, None without drafts. `alone`: its texts are the answer."""
    readers = settings.drafter
    if isinstance(readers, str):
        readers = parse_readers(readers)
    tesseract = {"name": TESSERACT, "languages": settings.ocr_languages}
    ocr = tesseract if settings.ocr_languages else None
    if ocr and not isinstance(readers, str):
        readers = [ocr if each == TESSERACT else each for each in readers]
    return None if readers == "none" else StandardPipeline(readers, settings.layout, alone, ocr)


@runtime_checkable
class PipelineWithNotes(Protocol):
    """A pipeline that says how it has read a page."""

    def take_note(self) -> str | None:
        """A sentence about the last page, once; None if there is nothing to say."""
        ...


def drafted_pages(
    inputs: str | Path | Iterable[str | Path],
    draft: Callable[[Page], DraftedPage],
    settings: ParseSettings,
    limits: Limits | None = None,
    wanted: PageFilter = every_page,
) -> Iterator[DraftedPage]:
    """The pages of documents in order; a page that cannot be read has an error.

    Raises MediaError for a folder without documents when called, before any page.
    """
    return _pages(documents_of(inputs), draft, settings, limits or Limits(), wanted)


def _pages(
    files: Sequence[str],
    draft: Callable[[Page], DraftedPage],
    settings: ParseSettings,
    limits: Limits,
    wanted: PageFilter,
) -> Iterator[DraftedPage]:
    with closing(MediaReader(limits.max_page_s)) as reader:
        for file in files:
            try:
                document = open_document(file, settings.password, limits, reader)
            except MediaError as error:
                yield DraftedPage(file, 0, error=str(error))
                continue
            with closing(document):
                yield from _pages_of(document, draft, settings.page_numbers, wanted)


def _pages_of(
    document: Document,
    draft: Callable[[Page], DraftedPage],
    numbers: PageNumbers,
    wanted: PageFilter,
) -> Iterator[DraftedPage]:
    source = document.source
    for number in numbers.beyond(document.num_pages):
        cause = f"the file has {document.num_pages} pages"
        yield DraftedPage(source, number, error=str(refusal(f"{source}, page {number}", cause)))
    page_numbers = [n for n in numbers.of(document.num_pages) if wanted(source, n)]
    place = 0
    while place < len(page_numbers):
        number = page_numbers[place]
        try:
            page = document.page(number)
        except MediaError as error:
            count = _missing(document, page_numbers[place:])
            yield DraftedPage(source, number, error=_absence(error, page_numbers[place:], count))
            place += count
            continue
        yield _drafted(page, draft)
        place += 1


def _missing(document: Document, numbers: Sequence[int]) -> int:
    """How many of the first of these pages are missing. A file may state a hundred thousand, so
    after `MOST_PROBES` the others count as missing."""
    for count, number in enumerate(numbers[1 : MOST_PROBES + 1], start=1):
        try:
            document.page(number)
        except MediaError:
            continue
        return count
    return len(numbers)


def _absence(error: MediaError, numbers: Sequence[int], count: int) -> str:
    if count == 1:
        return str(error)
    last = numbers[count - 1]
    return f"{error}; nor can the pages up to {last}"


def _drafted(page: Page, draft: Callable[[Page], DraftedPage]) -> DraftedPage:
    try:
        return draft(page)
    except DraftlensError as error:
        return DraftedPage(page.source, page.number, page.box, error=str(error))
    except Exception as error:  # a library or a user's pipeline; other pages must go on
        sentence = f"{page.source}, page {page.number}: {type(error).__name__}: {error}"
        return DraftedPage(page.source, page.number, page.box, error=sentence)


class PageDrafter:
    """Renders pages within the profile's bounds and reads them with the pipeline, if any."""

    def __init__(self, pipeline: LayoutPipeline | None, profile: TargetProfile) -> None:
        self.pipeline = pipeline
        self.profile = profile

    def __call__(self, page: Page) -> DraftedPage:
        """Raises MediaError if the page cannot be rendered."""
        seconds: dict[str, float] = defaultdict(float)
        lane = Lane(seconds)
        with lane.phase("render"):
            picture = page.picture(self.profile.dpi_of(page.box))
        regions: Sequence[Region] = ()
        note = self._smallness(page)
        if self.pipeline is not None:
            try:
                regions = in_order(self.pipeline.read(page, lane.phase))
            except Exception as error:  # drafts never cost an answer
                note = f"{page.source}, page {page.number} has no drafts: {error}"
            if isinstance(self.pipeline, PipelineWithNotes):
                note = self.pipeline.take_note() or note
        return DraftedPage(
            source=page.source,
            number=page.number,
            box=page.box,
            picture=picture,
            regions=tuple(regions),
            seconds=dict(seconds),
            note=note,
        )

    def _smallness(self, page: Page) -> str | None:
        """A note about a page that is too large for the usual resolution."""
        dpi = self.profile.dpi_of(page.box)
        if dpi * MOST_SHRUNK >= self.profile.dpi:
            return None
        size = f"{page.box.width:g} x {page.box.height:g} points"
        return (
            f"{page.source}, page {page.number} has {size}: the target sees it at {dpi:.3g} "
            f"pixels an inch instead of {self.profile.dpi:g}"
        )


Item = TypeVar("Item")

_END = object()


def one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items; a thread makes the next one while the consumer works on the current one.

    At most one item is made ahead. The iterator's exceptions are raised in its turn; a consumer
    that stops early waits for the item that is being made.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="draftlens-pages") as pool:
        future = pool.submit(next, items, _END)
        while True:
            item = future.result()
            if item is _END:
                return
            future = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]
