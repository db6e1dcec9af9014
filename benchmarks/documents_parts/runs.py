"""Sections of the part `claims` in which the reader reads: times, stages, other drafts."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from documents_parts.bench import Bench, Cell, Section, distance
from documents_parts.held_out import ORIGINS, HeldOut
from documents_parts.paged import Found, PagedSection, paired_ratio
from documents_parts.replay import per_pass
from documents_parts.timing import (
    STOCK,
    Spent,
    page_inputs,
    parser_for,
    processor_seconds,
    read_in_every_way,
    reader,
)
from draftlens import DocumentParser
from draftlens.core.stats import Stats
from draftlens.documents.asking import Ending
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.inputs import Inputs
from draftlens.verify import run_stock

TIMED_KINDS = ("crop", "paragraph", "page", "long page")
"""Kinds of pages that every way is timed on, from short to long."""

Ways = Mapping[str, Mapping[str, Any]]

TIMED: Ways = {
    "plain": {"method": "plain"},
    "hsd, text layer": {"drafter": "text-layer", "stages": "page"},
    "hsd, tesseract": {"drafter": "tesseract", "stages": "page"},
    "hsd, regions first": {"drafter": "text-layer", "stages": "regions+page"},
}
BY_ORIGIN: Ways = {
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


def times(kind: str) -> PagedSection:
    """Seconds and work of every way on pages that are born digital (claims 1 to 3, 10, 13, 15)."""

    def measure(bench: Bench, number: int) -> Found:
        return _read(bench, TIMED, bench.pages(kind)[number])

    def summary(found: Sequence[Found]) -> Section:
        figures = _figures(found)
        figures["loops"] = sum(page["plain"]["ended"] == "loop" for page in found)
        title = f"End to end, born digital, {kind} (claims 1 to 3, 10, 13, 15)"
        return Section(title, COLUMNS, _rows(kind, figures), _times_note(found), figures)

    return PagedSection(measure, summary)


def measure_origins(bench: Bench, number: int) -> Found:
    """Scans and text layers that lie (claims 3, 4, 12)."""
    return {
        origin: _read(bench, BY_ORIGIN, bench.pages("paragraph", origin)[number])
        for origin in ORIGINS
    }


def origins(found: Sequence[Found]) -> Section:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for origin in ORIGINS:
        figures[origin] = _figures([page[origin] for page in found])
        rows += _rows(origin, figures[origin])
    title = "Scans and lying text layers, paragraphs (claims 3, 4)"
    return Section(title, COLUMNS, rows, _times_note(found), figures)


COLUMNS = (
    *("pages", "way", "of stock, e2e", "of plain, e2e"),
    *("AAL", "tokens a pass", "forwards", "forwarded"),
)
TIMES_NOTE = (
    "The processor's seconds of all pages together, tesseract's included; rendering, layout, "
    "reading, drafting and crops count. Intervals: 95%, bootstrap over pages, paired. AAL is the "
    "mean number of accepted draft tokens a pass. Forwards behind the prefill and the tokens that "
    "they read, those of crops included."
)


def _times_note(found: Sequence[Found]) -> str:
    return f"Pages of each kind: {len(found)}. {TIMES_NOTE}"


def _read(bench: Bench, ways: Ways, page: HeldOut) -> Found:
    """What a page takes in each way. Parsers are new, since they learn from pages."""
    parsers = {name: bench.parser(**way) for name, way in ways.items()}
    read = read_in_every_way(
        parsers, page.file, bench.repeats, warm_ups=0, stock=(STOCK,), clock=processor_seconds
    )
    bench.know(page, read[STOCK])
    return {way: _values(spent, page.markdown) for way, spent in read.items()}


def _values(spent: Spent, truth: str) -> dict[str, Any]:
    wrong, longest = distance(truth, spent.markdown)
    return {
        "seconds": round(spent.seconds, 4),
        "tokens": round(spent.per_pass * spent.passes),
        "accepted": round(spent.accepted * spent.passes),
        "passes": spent.passes,
        "forwards": spent.forwards,
        "forwarded": spent.forwarded,
        "ended": spent.ended,
        "wrong": wrong,
        "longest": longest,
    }


def _rows(name: str, figures: Mapping[str, Any]) -> list[list[Cell]]:
    return [
        [name, way, *(found[column] for column in SHOWN)] for way, found in figures["ways"].items()
    ]


SHOWN = ("of stock", "of plain", "aal", "per pass", "forwards", "forwarded")


def _figures(pages: Sequence[Found]) -> dict[str, Any]:
    """Ratios of sums over pages, by way, and the values of each page."""
    columns = {
        way: {name: [page[way][name] for page in pages] for name in MEASURED}
        for way in pages[0]
        if all(way in page for page in pages)
    }
    stock = columns[STOCK]["seconds"]
    plain = columns.get("plain", columns[STOCK])["seconds"]
    ways = {}
    for way, column in columns.items():
        passes = max(sum(column["passes"]), 1)
        ways[way] = {
            "e2e": sum(stock) / sum(column["seconds"]),
            "of stock": paired_ratio(stock, column["seconds"]).text(".2f"),
            "of plain": paired_ratio(plain, column["seconds"]).text(".2f"),
            "aal": sum(column["accepted"]) / passes,
            "per pass": sum(column["tokens"]) / passes,
            "forwards": sum(column["forwards"]),
            "forwarded": sum(column["forwarded"]),
            "accuracy": 1 - sum(column["wrong"]) / max(sum(column["longest"]), 1),
            "pages": column,
        }
    return {"ways": ways}


MEASURED = (
    *("seconds", "tokens", "accepted", "passes", "forwards", "forwarded"),
    *("wrong", "longest"),
)


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


STAGED_KINDS = ("paragraph", "page")
PIPELINE = "the pipeline alone"


def measure_stages(bench: Bench, number: int) -> Found:
    """Stages and tolerance: work, time and accuracy (claims 9 to 11)."""
    found: Found = {}
    for kind in STAGED_KINDS:
        page = bench.pages(kind)[number]
        found[kind] = _read(bench, STAGES, page)
        text = "\n\n".join(bench.drafts(page, StandardPipeline("text-layer", bench.layout)))
        wrong, longest = distance(page.markdown, text)
        found[f"{PIPELINE}, {kind}"] = {"wrong": wrong, "longest": longest}
    return found


def stages(found: Sequence[Found]) -> Section:
    figures = _figures([page[kind] for page in found for kind in STAGED_KINDS])
    alone = [page[f"{PIPELINE}, {kind}"] for page in found for kind in STAGED_KINDS]
    wrong = sum(page["wrong"] for page in alone)
    figures["pipeline"] = 1 - wrong / sum(page["longest"] for page in alone)
    names = ("of stock", "aal", "per pass", "forwards", "forwarded", "accuracy")
    rows: list[list[Cell]] = [
        [way, *(measured[name] for name in names)] for way, measured in figures["ways"].items()
    ]
    rows.append([PIPELINE, *[None] * 5, figures["pipeline"]])
    return Section(
        "Stages and tolerance (claims 9 to 11)",
        (
            *("way", "of stock, e2e", "AAL", "tokens a pass"),
            *("forwards", "forwarded", "right"),
        ),
        rows,
        f"Paragraphs and pages, {len(found)} of each. Right: the share of characters. AAL and "
        "tokens a pass are those of the page's pass.",
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
        texts = [page.drafts(bench.plain.asker.form) for page in drafted]
        counts = [bench.replay(page, drafts) for page, drafts in zip(pages, texts, strict=True)]
        said = per_pass(counts)
        figures[name] = {"seconds": statistics.mean(each), "pages": each, "said": said}
        rows.append([name, statistics.mean(each), said])
    stock = statistics.mean(bench.stock(page).seconds for page in pages)
    figures[STOCK] = {"seconds": stock}
    rows.append(["the reader itself", stock, None])
    if bench.early is not None:
        each = _draft_model_seconds(bench, pages)
        figures["draft model"] = {"seconds": statistics.mean(each), "pages": each}
        rows.append(["a draft model, whole pages", statistics.mean(each), None])
    return Section(
        "Seconds of a draft (claim 7)",
        ("source", "seconds a page", "tokens a pass"),
        rows,
        "Layout and reading, CPU seconds of one thread; all draft tokens checked.",
        figures,
    )


def _draft_model_seconds(bench: Bench, pages: Sequence[HeldOut]) -> list[float]:
    """The processor's seconds in which the draft model alone reads each page."""
    early = parser_for(reader(bench.early), {"method": "plain"}, bench.max_new_tokens)
    seconds = []
    for page in pages:
        inputs = page_inputs(early, page.file).target
        limit = early.asker.profile.max_new_tokens
        backbone = early.engine.target.backbone
        began = processor_seconds()
        run_stock(backbone, inputs, do_sample=False, max_new_tokens=limit)
        seconds.append(processor_seconds() - began)
    return seconds


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
    found = _answers_by_way(bench, parser)
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    base = sum(seconds for seconds, _ in found["plain"])
    for way, answers in found.items():
        e2e = base / sum(seconds for seconds, _ in answers)
        accepted = statistics.mean(stats.mean_accepted_tokens for _, stats in answers)
        forwards = sum(stats.target_forwards for _, stats in answers)
        rows.append([way, e2e, accepted, forwards])
        figures[way] = {"e2e": e2e, "aal": accepted, "pages": [seconds for seconds, _ in answers]}
    note = (
        "Paragraphs; the draft model is an earlier checkpoint of the reader. The processor's "
        "seconds, those of the text layer and its blocks included."
    )
    return Section(title, ("way", "of plain, e2e", "AAL", "forwards"), rows, note, figures)


def _answers_by_way(bench: Bench, parser: DocumentParser) -> dict[str, list[tuple[float, Stats]]]:
    """The processor's seconds, drafting included, and statistics of each paragraph by way."""
    found: dict[str, list[tuple[float, Stats]]] = {way: [] for way in MODEL_WAYS}
    pipeline = StandardPipeline("text-layer", "blocks")
    for page in bench.pages("paragraph"):
        inputs = page_inputs(parser, page.file)
        drafted = bench.drafted(page, pipeline)
        drafts = drafted.drafts(bench.plain.asker.form)
        for way, method in MODEL_WAYS.items():
            references = [drafts] if way.startswith("hsd") else None
            seconds, stats = _answered(bench, parser, page, inputs, method, references)
            if references is not None:
                seconds += drafted.seconds["layout"] + drafted.seconds["read"]
            found[way].append((seconds, stats))
    return found


def _answered(
    bench: Bench,
    parser: DocumentParser,
    page: HeldOut,
    inputs: Inputs,
    method: Mapping[str, Any],
    references: Any,
) -> tuple[float, Stats]:
    """The processor's seconds and statistics of one answer, which is that of stock `generate`."""
    ending = Ending(parser.asker.profile.max_new_tokens)
    options = ending.options(inputs.target["input_ids"].shape[1])
    began = processor_seconds()
    result = parser.engine.answer(inputs, method=method, references=references, **options).run()
    seconds = processor_seconds() - began
    assert tuple(result.tokens[0]) == bench.stock(page).tokens
    return seconds, result.stats
