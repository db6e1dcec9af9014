"""Documents to Markdown without a model: the pipeline's text is the answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from math import ceil
from pathlib import Path

from PIL import Image

from draftlens.core.errors import DraftlensError
from draftlens.core.stats import Lane, Stats
from draftlens.documents.drafting import (
    DraftedPage,
    PageFilter,
    drafted_pages,
    every_page,
    standard_pipeline,
)
from draftlens.documents.reading.formats import Canvas, DraftFormat, make_format
from draftlens.documents.reading.formats.markdown import Markdown
from draftlens.documents.reading.geometry import POINTS_PER_INCH, Box
from draftlens.documents.reading.page import Page, Region, in_order
from draftlens.documents.reading.pipeline import (
    OCR_BY_PREFERENCE,
    LayoutPipeline,
)
from draftlens.documents.reading.readers import READING_DPI, TEXT_LAYER
from draftlens.documents.results import NO_SOURCE, ParsedPage, ParsedRegion, picture_name
from draftlens.documents.settings import ParseSettings
from draftlens.media import Limits

SOURCE_OF = {TEXT_LAYER: "text layer", **dict.fromkeys(OCR_BY_PREFERENCE, "ocr")}
"""`ParsedPage.source` by the names of readers; other readers keep their name."""

_CONTROL = {
    **dict.fromkeys({*range(0x20), 0x7F} - {ord("\t"), ord("\n")}, ""),
    **{code: bytes([code]).decode("cp1252", "ignore") for code in range(0x80, 0xA0)},
}
"""Control characters are removed, except those that are quotation marks and dashes of Windows-1252,
as in many PDF files, which are replaced."""


_INSIDE = 0.8
"""Share of a region in a figure from which it is a part of it."""

_MOST_TEXT = 0.5
"""Share of a figure's height with words beside each other from which it is a form."""


class PipelineParser:
    """Parses documents by a pipeline alone; the counterpart of `DocumentParser`.

    By default the pipeline is the one that the settings describe.

    Raises:
        ConfigError: a setting needs a target, or a reader or layout is unknown or not installed.
    """

    def __init__(
        self,
        settings: ParseSettings | None = None,
        pipeline: LayoutPipeline | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.settings = settings or ParseSettings()
        self.settings.check_without_target()
        self.limits = limits
        self.notes: list[str] = []
        form = self.settings.form
        left_out = () if self.settings.running_heads else ("header", "footer")
        self._form: DraftFormat = Markdown(left_out) if form is None else make_format(form)
        layout_pipeline = (
            standard_pipeline(self.settings, alone=True) if pipeline is None else pipeline
        )
        assert layout_pipeline is not None  # "none" is refused above
        self.pipeline = layout_pipeline

    def parse(
        self, inputs: str | Path | Iterable[str | Path], wanted: PageFilter = every_page
    ) -> Iterator[ParsedPage]:
        """The pages of documents as they are read; as `DocumentParser.parse`."""
        return self._parsed(drafted_pages(inputs, self._read, self.settings, self.limits, wanted))

    def _parsed(self, pages: Iterator[DraftedPage]) -> Iterator[ParsedPage]:
        with closing(pages):  # type: ignore[type-var]
            for page in pages:
                is_blank = page.error is None and page.picture is not None and page.is_blank
                yield page.unanswered() if page.error or is_blank else self._answer(page)

    def _read(self, page: Page) -> DraftedPage:
        """Read a page; it is rendered only if no text was found, to detect a blank page."""
        seconds: dict[str, float] = defaultdict(float)
        lane = Lane(seconds)
        regions: Sequence[Region] = ()
        refusal: DraftlensError | None = None
        try:
            regions = in_order(self.pipeline.read(page, lane.phase))
        except DraftlensError as error:
            refusal = error
        picture = None
        has_pictures = self.settings.pictures and any(
            _is_picture(region, regions) for region in regions
        )
        if has_pictures or not any(region.texts for region in regions):
            with lane.phase("render"):
                picture = page.picture(READING_DPI if has_pictures else POINTS_PER_INCH)
        read = DraftedPage(
            page.source, page.number, page.box, picture, tuple(regions), dict(seconds)
        )
        if refusal is not None and not read.is_blank:
            raise refusal
        return read

    def _answer(self, page: DraftedPage) -> ParsedPage:
        canvas = Canvas(page.box, ceil(page.box.width), ceil(page.box.height))
        texts = {place: self._text(region) for place, region in enumerate(page.regions)}
        pictures = _pictures(page) if self.settings.pictures else {}
        names = {place: picture_name(page.number, count) for count, place in enumerate(pictures, 1)}
        texts |= {place: f"![]({name})" for place, name in names.items()}
        parts = [(page.regions[place], text) for place, text in texts.items() if text]
        markdown = self._form.page(parts, canvas)
        stats = Stats()
        stats.phases.update(page.seconds)
        regions = []
        cursor = 0
        for place, region in enumerate(page.regions):
            span = _span(markdown, texts[place], cursor)
            cursor = cursor if span is None else span[1]
            regions.append(ParsedRegion(region, span, picture=names.get(place)))
        readers = [region.texts[0].source for region, _ in parts if region.texts]
        sources = dict.fromkeys(SOURCE_OF.get(reader, reader) for reader in readers)
        return ParsedPage(
            file=page.source,
            number=page.number,
            markdown=markdown,
            ended="read",
            source=", ".join(sources) or NO_SOURCE,
            box=page.box,
            regions=tuple(regions),
            pictures={names[place]: picture for place, picture in pictures.items()},
            stats=stats,
        )

    def _text(self, region: Region) -> str:
        """A region by the most trusted reader; empty if the answer's format omits it."""
        ways = self._form.region(region, region.texts[0]) if region.texts else []
        return ways[0].translate(_CONTROL) if ways else ""


def _is_picture(region: Region, regions: Sequence[Region]) -> bool:
    """Whether a layout has found a picture rather than a form. The words in one are regions of
    their own, which cover most of the height of a form."""
    if region.kind != "figure" or region.texts:
        return False
    words = [each.box for each in regions if each.texts and each.box.share_in(region.box) > _INSIDE]
    height = sum(bottom - top for top, bottom in _joined(words))
    return height < _MOST_TEXT * region.box.height


def _joined(boxes: Sequence[Box]) -> list[tuple[float, float]]:
    """Tops and bottoms of boxes, those that overlap as one."""
    spans: list[tuple[float, float]] = []
    for box in sorted(boxes, key=lambda box: box.top):
        top, bottom = spans.pop() if spans and box.top <= spans[-1][1] else (box.top, box.top)
        spans.append((top, max(bottom, box.bottom)))
    return spans


def _pictures(page: DraftedPage) -> dict[int, Image.Image]:
    """The pictures of a page by the places of their regions."""
    pictures = {}
    for place, region in enumerate(page.regions):
        if page.picture is not None and _is_picture(region, page.regions):
            box = region.box.within(page.box).scaled(page.picture.width / page.box.width)
            edges = (int(box.left), int(box.top), ceil(box.right), ceil(box.bottom))
            pictures[place] = page.picture.crop(edges)
    return pictures


def _span(markdown: str, text: str, cursor: int) -> tuple[int, int] | None:
    """The place of a region's text in the page; None where the format has rewritten it."""
    region_text = text.strip()
    begin = markdown.find(region_text, cursor) if region_text else -1
    return None if begin < 0 else (begin, begin + len(region_text))
