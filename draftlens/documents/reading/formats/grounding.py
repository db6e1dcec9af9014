"""Markdown with a box before each region, as DeepSeek-OCR answers prompts with `<|grounding|>`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.markdown import Markdown
from draftlens.documents.reading.formats.notation import WITH_HTML_AND_BRACKETS, Notations
from draftlens.documents.reading.geometry import Box, on_grid
from draftlens.documents.reading.page import Region, RegionText

LABEL: Mapping[str, str] = MappingProxyType(
    {
        "text": "text",
        "title": "sub_title",
        "list": "text",
        "table": "table",
        "figure": "image",
        "caption": "image_caption",
        "code": "text",
        "formula": "equation",
        "header": "text",
        "footer": "text",
    }
)
"""Labels of DeepSeek-OCR by kinds of regions; a title of the first level is `title`."""

_GRID = 999
"""Places are whole numbers from 0 to this, across and down."""


@dataclass(frozen=True)
class Grounding:
    """The Markdown of each region below its label and place."""

    notations: Notations = WITH_HTML_AND_BRACKETS

    separate = False
    special_tokens = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        return Markdown(leave_out=("figure",), notations=self.notations).region(region, text)

    def after(self, answer: str) -> Grounding:
        return replace(self, notations=self.notations.after(answer))

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        written = [
            f"<|ref|>{_label(region)}<|/ref|><|det|>[[{_place(region.box, canvas.page)}]]<|/det|>\n"
            f"{text}"
            for region, text in parts
        ]
        return "\n\n".join(written)


def _label(region: Region) -> str:
    return "title" if region.kind == "title" and region.level == 1 else LABEL[region.kind]


def _place(box: Box, page: Box) -> str:
    return ", ".join(map(str, on_grid(box, page, _GRID)))
