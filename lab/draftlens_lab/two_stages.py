"""Documents in the two stages of HSD (Hierarchical Speculative Decoding, equations 1 to 3): the
target reads crops of all regions that have drafts, and its answers are further drafts of the page.

The first stage takes longer than it saves on every processor measured (docs/hsd.md), so that
`draftlens.DocumentParser` has one stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from draftlens.core.options import real
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.parser import FAILURES, PageParser, Turn
from draftlens.documents.reading.formats.base import OPENING
from draftlens.documents.reading.page import Region
from draftlens.documents.regions import RegionAnswers
from draftlens.documents.results import ParsedPage
from draftlens.documents.run import DocumentParser
from draftlens.documents.settings import STAGES, ParseSettings

BOTH = "regions+page"
"""Crops of the regions, and then the page."""

ANSWERS = "regions"
"""The source of drafts that are the target's answers for crops."""


@dataclass(frozen=True)
class TwoStageSettings(ParseSettings):
    """Settings of `TwoStageParser`.

    Args:
        stages: `BOTH`, or one of `draftlens.documents.settings.STAGES`.
        region_tolerance: τ of crops whose page is read, too (equation 10). It changes no token of
            the page.

    Raises:
        ConfigError: a value is out of range.

    Example:

        >>> TwoStageSettings(tolerance=0.9).tolerance_of_crops
        0.75
    """

    known_stages: ClassVar[tuple[str, ...]] = (*STAGES, BOTH)

    stages: str = BOTH
    region_tolerance: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        real(0, 1, above=True)("region_tolerance", self.region_tolerance)

    @property
    def tolerance_of_crops(self) -> float:
        return self.region_tolerance if self.stages == BOTH else self.tolerance


class TwoStagePages(PageParser):
    """Pages whose crops are read before them."""

    def read_crops(self, pages: Sequence[DraftedPage]) -> RegionAnswers | None:
        """None, too, where the target cannot read a crop, and reads the page anyway."""
        try:
            return super().read_crops(pages)
        except FAILURES:
            if self.settings.stages != BOTH:
                raise
            return None

    def answer(self, turn: Turn) -> list[ParsedPage]:
        return self.read_pages(turn) if turn.stages == BOTH else super().answer(turn)

    def sources(self, turn: Turn) -> list[dict[str, str]]:
        drafts = super().sources(turn)
        if turn.answers is None:
            return drafts
        found = []
        for index, (page, others) in enumerate(zip(turn.pages, drafts, strict=True)):
            texts = turn.texts(index)
            answered = [
                (page.regions[place], text) for place, text in sorted(texts.items()) if text
            ]
            openings = {text: name for text, name in others.items() if name == OPENING}
            answers = dict.fromkeys(self._written(page, answered), ANSWERS)
            first = openings | answers
            found.append(first | {text: others[text] for text in others if text not in first})
        return found

    def _written(self, page: DraftedPage, answered: list[tuple[Region, str]]) -> list[str]:
        """Answers for crops as drafts of their page: one each, or the whole page of them."""
        form = self.asker.form
        if form.separate or not answered:
            return [answer for _, answer in answered]
        return [form.page(answered, page.canvas)]


class TwoStageParser(DocumentParser):
    """A `draftlens.DocumentParser` that takes `TwoStageSettings`.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load("reader", method="plain", device="cpu")
        >>> parser = TwoStageParser(engine, TwoStageSettings(drafter="text-layer"))
        >>> pages = parser.parse("paper.pdf")
    """

    page_parser: ClassVar[type[PageParser]] = TwoStagePages
