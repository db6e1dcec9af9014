"""The page of a JSON file of PP-StructureV3 or PaddleOCR-VL (`save_to_json`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from draftlens.documents.reading.page import Region
from draftlens.documents.reading.stored.tables import rows_of_html
from draftlens.documents.reading.stored.values import StoredPage, Value, region_of

SOURCE = "paddle"

BLOCKS = "parsing_res_list"

_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "doc_title": "title",
        "paragraph_title": "title",
        "table": "table",
        "image": "figure",
        "chart": "figure",
        "seal": "figure",
        "header_image": "figure",
        "footer_image": "figure",
        "formula": "formula",
        "display_formula": "formula",
        "algorithm": "code",
        "figure_title": "caption",
        "table_title": "caption",
        "chart_title": "caption",
        "header": "header",
        "footer": "footer",
        "number": "footer",
    }
)
"""Kinds by labels; others are text."""

_LEVELS: Mapping[str, int] = MappingProxyType({"doc_title": 1, "paragraph_title": 2})


def pages_of_paddle(result: Value) -> dict[int, StoredPage]:
    """The page by its number, 1 where the file names none. Raises `WrongValueError`."""
    size = result.size()
    index = result.get("page_index")
    number = 1 if index is None else index.whole() + 1
    regions = [_region(block, size) for block in _ordered(result.need(BLOCKS).items())]
    return {number: StoredPage(size, tuple(regions))}


def _ordered(blocks: list[Value]) -> list[Value]:
    """By their order in reading; those without one, such as running heads, stay where they are."""
    places = [block.get("block_order") for block in blocks]
    numbers = [None if place is None else place.whole() for place in places]
    known = [block for block, number in zip(blocks, numbers, strict=True) if number is not None]
    in_order = iter(sorted(known, key=lambda block: block.need("block_order").whole()))
    return [
        block if number is None else next(in_order)
        for block, number in zip(blocks, numbers, strict=True)
    ]


def _region(block: Value, size: tuple[float, float]) -> Region:
    label = block.need("block_label").text()
    kind = _KINDS.get(label, "text")
    box = block.need("block_bbox").box(size)
    content = block.get("block_content")
    text = "" if content is None else content.text()
    if kind == "table" and content is not None and "<t" in text:
        rows = rows_of_html(content)
        return region_of(SOURCE, box, kind, "\n".join(" ".join(row) for row in rows), rows=rows)
    if kind == "title":
        text = text.lstrip("#").strip()
    return region_of(SOURCE, box, kind, "" if kind == "figure" else text, _LEVELS.get(label, 0))
