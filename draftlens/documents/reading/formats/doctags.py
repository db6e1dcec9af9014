"""DocTags, the markup of SmolDocling and GraniteDocling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import clean, variants

TAG: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "title": "section_header_level_1",
        "list": "text",
        "table": "otsl",
        "figure": "picture",
        "caption": "caption",
        "code": "code",
        "formula": "formula",
        "header": "page_header",
        "footer": "page_footer",
    }
)
"""Elements by kinds of regions."""

_GRID = 500
"""Places are whole numbers from 0 to this, across and down."""


@dataclass(frozen=True)
class DocTags:
    """One element for each region, with its place."""

    separate = False

    def region(self, region: Region, text: RegionText) -> list[str]:
        if text.markup or text.latex:
            return [text.text]
        if region.kind == "figure":
            return []
        if region.kind == "table" and text.rows:
            return [cells_of(text.rows)]
        return variants(text.lines)[:2]

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        elements = []
        for region, text in parts:
            tag = TAG[region.kind]
            elements.append(f"<{tag}>{place_of(region.box, canvas.page)}{text}</{tag}>")
        return "<doctag>" + "\n".join(elements) + "\n</doctag>"


def place_of(box: Box, page: Box) -> str:
    """The place of a box as four tokens."""
    edges = (
        box.left / page.width,
        box.top / page.height,
        box.right / page.width,
        box.bottom / page.height,
    )
    return "".join(f"<loc_{round(min(max(edge, 0.0), 1.0) * _GRID)}>" for edge in edges)


def cells_of(rows: Sequence[Sequence[str]]) -> str:
    """The cells of a table in OTSL, the notation of DocTags; the first row is its head."""
    width = max(len(row) for row in rows)
    written = []
    for number, row in enumerate(rows):
        mark = "ched" if number == 0 else "fcel"
        cells = [f"<{mark}>{clean(cell)}" for cell in row]
        cells += ["<ecel>"] * (width - len(row))
        written.append("".join(cells) + "<nl>")
    return "".join(written)
