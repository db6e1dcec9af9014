"""Text without any markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.notation import WITH_MARKDOWN
from draftlens.documents.reading.page import Region, RegionText
from draftlens.documents.reading.variants import variants


@dataclass(frozen=True)
class PlainText:
    """Everything that is printed, in reading order, with `between` between regions."""

    between: str = "\n"

    separate = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        if text.markup:
            return [text.text]
        if text.latex:
            return WITH_MARKDOWN.formulas(text.text)
        return variants(text.lines)

    def page(self, parts: Sequence[tuple[Region, str]], canvas: Canvas) -> str:
        return self.between.join(text for _, text in parts if text)
