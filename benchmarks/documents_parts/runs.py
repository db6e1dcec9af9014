"""Sections of the part `claims` that let the reader read: times, approximate ways, other drafts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from documents_parts.bench import Bench, Cell, Section
from documents_parts.held_out import ORIGINS, HeldOut
from documents_parts.replay import per_pass
from documents_parts.timing import (
    PROMPT_LOOKUP,
    STOCK,
    Spent,
    page_inputs,
    parser_for,
    read_in_every_way,
    reader,
)
from draftlens import DocumentParser
from draftlens.core.stats import Stats
from draftlens.documents.asking import Ending
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.inputs import Inputs
from draftlens.verify import run_stock

Ways = Mapping[str, Mapping[str, Any]]
Table = dict[str, list[Spent]]
"""What pages took, in order, by way."""

TIMED: Ways = {
    "plain": {"method": "plain"},
    "lookup": {"method": "lookup", "drafter": "none"},
    "hsd, text layer": {"drafter": "text-layer", "stages": "page"},
    "hsd, tesseract": {"drafter": "tesseract", "stages": "page"},
    "hsd, regions first": {"drafter": "text-layer", "stages": "regions+page"},
}
BY_ORIGIN: Ways = {
    "plain": {"method": "plain"},
    "hsd, text layer": {"drafter": "text-layer", "stages": "page"},
    "hsd, auto": {"drafter": "auto", "stages": "page"},
}
REGIONS: dict[str, Any] = {"drafter": "text-layer", "stages": "regions+page"}
STAGES: Ways = {
    "page": {"drafter": "text-layer", "stages": "page"},
    "page, tolerance 0.75": {"drafter": "text-layer", "stages": "page", "tolerance": 0.75},
    "regions first, exact": {**REGIONS, "region_tolerance": 1.0},
    "regions first, 0.75 in regions": REGIONS,
    "regions first, 0.75 in both": {**REGIONS, "tolerance": 0.75},
    "regions alone, 0.75": {**REGIONS, "stages": "regions", "tolerance": 0.75},
}
REAL: Ways = {
    "lookup": {"method": "lookup", "drafter": "none"},
    "hsd, auto": {"drafter": "auto", "stages": "page"},
    "hsd, regions first": {"drafter": "auto", "stages": "regions+page"},
}
FEW_TOKENS = 48
"""Of pages that the reader cannot read."""

SOURCES = {
    "text layer, lines as blocks": ("text-layer", "blocks"),
    "text layer, layout network": ("text-layer", "rapid-layout"),
    "tesseract": ("tesseract", "blocks"),
    "rapidocr": ("rapidocr", "blocks"),
}


def times(bench: Bench, kind: str) -> Section:
    """Seconds and work of every way on pages that are born digital (claims 1 to 3, 13, 15)."""
    table = _table(bench, TIMED, bench.pages(kind), (STOCK, PROMPT_LOOKUP))
    for page, stock in zip(bench.pages(kind), table[STOCK], strict=True):
        bench.know(page, stock)
    figures = _figures(table)
    figures["loops"] = sum(spent.ended == "loop" for spent in table["plain"])
    title = f"End to end, born digital, {kind} (claims 1 to 3, 13, 15)"
    return Section(title, COLUMNS, _rows(kind, table), _times_note(bench), figures)


def origins(bench: Bench) -> Section:
    """The same for scans and for text layers that lie (claims 3, 4, 12)."""
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for origin in ORIGINS:
        table = _table(bench, BY_ORIGIN, bench.pages("paragraph", origin), (STOCK,))
        rows += _rows(origin, table)
        figures[origin] = _figures(table)
    title = "Scans and lying text layers, paragraphs (claims 3, 4)"
    return Section(title, COLUMNS, rows, _times_note(bench), figures)


COLUMNS = (
    *("pages", "way", "of stock, e2e", "of stock, decode", "of plain, e2e"),
    *("AAL", "tokens a pass", "forwards", "forwarded", "outside forwards"),
)
TIMES_NOTE = (
    "Seconds of all pages together; rendering, layout, reading, drafting and crops count, decoding "
    "counts all of these but rendering. AAL is the mean number of accepted guesses a pass. "
    "Forwards behind the prefill and the tokens that they read, those of crops included. Outside "
    "forwards: share of the rounds' seconds."
)


def _times_note(bench: Bench) -> str:
    return f"Pages of each kind: {bench.num_pages}. {TIMES_NOTE}"


def _table(
    bench: Bench, ways: Ways, pages: Sequence[HeldOut], stock: Sequence[str] = (STOCK,)
) -> Table:
    parsers = {name: bench.parser(**way) for name, way in ways.items()}
    table: Table = {}
    for page in pages:
        found = read_in_every_way(parsers, page.file, bench.repeats, warm_ups=0, stock=stock)
        for way, spent in found.items():
            table.setdefault(way, []).append(spent)
    return table


def _rows(name: str, table: Table) -> list[list[Cell]]:
    figures = _figures(table)
    return [[name, way, *found.values()] for way, found in figures["ways"].items()]


def _figures(table: Table) -> dict[str, Any]:
    """Ratios of sums over pages, by way."""
    stock = table[STOCK]
    plain = table.get("plain", stock)
    ways = {}
    for way, found in table.items():
        ways[way] = {
            "e2e": _sum(stock, "seconds") / _sum(found, "seconds"),
            "decode": _sum(stock, "decode") / _sum(found, "decode"),
            "of plain": _sum(plain, "seconds") / _sum(found, "seconds"),
            "aal": statistics.mean(spent.accepted for spent in found),
            "per pass": statistics.mean(spent.per_pass for spent in found),
            "forwards": _sum(found, "forwards"),
            "forwarded": _sum(found, "forwarded"),
            "outside": statistics.mean(spent.outside for spent in found),
        }
    return {"ways": ways, "seconds": _sum(stock, "seconds")}


def _sum(found: Sequence[Spent], name: str) -> float:
    return float(sum(getattr(spent, name) for spent in found))


def real_pages(bench: Bench) -> Section:
    """Files that the reader knows nothing of: nonsense as text, and identical tokens (claim 4)."""
    ways = {name: {**way, "max_new_tokens": FEW_TOKENS} for name, way in REAL.items()}
    parsers = {name: bench.parser(**way) for name, way in ways.items()}
    rows: list[list[Cell]] = []
    for file in bench.real:
        found = read_in_every_way(parsers, file, 1, warm_ups=0, stock=(STOCK,))
        for way, spent in found.items():
            rows.append([file.stem, way, len(spent.tokens), spent.per_pass, spent.outside])
    return Section(
        "Real pages (claim 4)",
        ("page", "way", "tokens", "tokens a pass", "outside forwards"),
        rows,
        "Pages of olmOCR-bench (`marker-pdf==2.0.0`, its source distribution; give them as "
        f"--real). The first {FEW_TOKENS} tokens of each answer, which are those of stock "
        "`generate` in every way.",
    )


def stages(bench: Bench) -> Section:
    """Stages and tolerance: work, time and accuracy (claims 9 to 11)."""
    pages = [*bench.pages("paragraph"), *bench.pages("page")]
    table = _table(bench, STAGES, pages)
    figures = _figures(table)
    rows: list[list[Cell]] = []
    for way, found in table.items():
        accuracy = bench.accuracy(pages, [spent.markdown for spent in found])
        figures["ways"][way]["accuracy"] = accuracy
        measured = figures["ways"][way]
        names = ("e2e", "decode", "aal", "per pass", "forwards", "forwarded")
        rows.append([way, *(measured[name] for name in names), accuracy])
    pipeline = StandardPipeline("text-layer")
    drafts = ["\n\n".join(bench.drafts(page, pipeline)) for page in pages]
    figures["pipeline"] = bench.accuracy(pages, drafts)
    rows.append(["the pipeline alone", *[None] * 6, figures["pipeline"]])
    return Section(
        "Stages and tolerance (claims 9 to 11)",
        (
            *("way", "of stock, e2e", "of stock, decode", "AAL", "tokens a pass"),
            *("forwards", "forwarded", "right"),
        ),
        rows,
        "Right: the share of characters. AAL and tokens a pass are those of the page's pass.",
        figures,
    )


def sources(bench: Bench) -> Section:
    """Seconds that a draft takes, and what it is worth (claim 7)."""
    pages = bench.pages("page")
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for name, (readers, layout) in SOURCES.items():
        pipeline = StandardPipeline(readers, layout)
        bench.drafts(pages[0], pipeline)  # loads networks
        drafted = [bench.drafted(page, pipeline) for page in pages]
        each = [page.seconds["layout"] + page.seconds["read"] for page in drafted]
        texts = [page.drafts(bench.plain.asker.form, {}) for page in drafted]
        counts = [bench.replay(page, drafts) for page, drafts in zip(pages, texts, strict=True)]
        figures[name] = {"seconds": statistics.mean(each), "said": per_pass(counts)}
        rows.append([name, statistics.mean(each), per_pass(counts)])
    stock = statistics.mean(bench.stock(page).seconds for page in pages)
    figures[STOCK] = {"seconds": stock}
    rows.append(["the reader itself", stock, None])
    if bench.early is not None:
        seconds = _draft_model_seconds(bench, pages)
        figures["draft model"] = {"seconds": seconds}
        rows.append(["a draft model, whole pages", seconds, None])
    return Section(
        "Seconds of a draft (claim 7)",
        ("source", "seconds a page", "tokens a pass"),
        rows,
        "Layout and reading, CPU seconds of one thread; all guesses checked.",
        figures,
    )


def _draft_model_seconds(bench: Bench, pages: Sequence[HeldOut]) -> float:
    early = parser_for(reader(bench.early), {"method": "plain"}, bench.max_new_tokens)
    seconds = []
    for page in pages:
        inputs = page_inputs(early, page.file).target
        limit = early.asker.profile.max_new_tokens
        backbone = early.engine.target.backbone
        seconds.append(run_stock(backbone, inputs, do_sample=False, max_new_tokens=limit).e2e)
    return statistics.mean(seconds)


MODEL_WAYS: Ways = {
    "plain": {"method": "plain"},
    "draft model, chosen by auto": {"method": "speculative"},
    "draft model, chains of 5": {"method": "speculative", "num_speculative_tokens": 5},
    "hsd, text layer": {"method": "hsd"},
}


def draft_model(bench: Bench) -> Section:
    """An earlier checkpoint of the reader as draft model, beside hsd (claim 6)."""
    title = "A draft model beside hsd (claim 6)"
    if bench.early is None:
        return Section(title, ("way",), [], "No earlier checkpoint was given.")
    parser = parser_for(
        reader(bench.target, bench.early), {"method": "plain"}, bench.max_new_tokens
    )
    found: dict[str, list[tuple[float, Stats]]] = {way: [] for way in MODEL_WAYS}
    for page in bench.pages("paragraph"):
        inputs = page_inputs(parser, page.file)
        drafts = bench.drafts(page, StandardPipeline("text-layer"))
        for way, method in MODEL_WAYS.items():
            references = [drafts] if way.startswith("hsd") else None
            found[way].append(_answered(bench, parser, page, inputs, method, references))
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    base = sum(seconds for seconds, _ in found["plain"])
    for way, answers in found.items():
        e2e = base / sum(seconds for seconds, _ in answers)
        accepted = statistics.mean(stats.mean_accepted_tokens for _, stats in answers)
        forwards = sum(stats.target_forwards for _, stats in answers)
        rows.append([way, e2e, accepted, forwards])
        figures[way] = {"e2e": e2e, "aal": accepted}
    note = "Paragraphs; the draft model is an earlier checkpoint of the reader."
    return Section(title, ("way", "of plain, e2e", "AAL", "forwards"), rows, note, figures)


def _answered(
    bench: Bench,
    parser: DocumentParser,
    page: HeldOut,
    inputs: Inputs,
    method: Mapping[str, Any],
    references: Any,
) -> tuple[float, Stats]:
    """Seconds and statistics of one answer, which is that of stock `generate`."""
    ending = Ending(parser.asker.profile.max_new_tokens)
    options = ending.options(inputs.target["input_ids"].shape[1])
    began = time.perf_counter()
    result = parser.engine.answer(inputs, method=method, references=references, **options).run()
    seconds = time.perf_counter() - began
    assert tuple(result.tokens[0]) == bench.stock(page).tokens
    return seconds, result.stats
