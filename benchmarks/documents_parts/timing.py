"""Pages read by several ways, interleaved, with the same tokens: seconds and work."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from draftlens_lab.two_stages import BOTH, TwoStageParser, TwoStageSettings
from shared import rotated

import draftlens
from draftlens import DocumentParser, ParsedPage, ParseSettings
from draftlens.core.repetition import LoopCriterion
from draftlens.documents.drafting import DraftedPage, PageDrafter
from draftlens.documents.reading.open import open_document
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.verify import run_stock

STOCK = "stock generate"
PROMPT_LOOKUP = "stock prompt lookup"

DRAFTING = ("layout", "read", "regions", "draft_prefill", "draft", "verify", "rollback")
"""Phases that decoding with drafts takes (HSD, Eq. 12 to 14): all but rendering, vision and the
prefill of the page."""


@dataclass(frozen=True)
class Spent:
    """What one page took in one way.

    Args:
        tokens: the answer.
        seconds: with rendering, layout, reading and drafting.
        decode: seconds of decoding, drafts included.
        per_pass: tokens a pass; 1 for stock `generate`.
        accepted: draft tokens a pass that were accepted, the AAL of the paper.
        passes: of the page's row, after the prefill.
        forwards: of the target behind the prefill, those of crops included.
        forwarded: tokens that these forwards read.
        outside: share of the rounds' seconds that is no forward: drafting, and bookkeeping.
        ended: why the answer ended; empty for stock `generate`.
        markdown: the answer as text.
        stages: how the page was read.
    """

    tokens: tuple[int, ...]
    seconds: float
    decode: float
    per_pass: float = 1.0
    accepted: float = 0.0
    passes: int = 0
    forwards: int = 0
    forwarded: int = 0
    outside: float = 0.0
    ended: str = ""
    markdown: str = ""
    stages: str = "page"


ROUNDS = ("draft_prefill", "draft", "verify", "rollback")
"""Phases of rounds."""


Seconds = Callable[[], float]
"""A clock."""


def processor_seconds() -> float:
    """The processor's time of this process and of the programs that it has started and that have
    ended, such as tesseract; other programs on the machine hardly change it."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def reader(folder: str | None, draft: str | None = None) -> Engine:
    """The document model of a benchmark.

    Args:
        folder: of a reader; None for that of the laboratory.
        draft: folder of its draft model.
    """
    return draftlens.load(folder or "reader", draft=draft, method="plain", device="cpu")


def parser_for(engine: Engine, way: Mapping[str, Any], max_new_tokens: int) -> DocumentParser:
    """A parser with some settings of `draftlens.ParseSettings`, or of `TwoStageSettings`."""
    settings = {"max_new_tokens": max_new_tokens, **way}
    if way.get("stages") == BOTH:
        return TwoStageParser(engine, TwoStageSettings(**settings))
    return DocumentParser(engine, ParseSettings(**settings))


def parse_once(parser: DocumentParser, file: Path, clock: Seconds = time.perf_counter) -> Spent:
    """Read a file of one page."""
    began = clock()
    (page,) = parser.parse(file)
    seconds = clock() - began
    assert page.error is None, page.error
    return _spent(page, seconds)


def _spent(page: ParsedPage, seconds: float) -> Spent:
    stats = page.stats
    both = [stats] if page.region_stats is None else [stats, page.region_stats]
    return Spent(
        tokens=page.tokens,
        seconds=seconds,
        decode=sum(stats.phases[name] for name in DRAFTING),
        per_pass=stats.mean_acceptance_length,
        accepted=stats.mean_accepted_tokens,
        passes=stats.passes,
        forwards=sum(part.target_forwards for part in both),
        forwarded=sum(part.drafted + part.passes for part in both),
        outside=1 - stats.phases["verify"] / max(sum(stats.phases[name] for name in ROUNDS), 1e-9),
        ended=page.ended,
        markdown=page.markdown,
        stages=page.stages or "page",
    )


def picture_of(parser: DocumentParser, file: Path) -> DraftedPage:
    """A page as the target sees it, without drafts."""
    return drafted(parser, file, None)


def drafted(parser: DocumentParser, file: Path, pipeline: Any) -> DraftedPage:
    """A page as a pipeline reads it."""
    document = open_document(file)
    try:
        return PageDrafter(pipeline, parser.asker.profile)(document.page(1))
    finally:
        document.close()


def page_inputs(parser: DocumentParser, file: Path) -> Inputs:
    """The processor's output for a page."""
    picture = picture_of(parser, file).picture
    assert picture is not None
    return parser.asker.process([picture], [parser.asker.profile.page_prompt])


def stock_once(
    parser: DocumentParser,
    file: Path,
    looks_up: bool = False,
    clock: Seconds = time.perf_counter,
) -> Spent:
    """Read a page by stock `generate`, with rendering and the processor.

    Args:
        parser: knows how the target is asked.
        file: of one page.
        looks_up: whether stock prompt lookup is used. It fails where it proposes an id that stands
            for pixels, so these are suppressed.
        clock: counts the seconds.
    """
    asker = parser.asker
    backbone = parser.engine.target.backbone
    began = clock()
    inputs = page_inputs(parser, file).target
    options: dict[str, Any] = {}
    if looks_up:
        options["prompt_lookup_num_tokens"] = 10
        options["suppress_tokens"] = sorted(backbone.pixel_ids)
    run = run_stock(
        backbone,
        inputs,
        do_sample=False,
        max_new_tokens=asker.profile.max_new_tokens,
        stopping_criteria=[LoopCriterion(inputs["input_ids"].shape[1])],
        **options,
    )
    seconds = clock() - began
    tokens = tuple(run.tokens[0])
    forwards = len(tokens)
    return Spent(
        tokens,
        seconds,
        run.decode,
        passes=forwards - 1,
        forwards=forwards,
        markdown=asker.text(tokens),
    )


def read_in_every_way(
    parsers: Mapping[str, DocumentParser],
    file: Path,
    repeats: int,
    warm_ups: int = 1,
    stock: Sequence[str] = (STOCK, PROMPT_LOOKUP),
    clock: Seconds = time.perf_counter,
) -> dict[str, Spent]:
    """Read a page in every way, interleaved; seconds are medians.

    Args:
        parsers: ways by name. Those with a tolerance, and regions without a page, may answer with
            other tokens.
        file: of one page.
        repeats: that are timed.
        warm_ups: that are not.
        stock: which of `STOCK` and `PROMPT_LOOKUP` are read, too.
        clock: counts the seconds.

    Raises:
        AssertionError: a lossless way gives other tokens than stock `generate`.
    """
    runs: dict[str, list[Spent]] = {way: [] for way in (*stock, *parsers)}
    any_parser = next(iter(parsers.values()))
    for repeat in range(warm_ups + repeats):
        for way in rotated(list(runs), repeat):
            if way in parsers:
                runs[way].append(parse_once(parsers[way], file, clock))
            else:
                runs[way].append(stock_once(any_parser, file, way == PROMPT_LOOKUP, clock))
    if stock:
        _check(parsers, runs, file)
    return {way: _median(found[warm_ups:]) for way, found in runs.items()}


def _check(
    parsers: Mapping[str, DocumentParser], runs: Mapping[str, Sequence[Spent]], file: Path
) -> None:
    expected = runs[STOCK][0].tokens
    for way, found in runs.items():
        if way in parsers and not is_lossless(parsers[way].settings):
            continue
        for spent in found:
            assert spent.tokens == expected, f"{way} changed the tokens of {file.name}"


def is_lossless(settings: ParseSettings) -> bool:
    """Whether a page has to have the tokens of stock `generate`."""
    return settings.tolerance == 1 and settings.stages != "regions"


def _median(found: Sequence[Spent]) -> Spent:
    return replace(
        found[-1],
        seconds=statistics.median(spent.seconds for spent in found),
        decode=statistics.median(spent.decode for spent in found),
    )
