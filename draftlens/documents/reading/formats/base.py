"""The seam of all formats, and drafts of pages from drafts of regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from draftlens.core.options import make
from draftlens.core.registry import Registry
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.values import Region, RegionText
from draftlens.documents.reading.variants import printed

FORMATS = Registry(
    "format",
    {
        "markdown": "draftlens.documents.reading.formats.markdown:Markdown",
        "markdown-html": "draftlens.documents.reading.formats.markdown:MarkdownWithHtmlTables",
        "text": "draftlens.documents.reading.formats.plain:PlainText",
        "layout-json": "draftlens.documents.reading.formats.layout_json:LayoutJson",
        "doctags": "draftlens.documents.reading.formats.doctags:DocTags",
    },
    group="draftlens.formats",
)


ANSWERS = "regions"
"""The source of drafts that are the target's answers for crops."""

NO_ANSWERS: Mapping[int, str] = MappingProxyType({})
"""Of a page whose regions the target has not read."""

_WAYS = 2
"""Ways of writing a page as one text: with broken words put together, and with their hyphens."""


@dataclass(frozen=True)
class Canvas:
    """The picture that a target sees, for formats that name places on it.

    Args:
        page: the page, in points.
        width, height: of the picture, in pixels.
    """

    page: Box
    width: int
    height: int

    def pixels(self, box: Box) -> Box:
        """A box of the page in pixels of the picture."""
        across = self.width / self.page.width
        down = self.height / self.page.height
        return Box(box.left * across, box.top * down, box.right * across, box.bottom * down)


class DraftFormat(Protocol):
    """Writes regions in the way in which a target would."""

    separate: bool
    """Whether a page is the texts of its regions with nothing but white space between them."""

    def region(self, region: Region, text: RegionText) -> list[str]:
        """The ways in which the target may write a region, the likeliest first; empty if it would
        write nothing."""
        ...

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        """What the target may answer for a page.

        Args:
            parts: regions in the order of reading, each with one of the texts that `region` gave,
                or with the target's own answer for its crop.
            canvas: the picture that the target sees.
        """
        ...


def make_format(choice: Any) -> DraftFormat:
    """A format from its name, from a mapping of its name and options, or from itself.

    Raises:
        ConfigError: the name or an option is unknown.
    """
    chosen: DraftFormat = make(FORMATS, choice, "page")
    return chosen


def region_drafts(form: DraftFormat, region: Region) -> list[str]:
    """The drafts of a region, one for each of its readers, each once.

    A paragraph keeps its printed lines: the method that drafts from it joins them itself
    (`methods/hsd/variants.py`), and treats the results as forms of one text.
    """
    drafts = [_draft_of(form, region, text) for text in region.texts]
    return list(dict.fromkeys(draft for draft in drafts if draft))


def _draft_of(form: DraftFormat, region: Region, text: RegionText) -> str:
    ways = form.region(region, text)
    lines = printed(text.lines)
    if lines in ways:
        return lines
    return ways[0] if ways else ""


def page_drafts(
    form: DraftFormat,
    regions: Sequence[Region],
    canvas: Canvas,
    answers: Mapping[int, str] = NO_ANSWERS,
) -> list[str]:
    """The drafts of a page, in the order in which its answer is expected to repeat them; see
    `draft_sources`."""
    return list(draft_sources(form, regions, canvas, answers))


def draft_sources(
    form: DraftFormat,
    regions: Sequence[Region],
    canvas: Canvas,
    answers: Mapping[int, str] = NO_ANSWERS,
) -> dict[str, str]:
    """The drafts of a page with where they come from: the name of a reader, or `ANSWERS`.

    Args:
        form: writes them.
        regions: in the order of reading.
        canvas: the picture that the target sees.
        answers: what the target has said about crops of regions, by their places.

    Returns:
        For a format with nothing but white space between regions, their drafts: first the target's
        answers, then those of readers. For others, whole pages: with the answers, and with texts
        of each reader. They are in the order in which the answer is expected to repeat them, and
        of equal ones only the first is there.
    """
    said = [(region, answers[place]) for place, region in enumerate(regions) if answers.get(place)]
    drafts: list[tuple[str, str]] = []
    if form.separate:
        drafts += [(answer, ANSWERS) for _, answer in said]
        for region in regions:
            drafts += [(_draft_of(form, region, text), text.source) for text in region.texts]
    else:
        if said:
            drafts.append((form.page(said, canvas), ANSWERS))
        drafts += _whole_pages(form, regions, canvas)
    sources: dict[str, str] = {}
    for draft, source in drafts:
        if draft:
            sources.setdefault(draft, source)
    return sources


def _whole_pages(
    form: DraftFormat, regions: Sequence[Region], canvas: Canvas
) -> list[tuple[str, str]]:
    """The page by each reader, with broken words put together and with their hyphens; beside it
    the reader's name."""
    names = dict.fromkeys(text.source for region in regions for text in region.texts)
    pages = []
    for source in names:
        written = [(region, _ways_of(form, region, source)) for region in regions]
        for way in range(_WAYS):
            parts = [(r, ways[min(way, len(ways) - 1)]) for r, ways in written if ways]
            pages.append((form.page(parts, canvas), source))
    return pages


def _ways_of(form: DraftFormat, region: Region, source: str) -> list[str]:
    """The ways of writing a region by one reader; by the first one if this one has not read it."""
    read = [text for text in region.texts if text.source == source] or list(region.texts[:1])
    return form.region(region, read[0]) if read else []
