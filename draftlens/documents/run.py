"""Documents to Markdown by a document model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar

from draftlens.core.stats import Stats
from draftlens.documents.asking import Asker, profile_for
from draftlens.documents.drafting import (
    DraftedPage,
    PageDrafter,
    PageFilter,
    drafted_pages,
    every_page,
    one_ahead,
    standard_pipeline,
)
from draftlens.documents.parser import EARLIER, MOST_PAGES, TARGET, EarlierPages, PageParser
from draftlens.documents.reading.pipeline import (
    OCR_BY_PREFERENCE,
    LayoutPipeline,
    StandardPipeline,
)
from draftlens.documents.reading.targets import TargetProfile, named_profile
from draftlens.documents.results import ParsedPage
from draftlens.documents.settings import ParseSettings
from draftlens.drafting.adaptive.history import checked_curve
from draftlens.engine import CALIBRATION_SECONDS, Engine
from draftlens.media import Limits

LOSSES = 2
"""Number of consecutive losing pages after which reading ends."""

_BEFORE = ("vision", "target_prefill")
_ROUNDS = ("draft_prefill", "draft", "verify", "rollback")


@dataclass
class ReadingPayoff:
    """Compares pages that were read with their time by plain decoding.

    `ahead` means that a page is read during the answer of the page before, so that the slower of
    both counts instead of their sum.
    """

    seconds_per_token: float
    ahead: bool
    _losses: int = field(default=0, init=False)

    def pays(self, stats: Stats) -> bool:
        """False if this page and those before it, `LOSSES` in all, took longer than plain decoding.
        `stats` are those of a page answered alone, in one stage."""
        phases = stats.phases
        before = sum(phases[name] for name in _BEFORE)
        rounds = sum(phases[name] for name in _ROUNDS)
        plain = stats.emitted * self.seconds_per_token
        took = self._together(phases["layout"] + phases["read"], before + rounds)
        would_take = self._together(phases["layout"], before + plain)
        self._losses = self._losses + 1 if took > would_take else 0
        return self._losses < LOSSES

    def _together(self, pipeline: float, answer: float) -> float:
        return max(pipeline, answer) if self.ahead else pipeline + answer


class DocumentParser:
    """A loaded target and a pipeline that parse documents.

    Args:
        engine: the target; its own draft is not used.
        settings: of the user.
        pipeline: reads pages; None for the one that the settings describe.
        profile: prompts and limits of the target, or their name; None for the known ones.
        limits: bounds on the size of files and pages.

    Raises:
        ConfigError: a reader or layout is unknown or not installed.

    Attributes:
        earlier_pages: how many earlier pages of a document are remembered, whose answers are
            further drafts; 0 for none.
        notes: sentences about the pages so far.

    Example:

        >>> import draftlens
        >>> engine = draftlens.load(device="cpu", method="plain")
        >>> parser = draftlens.DocumentParser(engine, draftlens.ParseSettings(drafter="none"))
        >>> page = next(parser.parse("missing.pdf"))
        >>> page.error
        'cannot read missing.pdf: there is no such file'
    """

    page_parser: ClassVar[type[PageParser]] = PageParser

    def __init__(
        self,
        engine: Engine,
        settings: ParseSettings | None = None,
        pipeline: LayoutPipeline | None = None,
        profile: TargetProfile | str | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.engine = engine
        self.settings = settings or ParseSettings()
        self.settings.check_with_target()
        self.notes: list[str] = []
        if self.settings.method == "hsd" and engine.target.backbone.plain_only:
            self.settings = replace(self.settings, method="plain")
            self.notes += engine.target.backbone.notes
        self.limits = limits
        if isinstance(profile, str):
            profile = named_profile(profile)
        self.asker = Asker(engine, profile or profile_for(engine.target), self.settings)
        needs_drafts = self.settings.method == "hsd" or self.settings.stages != "page"
        results = self.settings.stored_results
        if pipeline is None and needs_drafts and results is not None:
            from draftlens.documents.reading.stored.pipeline import StoredPipeline

            otherwise = StandardPipeline(layout=self.settings.layout)
            pipeline = StoredPipeline(results, otherwise)
        is_standard = pipeline is None and needs_drafts
        self._standard = standard_pipeline(self.settings) if is_standard else None
        self.pipeline = self._standard if pipeline is None else pipeline
        self.earlier_pages = MOST_PAGES
        self._payoff: ReadingPayoff | None = None

    def calibrate(self, seconds: float = CALIBRATION_SECONDS) -> None:
        """Measure the target's forwards for at most `seconds`, unless their costs are known, to
        choose the number of draft tokens. Without it they are measured during the pages."""
        Engine(self.engine.target, None, self.asker.page_method).calibrate(seconds)

    def parse(
        self,
        inputs: str | Path | Iterable[str | Path],
        wanted: PageFilter = every_page,
    ) -> Iterator[ParsedPage]:
        """The pages of documents, in order, as they are answered.

        Args:
            inputs: files and folders.
            wanted: which pages have to be parsed.

        Yields:
            One result per page. A page or file that cannot be read has an `error`.

        Raises:
            MediaError: a folder holds no document.
        """
        drafter = PageDrafter(self.pipeline, self.asker.profile)
        return self._answered(drafted_pages(inputs, drafter, self.settings, self.limits, wanted))

    def _answered(self, pages: Iterator[DraftedPage]) -> Iterator[ParsedPage]:
        earlier = EarlierPages(self.earlier_pages)
        parser = self.page_parser(self.asker, earlier)
        source = one_ahead(pages) if self.settings.ahead else pages
        with closing(pages), closing(source):  # type: ignore[type-var]
            while batch := list(islice(source, self.settings.batch)):
                self.notes += [page.note for page in batch if page.note is not None]
                answered = parser.parse(batch)
                for page in answered:
                    earlier.add(page, self.asker.eos)
                    self.asker.learn(page.markdown)
                for page in answered:
                    self._observe(page)
                    yield page

    def _observe(self, page: ParsedPage) -> None:
        if self._standard is None or not page.shares:
            return
        used = 1 - page.shares.get(TARGET, 0.0) - page.shares.get(EARLIER, 0.0)
        self._standard.observe(page.file, used, len(page.tokens))
        is_automatic = self.settings.drafter == "auto" and self._standard.reads_pictures
        if is_automatic and _was_recognized(page) and self._alone(page):
            self._observe_reading(self._standard, page)

    def _alone(self, page: ParsedPage) -> bool:
        """Whether the figures of a page include no other page or stage."""
        return self.settings.batch == 1 and page.region_stats is None

    def _observe_reading(self, pipeline: StandardPipeline, page: ParsedPage) -> None:
        """Stop reading pictures once that takes longer than it saves."""
        if self._payoff is None:
            curve = checked_curve(self.engine.target.backbone)
            if curve is None:
                return
            self._payoff = ReadingPayoff(curve.cost(1), self.settings.ahead)
        if not self._payoff.pays(page.stats):
            pipeline.reads_pictures = False
            self.notes.append(
                "reading the pictures takes longer than their drafts save: further pages are "
                "answered without"
            )


def _was_recognized(page: ParsedPage) -> bool:
    texts = (text for region in page.regions for text in region.region.texts)
    return any(text.source in OCR_BY_PREFERENCE for text in texts)
