"""DocLang, the markup of the Granite models for Docling that are prompted with `<doclang>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.doctags import structured
from draftlens.documents.reading.formats.markdown import is_numbered
from draftlens.documents.reading.formats.notation import OtslTables
from draftlens.documents.reading.geometry import Box, on_grid
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import variants

TAG: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "title": "heading",
        "list": "list",
        "table": "table",
        "figure": "picture",
        "caption": "caption",
        "code": "code",
        "formula": "formula",
        "header": "page_header",
        "footer": "page_footer",
    }
)
"""Elements by kinds of regions."""

_GRID = 512
"""Places are whole numbers from 0 to this, across and down: the default of DocLang 0.8."""

_TABLES = OtslTables("<ched/>", "<fcel/>", "<ecel/>", "<nl/>")
_FURNITURE = '<layer value="furniture"/>'


@dataclass(frozen=True)
class DocLang:
    """One element for each region with its place, and one for the items of a list that follow each
    other, without the white space of its XML files."""

    separate = False
    special_tokens = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        known = structured(region, text, _TABLES, "<ldiv/>")
        return [_escaped(way) for way in variants(text.lines)[:2]] if known is None else known

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        elements = []
        in_list = False
        for region, text in parts:
            is_item = region.kind == "list"
            elements += ["</list>"] * (in_list and not is_item)
            begin = _opening_tag(region) if not (in_list and is_item) else ""
            in_list = is_item
            layer = _FURNITURE * (region.kind in ("header", "footer"))
            mark = "<ldiv/>" * is_item
            end = f"</{TAG[region.kind]}>" * (not is_item)
            place = _place_of(region.box, canvas.page)
            elements.append(f"{begin}{mark}{layer}{place}{text}{end}")
        return "<doclang>" + "".join(elements) + "</list>" * in_list + "</doclang>"


def _opening_tag(region: Region) -> str:
    tag = TAG[region.kind]
    if region.kind == "title" and region.level > 1:
        return f'<{tag} level="{region.level}">'
    if region.kind == "list" and is_numbered(region):
        return f'<{tag} class="ordered">'
    return f"<{tag}>"


def _escaped(text: str) -> str:
    """Text with characters of XML in a CDATA section."""
    return f"<![CDATA[{text}]]>" if any(character in text for character in "<&>") else text


def _place_of(box: Box, page: Box) -> str:
    return "".join(f'<location value="{place}"/>' for place in on_grid(box, page, _GRID))
