"""Pages of a `DoclingDocument` (`export_to_dict`, `save_as_json`, `docling --to json`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from draftlens.documents.reading.geometry import Box
from draftlens.documents.reading.page import Region
from draftlens.documents.reading.stored.values import MOST_CELLS, StoredPage, Value, region_of

SOURCE = "docling"

_VERSION = "1."
"""Beginning of the versions of the form that are known."""

_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "title": "title",
        "section_header": "title",
        "list_item": "list",
        "caption": "caption",
        "code": "code",
        "formula": "formula",
        "table": "table",
        "document_index": "table",
        "picture": "figure",
        "chart": "figure",
        "page_header": "header",
        "page_footer": "footer",
    }
)
"""Kinds by labels; others are text."""


def pages_of_docling(document: Value) -> dict[int, StoredPage]:
    """Pages by number. Raises `WrongValueError`."""
    version = document.text_of("version")
    if not version.startswith(_VERSION):
        raise document.wrong(f"has version {version!r:.20} of DoclingDocument, not {_VERSION}x")
    pages = document.need("pages")
    sizes = {_number(pages, key): pages.need(key).need("size").size() for key in pages.names()}
    regions: dict[int, list[Region]] = {number: [] for number in sizes}
    for item in _items(document):
        for number, region in _regions(item, sizes):
            regions[number].append(region)
    return {number: StoredPage(sizes[number], tuple(regions[number])) for number in sizes}


def _number(pages: Value, key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) < 7):
        raise pages.wrong(f"has a page that is no number: {key:.20}")
    return int(key)


def _items(document: Value) -> Iterator[Value]:
    """The items in reading order."""
    seen: set[str] = set()
    lists: dict[str, list[Value]] = {}
    waiting = [document.need("body")]
    while waiting:
        node = waiting.pop()
        if node.get("label") is not None and node.get("prov") is not None:
            yield node
        inside = node.items_of("children")
        if _KINDS.get(node.text_of("label")) == "figure":
            inside = node.items_of("captions")  # the others are words in the picture
        for child in reversed(inside):
            reference = child.need("$ref").text()
            if reference in seen:
                raise child.wrong(f"is there twice: {reference:.40}")
            seen.add(reference)
            name = reference.removeprefix("#/").partition("/")[0]
            if name not in lists:
                lists[name] = document.items_of(name)
            waiting.append(_target(lists[name], child, reference))


def _target(items: list[Value], child: Value, reference: str) -> Value:
    """What `#/texts/3` names among the texts."""
    place = reference.rpartition("/")[2]
    if not (place.isascii() and place.isdigit() and len(place) < 9 and int(place) < len(items)):
        raise child.wrong(f"names nothing of the file: {reference:.40}")
    return items[int(place)]


def _regions(item: Value, sizes: Mapping[int, tuple[float, float]]) -> Iterator[tuple[int, Region]]:
    """The parts of an item, by the number of their page."""
    label = item.text_of("label")
    kind = _KINDS.get(label, "text")
    text = item.text_of("text")
    places = item.items_of("prov")
    for place in places:
        number = place.need("page_no").whole()
        if number not in sizes:
            raise place.wrong(f"is on page {number}, which the file does not have")
        part = text if len(places) == 1 else _part(text, place)
        box = _box(place.need("bbox"), sizes[number])
        rows = _rows(item) if kind == "table" else []
        if kind == "list":
            part = f"{_mark(item)} {part}"
        level = _level(item, label)
        written = "\n".join(" ".join(row) for row in rows) if rows else part
        yield number, region_of(SOURCE, box, kind, written, level, rows)


def _level(item: Value, label: str) -> int:
    if label == "title":
        return 1
    level = item.get("level") if label == "section_header" else None
    return 0 if level is None else min(level.whole() + 1, 6)


def _mark(item: Value) -> str:
    is_numbered = item.get("enumerated")
    marker = item.text_of("marker")
    return marker if marker and is_numbered is not None and is_numbered.value is True else "-"


def _part(text: str, place: Value) -> str:
    """The characters of an item that stand on one page."""
    span = [number.whole(most=10**8) for number in place.items_of("charspan")]
    return text[slice(*span)] if len(span) == 2 else text


def _box(bbox: Value, size: tuple[float, float]) -> Box:
    return bbox.box(size, bottom_up=bbox.text_of("coord_origin") == "BOTTOMLEFT")


def _rows(item: Value) -> list[list[str]]:
    """The cells of a table; those that span several places stand at the first one."""
    cells: dict[tuple[int, int], str] = {}
    for cell in item.need("data").items_of("table_cells"):
        across = cell.need("start_col_offset_idx").whole(most=MOST_CELLS)
        down = cell.need("start_row_offset_idx").whole(most=MOST_CELLS)
        cells[down, across] = " ".join(cell.text_of("text").split())
    if not cells:
        return []
    height = max(down for down, _ in cells) + 1
    width = max(across for _, across in cells) + 1
    if height * width > MOST_CELLS:
        raise item.wrong(f"has more than {MOST_CELLS} cells")
    return [[cells.get((down, across), "") for across in range(width)] for down in range(height)]
