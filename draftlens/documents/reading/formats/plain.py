"""Text without any markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftlens.documents.reading.formats.base import Canvas
from draftlens.documents.reading.formats.notation import WITH_MARKDOWN, WITH_OTSL, Notations
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


@dataclass(frozen=True)
class PlainTextWithOtslTables(PlainText):
    """Text without markup, tables in OTSL and formulas in LaTeX, as PaddleOCR-VL and MinerU2.5
    answer for crops."""

    notations: Notations = WITH_OTSL

    special_tokens = True

    def region(self, region: Region, text: RegionText) -> list[str]:
        if region.kind == "table" and text.rows and not text.markup:
            return self.notations.tables(text.rows)
        if text.latex:
            return self.notations.formulas(text.text)
        return super().region(region, text)

    def after(self, answer: str) -> PlainTextWithOtslTables:
        return replace(self, notations=self.notations.after(answer))
