"""The claims of HSD, with the numbers of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, difference, grows, share, share_of, times

OUT = "--out benchmarks/results"
PAGES = 8
CLAIMED = f"python benchmarks/documents.py claims --pages {PAGES} {OUT}/documents_claims"
QUICK = (
    "python benchmarks/documents.py claims --pages 1 --rows OUT/documents_claims_rows.jsonl "
    "--only {} --out OUT/documents_claims"
)
STOCK = "stock generate"
HSD = "hsd, text layer"
REGIONS = "hsd, regions first"
SHAPED = (
    "python benchmarks/documents.py shapes --file PAGE --short SHORT "
    f"--threads 2 --dpi 72 {OUT}/documents_shapes"
)
SHAPES = "documents_shapes"
SMALLEST = "Granite-Docling 258M"
LAST = "HunyuanOCR 1B"
"""The model that is measured last."""

ABOUT_SHAPES = (
    "layers of five real models, whose answers are known beforehand; a sample for each model. PAGE "
    "is multi_column_page1 of marker-pdf 2.0.0 and SHORT crazyones of pypdf 7.1.0, sources on PyPI"
)
TIMED_KINDS = ("crop", "paragraph", "page", "long page")
FILE = "documents_claims"

Columns = dict[str, list[float]]
"""Values of pages by name, such as `seconds`."""


def section(report: Report, name: str) -> Any:
    return at(report, "sections", name, "figures")


def pages(report: Report, name: str, way: str) -> Columns:
    """What each page of a section took in one way."""
    found: Columns = section(report, name)["ways"][way]["pages"]
    return found


def of_all_kinds(way: str, column: str, report: Report) -> list[float]:
    """A column of the timed pages of all kinds."""
    return [value for kind in TIMED_KINDS for value in pages(report, f"times, {kind}", way)[column]]


def faster(way: str, other: str, report: Report) -> Figure:
    """How many times as fast as another way, page by page, end to end."""
    return times(of_all_kinds(other, "seconds", report), of_all_kinds(way, "seconds", report))


def fewer(way: str, other: str, report: Report) -> Figure:
    """Forwards of another way over those of this one, of all pages together."""
    return ratio(of_all_kinds(other, "forwards", report), of_all_kinds(way, "forwards", report))


def ratio(above: list[float], below: list[float]) -> Figure:
    """A ratio of sums over the same pages."""
    return share_of([[value, 1] for value in above], [[value, 1] for value in below], 0, 1)


def cells(report: Report) -> Iterator[Figure]:
    """Against stock `generate`, end to end: every way of hsd on every kind and origin of pages."""
    tables = [section(report, f"times, {kind}")["ways"] for kind in TIMED_KINDS]
    tables += [found["ways"] for found in section(report, "origins").values()]
    for ways in tables:
        stock = ways[STOCK]["pages"]["seconds"]
        for way, found in ways.items():
            if way.startswith("hsd"):
                yield times(stock, found["pages"]["seconds"])


def consistent(report: Report) -> Figure:
    values = [cell.value for cell in cells(report)]
    return share(sum(value >= 1 for value in values), len(values))


def slowest(report: Report) -> Figure:
    return min(cells(report), key=lambda cell: cell.value)


def staged(way: str, other: str, report: Report) -> Figure:
    """How many times as fast as another way of reading in stages."""
    return times(pages(report, "stages", other)["seconds"], pages(report, "stages", way)["seconds"])


def accepted(way: str, other: str, report: Report) -> Figure:
    """Accepted tokens a forward over those of another way of reading in stages."""
    case, base = (
        _rows(pages(report, "stages", name), "accepted", "passes") for name in (way, other)
    )
    return share_of(case, base, 0, 1)


def _rows(columns: Columns, *names: str) -> list[list[float]]:
    return [list(row) for row in zip(*(columns[name] for name in names), strict=True)]


def speeds(report: Report, kind: str) -> list[float]:
    stock, hsd = (pages(report, f"times, {kind}", way)["seconds"] for way in (STOCK, HSD))
    return [one / two for one, two in zip(stock, hsd, strict=True)]


def regular(report: Report) -> Figure:
    """Tokens a forward on pages of one column over those on pages of two."""
    found = []
    for kind in ("two columns", "long page"):
        counts = section(report, "length")[kind]["pages"]["said"]
        pairs = zip(counts["tokens"], counts["passes"], strict=True)
        found.append([tokens / passes for tokens, passes in pairs])
    return grows(*found)


def clean(report: Report) -> Figure:
    """Speed over stock with the text layer as it is, over that with half of its words wrong."""
    gains = []
    for origin in ("text layer: 50% of words wrong", "born digital"):
        ways = section(report, "origins")[origin]["ways"]
        stock, hsd = (ways[way]["pages"]["seconds"] for way in (STOCK, HSD))
        gains.append([one / two for one, two in zip(stock, hsd, strict=True)])
    return grows(*gains)


def savings(report: Report, kind: str) -> list[float]:
    stock, hsd = (pages(report, f"times, {kind}", way)["forwards"] for way in (STOCK, HSD))
    return [one / two for one, two in zip(stock, hsd, strict=True)]


def longer(values: Callable[[Report, str], list[float]], kind: str, report: Report) -> Figure:
    """What a kind of pages gains over what crops gain."""
    return grows(values(report, "crop"), values(report, kind))


def beside_model(way: str, report: Report) -> Figure:
    """How many times as fast as with a draft model hsd is, paragraph by paragraph."""
    found = section(report, "draft model")
    return times(found[way]["pages"], found[HSD]["pages"])


def cheap_draft(source: str, report: Report) -> Figure:
    """Seconds of a draft by a draft model over those by a pipeline, page by page."""
    found = section(report, "sources")
    return times(found["draft model"]["pages"], found[source]["pages"])


def worse(drafts: str, reader: str, report: Report) -> Figure:
    """What is left of the tokens a forward."""
    found = section(report, "quality")
    case, base = (
        _rows(found[name]["pages"][reader], "tokens", "passes")
        for name in (drafts, "0% of characters wrong")
    )
    return share_of(case, base, 0, 1)


def accuracy(report: Report) -> Figure:
    """Share of right characters of regions alone, minus that of the target on pages."""
    alone, whole = (
        _rows(pages(report, "stages", way), "wrong", "longest")
        for way in ("regions alone, 0.75", STOCK)
    )
    return difference(whole, alone, 0, 1)  # shares of wrong characters the other way round


def loops(report: Report) -> Figure:
    """Share of pages that end in a loop."""
    found = [section(report, f"times, {kind}")["loops"] for kind in TIMED_KINDS]
    return share(sum(found), len(of_all_kinds(STOCK, "seconds", report)))


def of_shapes(report: Report, rows: str = "rows") -> dict[str, Any]:
    """The models of real shapes of which there are such rows, by name."""
    return {name: model for name, model in report.items() if name != "outcome" and rows in model}


def row_of(model: Any, way: str, answer: str = "same", rows: str = "rows") -> Any:
    """A row of a model in float32."""
    key = (way, "float32", answer)
    found = (row for row in model[rows] if (row["way"], row["weights"], row["answer"]) == key)
    return next(found)


def by_model(report: Report, way: str, column: str, answer: str = "same") -> list[float]:
    return [row_of(model, way, answer)[column] for model in of_shapes(report).values()]


def drafted_alone(answer: str, report: Report) -> Figure:
    """Seconds in which the smallest model decodes an answer over those in which each other model
    decodes it with `hsd`."""
    models = of_shapes(report)
    alone = row_of(models.pop(SMALLEST), "plain")["decode"]
    decoding = [row_of(model, "hsd", answer)["decode"] for model in models.values()]
    return times([alone] * len(decoding), decoding)


def drafted_by_pipeline(layout: str, report: Report) -> Figure:
    """Seconds in which the smallest model reads a page over those of the pipeline."""
    models = of_shapes(report)
    alone = row_of(models[SMALLEST], "plain")["whole"]
    seconds = [model["drafting"][layout] for model in models.values()]
    return times([alone] * len(seconds), seconds)


def regions_at_most(answer: str, report: Report) -> Figure:
    bounds = by_model(report, "hsd", "regions_first", answer)
    return times(bounds, [1.0] * len(bounds))


def kept_of_speed(report: Report) -> Figure:
    """Seconds with the draft as it is over those with wrong characters in it."""
    return times(by_model(report, "hsd", "whole"), by_model(report, "hsd", "whole", "characters"))


def longer_page(report: Report) -> Figure:
    """Speed over stock on the long page over that on the short one, by model."""
    gains = []
    for rows in ("rows", "short"):
        models = of_shapes(report, rows).values()
        pairs = [[row_of(m, way, rows=rows)["whole"] for way in ("stock", "hsd")] for m in models]
        gains.append([stock / hsd for stock, hsd in pairs])
    return times(*gains)


def claimed(label: str, read: Callable[[Report], Figure], **bounds: Any) -> Check:
    return Check(label, FILE, read, **bounds)


def of_shape(label: str, read: Callable[[Report], Figure], **bounds: Any) -> Check:
    return Check(label, SHAPES, read, part=LAST, **bounds)


def cannot(number: str, place: str, says: str, paper: str, why: str) -> Claim:
    return Claim(number, place, says, paper, why=why)


EARLIER = (
    "FOLDER is an earlier checkpoint of the reader, which `make reader` writes; here that of "
    "`git checkout 09c33435 -- recipes/reader/checkpoints`, exported by `python -m recipes.reader "
    "--export --shallow --kept recipes/reader/checkpoints --out FOLDER`"
)
RECOGNIZED = "it needs the extras `documents` and `ocr` and the program tesseract; " + EARLIER
TOLERANT = ("regions first, 0.75 in both", "regions first, 0.75 in regions")

CLAIMS = (
    cannot(
        "1",
        "Table 1",
        "On OmniDocBench a page is read 1.38 to 2.78 times as fast end to end.",
        "dots.ocr 2.42, HunyuanOCR 2.78, Qwen3-VL-8B 1.38",
        "its targets and pages are not at hand; claim 3a has the package's reader",
    ),
    Claim(
        "2",
        "Table 1",
        "Regular pages gain most.",
        "financial reports 4.89, notes 1.39: irregular layouts and degraded text gain less",
        CLAIMED,
        (
            claimed("tokens a forward, long pages over two columns", regular, above=1.0),
            claimed("speed, clean text over half of the words wrong", clean, above=1.0),
        ),
        "the generator of pages draws one style, in one column or two",
    ),
    Claim(
        "3a",
        "Tables 1, 2",
        "Pages are read faster than by stock `generate`.",
        "1.18 to 2.78 end to end",
        CLAIMED,
        (
            claimed("one stage over stock, end to end", partial(faster, HSD, STOCK), above=1.18),
            claimed("forwards, stock over one stage", partial(fewer, HSD, STOCK), above=1.0),
        ),
        f"{PAGES} held-out pages of four kinds, drafts of the text layer",
        quick=QUICK.format("'times, crop' 'times, paragraph' 'times, page' 'times, long page'"),
    ),
    Claim(
        "3b",
        "Tables 1, 2",
        "The speedup is consistent: no kind or origin of pages is slower.",
        "consistent, yet nine of its cells are below 1",
        CLAIMED,
        (
            claimed("cells of 26 not below stock", consistent, above=0.99, form=".0%"),
            claimed("the slowest one, end to end", slowest, above=1.0),
        ),
        f"{PAGES} pages a cell",
    ),
    cannot(
        "4",
        "Table 2",
        "On olmOCR-bench the speedup is 2.27, on old scans 1.58.",
        "2.27, 1.58",
        "the package's reader knows the pages of its generator only; on real ones its tokens are "
        "those of stock, and nonsense",
    ),
    cannot(
        "5",
        "Table 3",
        "English gains as much as Chinese.",
        "3.61 and 3.75",
        "the reader knows ASCII only; alignment of CJK is in `tests/unit/drafting`",
    ),
    Claim(
        "6",
        "Table 4",
        "A draft model gains nothing where text as draft does.",
        "1.06 beside 2.42",
        f"{CLAIMED} --only 'draft model' --early FOLDER",
        (
            claimed(
                "hsd over a draft model whose trees `auto` chooses",
                partial(beside_model, "draft model, chosen by auto"),
                above=1.0,
                part="sections/draft model",
            ),
            claimed(
                "over one with chains of 5",
                partial(beside_model, "draft model, chains of 5"),
                above=1.0,
                part="sections/draft model",
            ),
        ),
        EARLIER,
    ),
    Claim(
        "6b",
        "Table 4",
        "A draft model gains nothing where text as draft does (real shapes).",
        "1.06 beside 2.42",
        SHAPED,
        tuple(
            of_shape(
                f"Granite-Docling alone, seconds of decoding over those of hsd, {title}",
                partial(drafted_alone, answer),
                above=1.0,
            )
            for answer, title in (
                ("word", "a word in fifty wrong"),
                ("notation", "another notation"),
            )
        ),
        f"{ABOUT_SHAPES}. A draft model decodes each token that it drafts, so it is slower than "
        "hsd if its decoding alone is",
        weights="",
    ),
    *(
        Claim(
            number,
            "Table 5",
            f"A draft by a pipeline costs a sixth of one by a draft model ({title}).",
            "1.99 s beside 13.07 s",
            f"{CLAIMED} --only sources --early FOLDER",
            (
                claimed(
                    "seconds of the draft model over those of the pipeline",
                    partial(cheap_draft, source),
                    above=6.0,
                    form=".1f",
                    part="sections/sources",
                ),
            ),
            RECOGNIZED,
        )
        for number, title, source in (
            ("7a", "text layer, a block for each line", "text layer, lines as blocks"),
            ("7b", "text layer, blocks by a layout network", "text layer, layout network"),
        )
    ),
    *(
        Claim(
            number,
            "Table 5",
            f"A draft by a pipeline costs a sixth of one by a draft model ({title}).",
            "1.99 s beside 13.07 s",
            SHAPED,
            (
                of_shape(
                    "seconds of Granite-Docling over those of the pipeline",
                    partial(drafted_by_pipeline, layout),
                    above=6.0,
                    form=".1f",
                ),
            ),
            ABOUT_SHAPES,
            weights="",
        )
        for number, title, layout in (
            ("7c", "real shapes, blocks of lines", "blocks"),
            ("7d", "real shapes, blocks by a layout network", "rapid-layout"),
        )
    ),
    cannot(
        "8",
        "Table 6",
        "Gains shrink on targets with compressed vision.",
        "1.41 to 1.91",
        "no such target is at hand",
    ),
    Claim(
        "9",
        "Table 7",
        "Regions alone cost accuracy.",
        "88.41 to 70.47",
        CLAIMED,
        (claimed("right characters, regions - pages", accuracy, below=0.0, form="+.1%"),),
        "the reader reads crops better than whole pages; with real shapes answers are known "
        "beforehand, and nothing is read",
    ),
    Claim(
        "10",
        "Table 8",
        "Regions first, then the page, is faster than the page alone.",
        "2.09 to 2.34 end to end",
        CLAIMED,
        (
            claimed(
                "regions first over the page alone, end to end",
                partial(faster, REGIONS, HSD),
                above=1.0,
            ),
            claimed(
                "forwards, the page alone over regions first",
                partial(fewer, REGIONS, HSD),
                above=1.0,
            ),
        ),
        f"{PAGES} held-out pages of four kinds; forwards of crops count",
    ),
    Claim(
        "10b",
        "Table 8",
        "Regions first, then the page, is faster than the page alone (real shapes).",
        "2.09 to 2.34 end to end",
        SHAPED,
        tuple(
            of_shape(
                f"regions first over the page alone at most, {title}",
                partial(regions_at_most, answer),
                above=1.0,
            )
            for answer, title in (("same", "the same text"), ("notation", "another notation"))
        ),
        f"{ABOUT_SHAPES}. The bound: no token takes time, and only the tower reads the crops",
        weights="",
    ),
    Claim(
        "11",
        "Table 8",
        "A tolerance of 0.75 accepts more and is faster.",
        "accepted +29%, end to end 2.34 to 2.42",
        CLAIMED,
        (
            claimed(
                "accepted tokens, 0.75 in both stages over regions only",
                partial(accepted, *TOLERANT),
                above=1.0,
            ),
            claimed("end to end", partial(staged, *TOLERANT), above=1.0),
        ),
        f"{PAGES} paragraphs and {PAGES} pages",
    ),
    *(
        Claim(
            f"12{letter}",
            "Fig. 3",
            f"Worse drafts cost little ({title}).",
            "stays above 2.4 of 2.78 (HunyuanOCR): above 0.86",
            CLAIMED,
            (
                claimed(
                    "5% of characters wrong, of all tokens a forward",
                    partial(worse, "5% of characters wrong", reader),
                    above=0.86,
                ),
                claimed(
                    "boxes shifted by 16 points",
                    partial(worse, "boxes shifted by 16 points", reader),
                    above=0.86,
                ),
            ),
        )
        for letter, title, reader in (
            ("a", "the package's reader", "said"),
            ("b", "a simulated perfect reader", "right"),
        )
    ),
    Claim(
        "12c",
        "Fig. 3",
        "Worse drafts cost little (real shapes).",
        "stays above 2.4 of 2.78 (HunyuanOCR): above 0.86",
        SHAPED,
        (of_shape("5% of characters wrong, of the speed end to end", kept_of_speed, above=0.86),),
        ABOUT_SHAPES,
        weights="",
    ),
    Claim(
        "13",
        "Section 4.4, Figs. A2 to A5",
        "Long pages gain more.",
        "newspapers 1.49 to 2.72 times as much as slides, four models",
        CLAIMED,
        tuple(
            claimed(f"{label}, {kind}s over crops", partial(longer, values, kind), above=bound)
            for label, values, bound in (("speed", speeds, 1.49), ("forwards saved", savings, 1.0))
            for kind in ("page", "long page")
        ),
        f"{PAGES} pages of each kind",
    ),
    Claim(
        "13b",
        "Section 4.4, Figs. A2 to A5",
        "Long pages gain more (real shapes).",
        "newspapers 1.49 to 2.72 times as much as slides, four models",
        SHAPED,
        (of_shape("speed over stock, long page over short page", longer_page, above=1.49),),
        ABOUT_SHAPES,
        weights="",
    ),
    cannot(
        "14",
        "Tables A1, A2",
        "Gains stay at 8,192 tokens.",
        "2.62, 2.42",
        "the reader was trained on answers of up to 600 tokens; claim 13 has pages of up to 356 in "
        "the mean",
    ),
    Claim(
        "15",
        "Fig. A1",
        "Targets fall into loops on some pages.",
        "such pages are dropped",
        CLAIMED,
        (claimed("share of pages that end in a loop", loops, above=0.0, form=".0%"),),
    ),
)

PAPER = Paper(
    "HSD",
    "draftlens/methods/hsd",
    "lab/draftlens_lab/reader/model.safetensors",
    CLAIMS,
    "The package's reader is right on 50 to 86% of the characters of held-out pages, so it "
    "contradicts a right draft every few characters.",
)
