"""The seam of all formats, and drafts of pages from drafts of regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draftlens.core.options import make
from draftlens.core.registry import Registry
from draftlens.documents.geometry import Box
from draftlens.documents.values import Region, RegionText

FORMATS = Registry(
    "format",
    {
        "markdown": "draftlens.documents.formats.markdown:Markdown",
        "markdown-html": "draftlens.documents.formats.markdown:MarkdownWithHtmlTables",
        "text": "draftlens.documents.formats.plain:PlainText",
        "layout-json": "draftlens.documents.formats.layout_json:LayoutJson",
        "doctags": "draftlens.documents.formats.doctags:DocTags",
    },
    group="draftlens.formats",
)


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

    def region(self, region: Region, text: RegionText) -> list[str]:
        """What the target may answer for the crop of a region, the likeliest first; empty if it
        would write nothing."""
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
    """The drafts of a region's crop by all of its readers, each once."""
    drafts = [draft for text in region.texts for draft in form.region(region, text)]
    return list(dict.fromkeys(drafts))


def page_drafts(form: DraftFormat, regions: Sequence[Region], canvas: Canvas) -> list[str]:
    """The drafts of a page: one for each reader and each way of writing it, each once.

    Args:
        form: writes them.
        regions: in the order of reading.
        canvas: the picture that the target sees.
    """
    drafts: list[str] = []
    for source in _sources(regions):
        written = [(region, _drafts_of(form, region, source)) for region in regions]
        most = max((len(texts) for _, texts in written), default=0)
        for way in range(most):
            parts = [
                (region, texts[min(way, len(texts) - 1)]) for region, texts in written if texts
            ]
            drafts.append(form.page(parts, canvas))
    return list(dict.fromkeys(draft for draft in drafts if draft))


def _sources(regions: Sequence[Region]) -> list[str]:
    """The readers that have read any region, the most trusted first."""
    names = [text.source for region in regions for text in region.texts]
    return list(dict.fromkeys(names))


def _drafts_of(form: DraftFormat, region: Region, source: str) -> list[str]:
    """The drafts of a region by one reader; by the most trusted one if this one has not read it."""
    read = [text for text in region.texts if text.source == source] or list(region.texts[:1])
    return form.region(region, read[0]) if read else []
