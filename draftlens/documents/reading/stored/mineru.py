"""Pages of the content lists and middle files of MinerU, versions 2 and 3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from draftlens.documents.reading.page import Region
from draftlens.documents.reading.stored.tables import rows_of_html
from draftlens.documents.reading.stored.values import StoredPage, Value, region_of

SOURCE = "mineru"

_GRID = (1000.0, 1000.0)
"""Boxes of content lists are whole numbers from 0 to 1000, across and down."""

_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "title": "title",
        "list": "list",
        "table": "table",
        "table_body": "table",
        "image": "figure",
        "image_body": "figure",
        "chart": "figure",
        "chart_body": "figure",
        "equation": "formula",
        "interline_equation": "formula",
        "code": "code",
        "code_body": "code",
        "algorithm": "code",
        "table_caption": "caption",
        "image_caption": "caption",
        "chart_caption": "caption",
        "code_caption": "caption",
        "header": "header",
        "page_number": "footer",
        "footer": "footer",
        "discarded": "header",
    }
)
"""Kinds by types; others are text."""

_CAPTIONS = ("image_caption", "table_caption", "chart_caption", "code_caption")
_FOOTNOTES = ("image_footnote", "table_footnote", "chart_footnote")


def pages_of_content_list(blocks: Value) -> dict[int, StoredPage]:
    """Pages by number. Raises `WrongValueError`."""
    regions: dict[int, list[Region]] = {}
    for block in blocks.items():
        number = block.need("page_idx").whole() + 1
        regions.setdefault(number, []).extend(_regions_of_block(block))
    return {number: StoredPage(_GRID, tuple(found)) for number, found in regions.items()}


def _regions_of_block(block: Value) -> Iterator[Region]:
    """A block; captions and footnotes, which have no boxes, are lines of their own in its box."""
    name = block.need("type").text()
    kind = _KINDS.get(name, "text")
    box = block.need("bbox").box(_GRID)
    for key in _CAPTIONS:
        yield from (region_of(SOURCE, box, "caption", text) for text in _texts(block, key))
    level = block.get("text_level")
    depth = 0 if level is None else min(level.whole(), 6)
    if kind == "text" and depth:
        kind = "title"
    if kind == "table":
        table = block.get("table_body")
        rows = [] if table is None else rows_of_html(table)
        yield region_of(SOURCE, box, kind, _printed(rows), rows=rows)
    elif kind == "list":
        items = _texts(block, "list_items") or _texts(block, "text")
        yield from (region_of(SOURCE, box, kind, item) for item in items)
    else:
        text = block.text_of("code_body") if kind == "code" else block.text_of("text")
        yield region_of(SOURCE, box, kind, text, depth if kind == "title" else 0)
    for key in _FOOTNOTES:
        yield from (region_of(SOURCE, box, "text", text) for text in _texts(block, key))


def _texts(block: Value, key: str) -> list[str]:
    """A text, or a list of texts."""
    found = block.get(key)
    if found is None:
        return []
    texts = [item.text() for item in found.items()] if found.is_list else [found.text()]
    return [text for text in texts if text.strip()]


def _printed(rows: list[list[str]]) -> str:
    return "\n".join(" ".join(row) for row in rows)


def pages_of_middle(document: Value) -> dict[int, StoredPage]:
    """Pages by number. Raises `WrongValueError`."""
    pages = {}
    for page in document.need("pdf_info").items():
        size = page.need("page_size").size()
        blocks = [*page.items_of("para_blocks"), *page.items_of("discarded_blocks")]
        found = [region for block in blocks for region in _middle_regions(block, size)]
        pages[page.need("page_idx").whole() + 1] = StoredPage(size, tuple(found))
    return pages


def _middle_regions(block: Value, size: tuple[float, float]) -> Iterator[Region]:
    """A block, or the blocks in it."""
    waiting = [block]
    while waiting:
        node = waiting.pop()
        if inside := node.items_of("blocks"):
            waiting += reversed(inside)
            continue
        kind = _KINDS.get(node.need("type").text(), "text")
        box = node.need("bbox").box(size)
        level = node.get("level") if kind == "title" else None
        lines = []
        rows: list[list[str]] = []
        for line in node.items_of("lines"):
            spans = line.items_of("spans")
            lines.append(" ".join(filter(None, map(_written, spans))))
            for span in spans:
                table = span.get("html")
                rows += [] if table is None else rows_of_html(table)
        depth = 0 if level is None else min(level.whole(), 6)
        text = _printed(rows) if rows else "\n".join(lines)
        yield region_of(SOURCE, box, kind, text, depth, rows if kind == "table" else ())


def _written(span: Value) -> str:
    """A part of a line; formulas in it are LaTeX between dollars."""
    text = span.text_of("content").strip()
    return f"${text}$" if span.text_of("type") == "inline_equation" and text else text
