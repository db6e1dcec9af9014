"""A JSON list of boxes, categories and texts, as dots.ocr writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.markdown import Markdown
from draftlens.documents.reading.formats.notation import WITH_HTML, Notations
from draftlens.documents.reading.page import Region, RegionText

CATEGORY: Mapping[str, str] = MappingProxyType(
    {
        "text": "Text",
        "title": "Section-header",
        "list": "List-item",
        "table": "Table",
        "figure": "Picture",
        "caption": "Caption",
        "code": "Text",
        "formula": "Formula",
        "header": "Page-header",
        "footer": "Page-footer",
    }
)
"""Categories of dots.ocr by kinds of regions."""

_WITHOUT_TEXT = "figure"


@dataclass(frozen=True)
class LayoutJson:
    """One line of JSON for a page; texts are escaped Markdown with tables as HTML. A crop's answer
    is that Markdown itself."""

    notations: Notations = WITH_HTML

    separate = False

    def region(self, region: Region, text: RegionText) -> list[str]:
        if region.kind == _WITHOUT_TEXT:
            return []
        markdown = Markdown(leave_out=(), notations=self.notations)
        return markdown.region(region, text)

    def after(self, answer: str) -> LayoutJson:
        try:
            entries = json.loads(answer)
            texts = [str(entry.get("text", "")) for entry in entries]
        except (ValueError, TypeError, AttributeError):
            return self
        return replace(self, notations=self.notations.after("\n\n".join(texts)))

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        entries = []
        for region, text in parts:
            box = canvas.pixels(region.box)
            edges = [round(edge) for edge in (box.left, box.top, box.right, box.bottom)]
            entry: dict[str, Any] = {"bbox": edges, "category": CATEGORY[region.kind]}
            if region.kind != _WITHOUT_TEXT:
                entry["text"] = text
            entries.append(entry)
        return json.dumps(entries, ensure_ascii=False)
