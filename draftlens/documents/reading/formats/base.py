"""The protocol of formats, and drafts of pages from drafts of regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from draftlens.core.options import Registry, make
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import printed

FORMATS = Registry(
    "format",
    {
        "markdown": "draftlens.documents.reading.formats.markdown:Markdown",
        "markdown-html": "draftlens.documents.reading.formats.markdown:MarkdownWithHtmlTables",
        "markdown-yaml": "draftlens.documents.reading.formats.front_matter:WithFrontMatter",
        "grounding": "draftlens.documents.reading.formats.grounding:Grounding",
        "text": "draftlens.documents.reading.formats.plain:PlainText",
        "text-otsl": "draftlens.documents.reading.formats.plain:PlainTextWithOtslTables",
        "layout-json": "draftlens.documents.reading.formats.layout_json:LayoutJson",
        "doctags": "draftlens.documents.reading.formats.doctags:DocTags",
        "doclang": "draftlens.documents.reading.formats.doclang:DocLang",
    },
    group="draftlens.formats",
)


OPENING = "opening"
"""The source of drafts of what stands before the first region."""

_WAYS = 2
"""Variants of a page as one text: broken words closed, or with their hyphens."""


@dataclass(frozen=True)
class Canvas:
    """The target's picture, for formats with places: page in points, width and height in pixels."""

    page: Box
    width: int
    height: int

    def pixels(self, box: Box) -> Box:
        """A box of the page in pixels of the picture."""
        across = self.width / self.page.width
        down = self.height / self.page.height
        return Box(box.left * across, box.top * down, box.right * across, box.bottom * down)


class DraftFormat(Protocol):
    """Writes regions as the target does."""

    separate: bool
    """Whether only white space separates the texts of regions on a page."""

    def region(self, region: Region, text: RegionText) -> list[str]:
        """The variants in which the target may write a region, the likeliest first; empty if it
        would write nothing."""
        ...

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        """The target's likely answer for a page.

        Args:
            parts: regions in reading order, each with one of the texts of `region`, or with the
                target's own answer for its crop.
            canvas: the target's picture.
        """
        ...


@runtime_checkable
class LearningFormat(Protocol):
    """A format that follows the notations of its target."""

    def after(self, answer: str) -> DraftFormat:
        """The format for what follows a finished answer."""
        ...


@runtime_checkable
class FormatWithSpecialTokens(Protocol):
    """A format some of whose marks are special tokens of tokenizers."""

    special_tokens: bool
    """Whether the text of an answer keeps them."""


@runtime_checkable
class FormatWithOpening(Protocol):
    """A format that writes something before the first region."""

    def openings(self, regions: Sequence[Region]) -> list[str]:
        """Its variants, the likeliest first."""
        ...


def make_format(choice: Any) -> DraftFormat:
    """A format from its name, a mapping of its name and options, or itself. Raises ConfigError."""
    form: DraftFormat = make(FORMATS, choice, "page")
    return form


def region_drafts(form: DraftFormat, region: Region) -> list[str]:
    """Different drafts of a region by its readers. A paragraph keeps its printed lines;
    `methods/hsd/reference_text.py` joins them."""
    drafts = [draft for text in region.texts for draft in _drafts_of(form, region, text)]
    return list(dict.fromkeys(drafts))


def _drafts_of(form: DraftFormat, region: Region, text: RegionText) -> list[str]:
    """The printed lines if the target may write them, or else the likeliest variant. Tables and
    formulas are drafts in all notations."""
    ways = [way for way in form.region(region, text) if way]
    lines = printed(text.lines)
    if lines in ways:
        return [lines]
    has_notations = text.latex or (region.kind == "table" and text.rows)
    return ways if has_notations else ways[:1]


def _left_out(form: DraftFormat, region: Region, text: RegionText) -> list[str]:
    """The printed lines of a region that the target leaves out, if the layout is right."""
    return [] if form.region(region, text) else [printed(text.lines)]


def page_drafts(form: DraftFormat, regions: Sequence[Region], canvas: Canvas) -> list[str]:
    """The drafts of a page in the expected order of its answer (`draft_sources`)."""
    return list(draft_sources(form, regions, canvas))


def draft_sources(form: DraftFormat, regions: Sequence[Region], canvas: Canvas) -> dict[str, str]:
    """The drafts of a page, without duplicates, with their sources: the name of a reader, or
    `OPENING`.

    With a format that puts only white space between regions they are the regions' drafts, and then
    what the format leaves out, since a layout may take text for a figure. With other formats they
    are whole pages with texts of each reader.
    """
    drafts: list[tuple[str, str]] = []
    if isinstance(form, FormatWithOpening):
        drafts += [(opening, OPENING) for opening in form.openings(regions)]
    if form.separate:
        for write in (_drafts_of, _left_out):
            for region in regions:
                for text in region.texts:
                    drafts += [(draft, text.source) for draft in write(form, region, text)]
    else:
        drafts += _whole_pages(form, regions, canvas)
    sources: dict[str, str] = {}
    for draft, source in drafts:
        if draft:
            sources.setdefault(draft, source)
    return sources


def _whole_pages(
    form: DraftFormat, regions: Sequence[Region], canvas: Canvas
) -> list[tuple[str, str]]:
    """The page by each reader, with broken words closed and with hyphens, and the reader's name."""
    names = dict.fromkeys(text.source for region in regions for text in region.texts)
    pages = []
    for source in names:
        written = [(region, _ways_of(form, region, source)) for region in regions]
        for way in range(_WAYS):
            parts = [(r, ways[min(way, len(ways) - 1)]) for r, ways in written if ways]
            pages.append((form.page(parts, canvas), source))
    return pages


def _ways_of(form: DraftFormat, region: Region, source: str) -> list[str]:
    """The variants of a region by one reader; by the first one if this one has not read it."""
    read = [text for text in region.texts if text.source == source] or list(region.texts[:1])
    return form.region(region, read[0]) if read else []
