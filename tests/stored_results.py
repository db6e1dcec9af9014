"""One small page as Docling, MinerU and PP-StructureV3 write it, on a page of 600 x 800 points."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

HTML = (
    "<table><tr><td>Name</td><td>Sacks</td></tr><tr><td>Mill &amp; Co</td><td>12</td></tr></table>"
)
ROWS = (("Name", "Sacks"), ("Mill & Co", "12"))


def _item(label: str, place: int, number: int, text: str, **fields: Any) -> dict[str, Any]:
    top = 740.0 - 100 * place  # from the bottom
    bbox = {"l": 60.0, "t": top, "r": 540.0, "b": top - 40, "coord_origin": "BOTTOMLEFT"}
    prov = [{"page_no": number, "bbox": bbox, "charspan": [0, len(text)]}]
    return {"label": label, "prov": prov, "children": [], "text": text, **fields}


def _cell(down: int, across: int, text: str) -> dict[str, Any]:
    return {"start_row_offset_idx": down, "start_col_offset_idx": across, "text": text}


def docling() -> dict[str, Any]:
    """As docling-core 2.104 exports it, without fields that are not read."""
    texts = [
        _item("title", 0, 1, "Of mills"),
        _item("text", 1, 1, "The mill stands by\nthe river."),
        _item("list_item", 2, 1, "one", enumerated=False, marker="-"),
        _item("formula", 4, 1, "a^2 + b"),
        _item("section_header", 5, 1, "More", level=1),
        _item("text", 0, 2, "The second page."),
    ]
    cells = [_cell(y, x, text) for y, row in enumerate(ROWS) for x, text in enumerate(row)]
    table = _item("table", 3, 1, "", data={"table_cells": cells})
    order = ["texts/0", "texts/1", "groups/0", "tables/0", "texts/3", "texts/4", "texts/5"]
    return {
        "schema_name": "DoclingDocument",
        "version": "1.10.0",
        "body": {"label": "unspecified", "children": [{"$ref": f"#/{name}"} for name in order]},
        "groups": [{"label": "list", "children": [{"$ref": "#/texts/2"}]}],
        "texts": texts,
        "tables": [table],
        "pages": {
            number: {"size": {"width": 600.0, "height": 800.0}, "page_no": int(number)}
            for number in "12"
        },
    }


def _block(name: str, place: int, page: int = 0, **fields: Any) -> dict[str, Any]:
    top = 75 + 125 * place
    return {"type": name, "page_idx": page, "bbox": [100, top, 900, top + 50], **fields}


def content_list() -> list[dict[str, Any]]:
    return [
        _block("text", 0, text="Of mills", text_level=1),
        _block("text", 1, text="The mill stands by\nthe river."),
        _block("list", 2, sub_type="text", list_items=["- one"]),
        _block("table", 3, table_body=HTML, table_caption=[]),
        _block("equation", 4, text="$$\na^2 + b\n$$", text_format="latex"),
        _block("text", 5, text="More", text_level=2),
        _block("text", 0, 1, text="The second page."),
    ]


def _lines(*lines: str, kind: str = "text") -> list[dict[str, Any]]:
    return [{"spans": [{"type": kind, "content": line}]} for line in lines]


def middle() -> dict[str, Any]:
    def block(name: str, place: int, **fields: Any) -> dict[str, Any]:
        return {"type": name, "bbox": [60, 60 + 100 * place, 540, 100 + 100 * place], **fields}

    table = {"spans": [{"type": "table", "html": HTML}]}
    blocks = [
        block("title", 0, level=1, lines=_lines("Of mills")),
        block("text", 1, lines=_lines("The mill stands by", "the river.")),
        block("list", 2, lines=_lines("- one")),
        block("table", 3, blocks=[block("table_body", 3, lines=[table])]),
        block("interline_equation", 4, lines=_lines("a^2 + b", kind="interline_equation")),
        block("title", 5, level=2, lines=_lines("More")),
    ]
    second = [block("text", 0, lines=_lines("The second page."))]
    return {
        "pdf_info": [
            {"page_idx": 0, "page_size": [600, 800], "para_blocks": blocks},
            {"page_idx": 1, "page_size": [600, 800], "para_blocks": second},
        ],
        "_version_name": "3.4.4",
    }


def paddle() -> dict[str, Any]:
    """The first page; the second one has a file of its own."""
    texts = (
        ("doc_title", "# Of mills"),
        ("text", "The mill stands by\nthe river."),
        ("text", "- one"),
        ("table", f"<html><body>{HTML}</body></html>"),
        ("formula", "$$a^2 + b$$"),
        ("paragraph_title", "## More"),
    )
    blocks = [
        {
            "block_label": label,
            "block_content": text,
            "block_bbox": [120, 120 + 200 * place, 1080, 200 + 200 * place],
            "block_id": place,
            "block_order": place + 1,
        }
        for place, (label, text) in enumerate(texts)
    ]
    blocks = [*reversed(blocks)]
    return {"res": {"page_index": 0, "width": 1200, "height": 1600, "parsing_res_list": blocks}}


KINDS: Mapping[str, Callable[[], Any]] = {
    "docling": docling,
    "content_list": content_list,
    "middle": middle,
    "paddle": paddle,
}


def changed(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy in which one place has another value; `KeyError` removes it."""
    whole = copy.deepcopy(value)
    node = whole
    for key in place[:-1]:
        node = node[key]
    if new is KeyError:
        del node[place[-1]]
    else:
        node[place[-1]] = new
    return whole
