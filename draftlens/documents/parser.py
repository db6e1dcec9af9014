"""Batches of pages that the target reads, whole or by crops; places of their regions in the
answers, and sources of the tokens."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher

from draftlens.core.errors import DraftlensError
from draftlens.core.references import GivenText
from draftlens.core.result import Result
from draftlens.core.stats import Clock, Stats
from draftlens.documents.asking import Asker, Ending
from draftlens.documents.drafting import DraftedPage
from draftlens.documents.reading.page import Region
from draftlens.documents.reading.pipeline import OCR_BY_PREFERENCE
from draftlens.documents.reading.readers import TEXT_LAYER
from draftlens.documents.reading.trust import LEAST_TOKENS, disagreement
from draftlens.documents.reading.variants import variants
from draftlens.documents.regions import RegionAnswers, crops_of, read_regions
from draftlens.documents.results import MODEL, ParsedPage, ParsedRegion
from draftlens.inputs import Inputs
from draftlens.verify import first_divergence, run_stock

_WORD = re.compile(r"\w+|[^\w\s]")

_LEAST_FOUND = 0.5
"""Share of a region's words that an answer must hold, in order and near each other."""

TARGET = "target"
ANSWER = "answer"
"""Source of tokens repeated from the prompt or the answer; `TARGET` if no draft has the token."""

EARLIER = "earlier pages"
"""Source of tokens repeated from answers of earlier pages."""

Span = tuple[int, int]

MOST_PAGES = 2
"""The last pages that are remembered: running heads may alternate."""

MOST_TOKENS = 4096
"""Bound on the tokens of all of them together."""

_WHOLE = ("end", "length")
"""How answers end that are remembered; a loop, for one, would only repeat itself."""


class EarlierPages:
    """Token ids of the last answers of one document.

    Running heads and feet, the head of a table that goes on and its repeated cells are proposed
    from them. They are drafts: no answer depends on them.

    Args:
        most_pages: that are remembered; 0 for none.
        most_tokens: of these pages together; of a longer page its first tokens.
    """

    def __init__(self, most_pages: int = MOST_PAGES, most_tokens: int = MOST_TOKENS) -> None:
        self.most_tokens = most_tokens
        self._answers: deque[tuple[int, ...]] = deque(maxlen=most_pages)
        self._file = ""

    def add(self, page: ParsedPage, eos: Collection[int]) -> None:
        """Remember a finished page; that of another document replaces all others."""
        if page.file != self._file:
            self._answers.clear()
            self._file = page.file
        tokens = tuple(token for token in page.tokens if token not in eos)
        if tokens and page.ended in _WHOLE:
            self._answers.appendleft(tokens)

    def of(self, file: str) -> list[tuple[int, ...]]:
        """The answers of a document so far, the last page first."""
        if file != self._file:
            return []
        found: list[tuple[int, ...]] = []
        room = self.most_tokens
        for answer in self._answers:
            found.append(answer[:room])
            room -= len(answer)
            if room <= 0:
                break
        return found


PAGE = "page"
REGIONS = "regions"
FAILURES = (DraftlensError, RuntimeError, MemoryError)
"""Errors of a target that cost the pages that it reads at that time, and no others."""

REGIONS_ALONE = "regions without a page"
"""The name of this approximation in `ParsedPage.approximate`."""


@dataclass(frozen=True)
class Turn:
    """A batch of pages while it is answered.

    Args:
        pages: readable and not blank.
        stages: what the target reads of them.
        answers: of their regions; None where no crop is read.
        clock: started before anything is read.
    """

    pages: list[DraftedPage]
    stages: str
    answers: RegionAnswers | None
    clock: Clock

    def texts(self, index: int) -> dict[int, str]:
        """Answers for the crops of a page, by place of the region."""
        return {} if self.answers is None else self.answers.of_page(index)


class PageParser:
    def __init__(self, asker: Asker, earlier: EarlierPages | None = None) -> None:
        self.asker = asker
        self.settings = asker.settings
        self.earlier = earlier or EarlierPages(0)

    def parse(self, pages: Sequence[DraftedPage]) -> list[ParsedPage]:
        """The answers for some pages, in order. Errors become pages with an error."""
        readable = [page for page in pages if page.error is None and not page.is_blank]
        parsed: dict[int, ParsedPage] = {}
        if readable:
            try:
                answered = self._answer(readable)
            except FAILURES as error:
                answered = [page.failed(_sentence(page, error)) for page in readable]
            by_page = zip(readable, answered, strict=True)
            parsed = {id(page): self._judged(page, answer) for page, answer in by_page}
        return [parsed.get(id(page)) or page.unanswered() for page in pages]

    def _answer(self, pages: list[DraftedPage]) -> list[ParsedPage]:
        clock = Clock(Stats())
        answers = None
        if self.settings.stages != PAGE:
            with clock.phase("regions"):
                answers = self.read_crops(pages)
        for page in pages:
            for name, seconds in page.seconds.items():
                clock.stats.phases[name] += seconds
        stages = PAGE if answers is None else self.settings.stages
        return self.answer(Turn(pages, stages, answers, clock))

    def answer(self, turn: Turn) -> list[ParsedPage]:
        """Join the answers for crops, or read the pages."""
        return self.read_pages(turn) if turn.answers is None else self._joined(turn)

    def _judged(self, page: DraftedPage, answer: ParsedPage) -> ParsedPage:
        if answer.error is not None:
            return answer
        return replace(answer, doubt=self._doubt(page, answer))

    def _doubt(self, page: DraftedPage, answer: ParsedPage) -> str | None:
        """Why the answer is not the text of the page; a prompt of the user may ask for something
        else."""
        if answer.ended == "loop":
            return "it repeats itself without end"
        is_cut = answer.ended in ("length", "timeout") and len(answer.tokens) < LEAST_TOKENS
        if is_cut or self.settings.prompt is not None:
            return None
        readings: dict[str, list[str]] = {}
        for text in (text for region in page.regions for text in region.texts):
            if text.source in (TEXT_LAYER, *OCR_BY_PREFERENCE):
                readings.setdefault(text.source, []).append(text.text)
        return disagreement(answer.markdown, ["\n".join(texts) for texts in readings.values()])

    def read_crops(self, pages: Sequence[DraftedPage]) -> RegionAnswers | None:
        """Answers for the crops of the pages; None if no region has a draft."""
        crops = crops_of(pages, self.asker)
        if not crops:
            return None
        # Half of a page's time, so that there is some left for the page.
        half = (self.settings.page_timeout or 0.0) / 2
        return read_regions(crops, self.asker, self._ending(half))

    def _ending(self, spent: float) -> Ending:
        """The limits after the page has taken `spent` seconds."""
        seconds = self.settings.page_timeout
        if seconds is not None:
            seconds = max(seconds - spent, 0.001)
        stops_loops = self.settings.on_loop == "stop"
        return Ending(self.asker.profile.max_new_tokens, seconds, stops_loops)

    def sources(self, turn: Turn) -> list[dict[str, str]]:
        """The drafts of each page with their sources."""
        return [page.sources(self.asker.form) for page in turn.pages]

    def read_pages(self, turn: Turn) -> list[ParsedPage]:
        """Read the pages as rows of a batch."""
        prompts = [self.asker.profile.page_prompt] * len(turn.pages)
        with turn.clock.phase("frames"):
            pictures = [page.picture for page in turn.pages if page.picture is not None]
            inputs = self.asker.process(pictures, prompts)
        sources = self.sources(turn)
        ending = self._ending(time.perf_counter() - turn.clock.start)
        method = self.asker.page_method
        earlier = [self.earlier.of(page.source) for page in turn.pages]
        drafts: list[list[GivenText]] = [
            [*texts, *last] for texts, last in zip(sources, earlier, strict=True)
        ]
        result = self.asker.answer(inputs, drafts, method, ending, turn.clock).run()
        verifications = self._verified(inputs, result, ending)
        parsed = []
        for index, texts in enumerate(sources):
            names = [*texts.values(), *[EARLIER] * len(earlier[index])]
            parsed.append(self._page(turn, index, result, ending, names))
        return [
            replace(page, verification=verification)
            for page, verification in zip(parsed, verifications, strict=True)
        ]

    def _page(
        self,
        turn: Turn,
        index: int,
        result: Result,
        ending: Ending,
        sources: Sequence[str],
    ) -> ParsedPage:
        page = turn.pages[index]
        tokens = result.tokens[index]
        markdown = self.asker.text(tokens)
        spans = spans_of(page.regions, markdown)
        accepted: Mapping[int, int] = result.stats.accepted_by_reference.get(index, {})
        return ParsedPage(
            file=page.source,
            number=page.number,
            markdown=markdown,
            tokens=tuple(tokens),
            ended=self.asker.why_ended(tokens, ending),
            source=MODEL,
            stages=turn.stages,
            lossless=result.lossless,
            approximate=result.approximate,
            box=page.box,
            regions=_regions(turn, index, spans),
            shares=shares_of(len(tokens), accepted, sources),
            stats=result.stats,
            region_stats=None if turn.answers is None else turn.answers.stats,
        )

    def _joined(self, turn: Turn) -> list[ParsedPage]:
        """Pages joined from the answers for their regions."""
        assert turn.answers is not None
        turn.clock.mark_last()
        tolerance = self.settings.tolerance
        names: tuple[str, ...] = (REGIONS_ALONE,)
        if tolerance < 1:
            names = (*names, f"draft tokens accepted with tolerance {tolerance:g}")
        parsed = []
        for index, page in enumerate(turn.pages):
            texts = turn.texts(index)
            answered = [(r, texts[place]) for place, r in enumerate(page.regions) if place in texts]
            markdown = self.asker.form.page(answered, page.canvas)
            parsed.append(
                ParsedPage(
                    file=page.source,
                    number=page.number,
                    markdown=markdown,
                    ended=REGIONS,
                    source=MODEL,
                    stages=REGIONS,
                    lossless=False,
                    approximate=names,
                    box=page.box,
                    regions=_regions(turn, index, spans_of(page.regions, markdown)),
                    stats=turn.clock.stats,
                    region_stats=turn.answers.stats,
                )
            )
        return parsed

    def _verified(
        self, inputs: Inputs, result: Result, ending: Ending
    ) -> list[dict[str, object] | None]:
        """Comparison of each row with stock `generate`, if requested; only up to the cut for
        answers cut by their timeout."""
        rows = len(result.tokens)
        if not self.settings.verify:
            return [None] * rows
        length = inputs.target["input_ids"].shape[1]
        options = Ending(ending.max_new_tokens, None, ending.stops_loops).options(length)
        backbone = self.asker.engine.target.backbone
        run = run_stock(backbone, inputs.target, keep_logits=True, **options)
        stock = list(run.tokens)
        for index, tokens in enumerate(result.tokens):
            if self.asker.why_ended(tokens, ending) == "timeout":
                stock[index] = stock[index][: len(tokens)]
        verifications: list[dict[str, object] | None] = []
        for index in range(rows):
            only = [[] if row != index else tokens for row, tokens in enumerate(stock)]
            ours = [[] if row != index else result.tokens[row] for row in range(rows)]
            difference = first_divergence(type(run)(only, run.e2e, run.ttft, run.logits), ours)
            verifications.append(
                {
                    "identical": difference is None,
                    "first_divergence": None if difference is None else vars(difference),
                    "stock_seconds": round(run.e2e, 4),
                }
            )
        return verifications


def _regions(
    turn: Turn, index: int, spans: Sequence[tuple[int, int] | None]
) -> tuple[ParsedRegion, ...]:
    page = turn.pages[index]
    texts = turn.texts(index)
    return tuple(
        ParsedRegion(region, span, texts.get(place))
        for place, (region, span) in enumerate(zip(page.regions, spans, strict=True))
    )


def _sentence(page: DraftedPage, error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    name = f"{page.source}, page {page.number}"
    return text if name in text else f"cannot parse {name}: {text}"


def spans_of(regions: Sequence[Region], answer: str) -> list[Span | None]:
    """Start and end index of each region in an answer, no overlaps; None where not found."""
    matches = list(_WORD.finditer(answer))
    words = [match.group().casefold() for match in matches]
    free = [True] * len(words)
    spans: list[Span | None] = []
    for region in regions:
        place = _place_of(_words_of(region), words, free)
        if place is None:
            spans.append(None)
            continue
        first, last = place
        free[first : last + 1] = [False] * (last + 1 - first)
        spans.append((matches[first].start(), matches[last].end()))
    return spans


def _words_of(region: Region) -> list[str]:
    if not region.texts:
        return []
    written = variants(region.texts[0].lines)
    return _WORD.findall(written[0].casefold()) if written else []


def _place_of(wanted: list[str], words: list[str], free: Sequence[bool]) -> Span | None:
    """First and last word of the part of an answer that holds a region."""
    if not wanted:
        return None
    # Words that belong to another region match nothing.
    remaining = [word if is_free else "" for word, is_free in zip(words, free, strict=True)]
    matcher = SequenceMatcher(None, wanted, remaining, autojunk=False)
    core = matcher.find_longest_match()
    if not core.size:
        return None
    # Search around the longest common part, no further than the region's own length.
    reach = len(wanted)
    begin = max(core.b - reach, 0)
    window = remaining[begin : core.b + core.size + reach]
    blocks = SequenceMatcher(None, wanted, window, autojunk=False).get_matching_blocks()
    matches = [block for block in blocks if block.size]
    if sum(block.size for block in matches) < _LEAST_FOUND * len(wanted):
        return None
    first = begin + matches[0].b
    last = begin + matches[-1].b + matches[-1].size - 1
    return _within_free(first, last, free)


def _within_free(first: int, last: int, free: Sequence[bool]) -> Span | None:
    """The part after the last word that belongs to another region."""
    for place in range(last, first - 1, -1):
        if not free[place]:
            first = place + 1
            break
    return (first, last) if first <= last else None


def shares_of(
    num_tokens: int, accepted: Mapping[int, int], sources: Sequence[str]
) -> dict[str, float]:
    """Shares of an answer's tokens by source, which sum to 1; empty for an empty answer.

    `accepted` holds accepted draft tokens by reference, -1 for the prompt and the answer
    (`Stats.accepted_by_reference`); `sources` are those of the references.

    Example:

        >>> shares_of(10, {0: 4, 1: 2, -1: 1}, ["text-layer", "tesseract"])
        {'answer': 0.1, 'target': 0.3, 'tesseract': 0.2, 'text-layer': 0.4}
    """
    if not num_tokens:
        return {}
    counts = Counter({TARGET: num_tokens - sum(accepted.values())})
    for reference, count in accepted.items():
        counts[ANSWER if reference < 0 else sources[reference]] += count
    return {name: counts[name] / num_tokens for name in sorted(counts) if counts[name]}
