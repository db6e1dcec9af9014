"""DocTags, the markup of SmolDocling and GraniteDocling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.markdown import is_numbered, unmarked_items
from draftlens.documents.reading.formats.notation import OTSL_TABLES_WITH_HEADS, TableNotation
from draftlens.documents.reading.geometry import Box, on_grid
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import variants

TAG: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "title": "section_header_level_1",
        "list": "list_item",
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
    special_tokens = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        known = structured(region, text, OTSL_TABLES_WITH_HEADS, "</list_item>\n<list_item>")
        return variants(text.lines)[:2] if known is None else known

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        elements = []
        before = ""
        for region, text in parts:
            group = _group(region)
            elements += [f"</{before}>\n"] * bool(before and group != before)
            elements += [f"<{group}>"] * bool(group and group != before)
            before = group
            tag = "list_item" if group else TAG[region.kind]
            elements.append(f"<{tag}>{place_of(region.box, canvas.page)}{text}</{tag}>\n")
        return "<doctag>" + "".join(elements) + f"</{before}>\n" * bool(before) + "</doctag>"


def structured(
    region: Region, text: RegionText, tables: TableNotation, between: str
) -> list[str] | None:
    """What an element holds that is no running text; None for running text. `between` stands
    between the items of a list."""
    if text.markup or text.latex:
        return [text.text]
    if region.kind == "figure":
        return []
    if region.kind == "table" and text.rows:
        return [tables.write(text.rows)]
    if region.kind == "list":
        return [between.join(unmarked_items(text.lines))]
    return None


def _group(region: Region) -> str:
    """The element that holds a list's items; empty for what is no item."""
    if region.kind != "list":
        return ""
    return "ordered_list" if is_numbered(region) else "unordered_list"


def place_of(box: Box, page: Box) -> str:
    """The place of a box as four tokens."""
    return "".join(f"<loc_{place}>" for place in on_grid(box, page, _GRID))
