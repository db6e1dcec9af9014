"""The claims of HSD, with the numbers of the records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from .claim import Check, Claim, Paper, Report
from .figures import Figure, at, grows, once, share, times

OUT = "--out benchmarks/results"
CLAIMED = f"python benchmarks/documents.py claims {OUT}/documents_claims"
SPEED = f"python benchmarks/documents.py speed --pages 2 {OUT}/documents_speed"
HSD = "hsd, text layer"
REGIONS = "hsd, text layer, regions first"
TIMED_KINDS = ("crop", "paragraph", "page", "long page")
FILE = "documents_claims"


def section(report: Report, name: str) -> Any:
    return at(report, "sections", name, "figures")


def stages(way: str, value: str, report: Report) -> float:
    found: float = section(report, "stages")["ways"][way][value]
    return found


def quotient(value: str, way: str, other: str, report: Report) -> Figure:
    """A figure of one way of reading in stages over that of another one."""
    return once(stages(way, value, report) / stages(other, value, report))


def cells(report: Report) -> Iterator[float]:
    """End to end of stock `generate`: every way of hsd on every kind and origin of pages."""
    tables = [section(report, f"times, {kind}")["ways"] for kind in TIMED_KINDS]
    tables += [found["ways"] for found in section(report, "origins").values()]
    for ways in tables:
        yield from (found["e2e"] for way, found in ways.items() if way.startswith("hsd"))


def consistent(report: Report) -> Figure:
    values = list(cells(report))
    return share(sum(value >= 1 for value in values), len(values))


def over_stock(way: str, report: Report) -> Figure:
    """Over pages of all kinds: how many times as fast as stock `generate`, end to end."""
    speeds = page_speeds(way, report)
    return times(speeds, [1.0] * len(speeds))


def page_speeds(way: str, report: Report) -> list[float]:
    kinds: Mapping[str, Any] = at(report, "kinds")
    return [speed for kind in kinds.values() for speed in kind["speed"][way]]


def regions_over_page(report: Report) -> Figure:
    return times(page_speeds(REGIONS, report), page_speeds(HSD, report))


def longer(report: Report) -> Figure:
    """Speed on pages over speed on crops."""
    kinds = at(report, "kinds")
    return grows(kinds["crop"]["speed"][HSD], kinds["page"]["speed"][HSD])


def draft_model(report: Report) -> Figure:
    found = section(report, "draft model")
    return once(found[HSD]["e2e"] / found["draft model, chosen by auto"]["e2e"])


def cheap_draft(report: Report) -> Figure:
    """Seconds of a draft by a draft model over those by the text layer."""
    found = section(report, "sources")
    dear, cheap = found["draft model"], found["text layer, lines as blocks"]
    return once(dear["seconds"] / cheap["seconds"])


def worse(drafts: str, reader: str, report: Report) -> Figure:
    """What is left of the tokens a forward."""
    found = section(report, "quality")
    return once(found[drafts][reader] / found["0% of characters wrong"][reader])


def accuracy(report: Report) -> Figure:
    """Share of right characters of regions alone, minus that of the target on pages."""
    alone, whole = (
        stages(way, "accuracy", report) for way in ("regions alone, 0.75", "stock generate")
    )
    return once(alone - whole)


def loops(report: Report) -> Figure:
    """Share of pages that end in a loop; two of each kind."""
    found = [section(report, f"times, {kind}")["loops"] for kind in TIMED_KINDS]
    return share(sum(found), 2 * len(found))


def claimed(label: str, read: Callable[[Report], Figure], **bounds: Any) -> Check:
    return Check(label, FILE, read, **bounds)


def cannot(number: str, place: str, says: str, paper: str, why: str) -> Claim:
    return Claim(number, place, says, paper, why=why)


CLAIMS = (
    cannot(
        "1",
        "Table 1",
        "On OmniDocBench a page is read 1.38 to 2.78 times as fast end to end.",
        "dots.ocr 2.42, HunyuanOCR 2.78, Qwen3-VL-8B 1.38",
        "its targets and pages are not at hand; claim 3a has the package's reader",
    ),
    cannot(
        "2",
        "Table 1",
        "Regular pages gain most.",
        "financial reports 4.89, notes 1.39",
        "the generator of pages draws one style",
    ),
    Claim(
        "3a",
        "Tables 1, 2",
        "Pages are read faster than by stock `generate`.",
        "1.38 to 2.78",
        SPEED,
        (
            Check(
                "text layer, one stage, over stock, end to end",
                "documents_speed",
                partial(over_stock, HSD),
                above=1.0,
            ),
        ),
        "six held-out pages of three kinds",
        quick="python benchmarks/documents.py speed --pages 1 --repeats 1 --kinds crop paragraph "
        "--out OUT/documents_speed",
    ),
    Claim(
        "3b",
        "Tables 1, 2",
        "The speedup is consistent: no kind or origin of pages is slower.",
        "consistent, yet nine of its cells are below 1",
        CLAIMED,
        (claimed("cells of 26 not below stock", consistent, above=0.99, form=".0%"),),
        "two pages a cell",
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
        f"{CLAIMED} --early FOLDER",
        (claimed("hsd over a draft model, end to end", draft_model, above=1.0),),
        "FOLDER is an earlier checkpoint of the reader (`make reader` writes some)",
    ),
    Claim(
        "7",
        "Table 5",
        "A draft by a pipeline costs a sixth of one by a draft model.",
        "1.99 s beside 13.07 s",
        f"{CLAIMED} --early FOLDER",
        (claimed("draft model over text layer, seconds", cheap_draft, above=6.0, form=".0f"),),
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
        "the reader reads crops better than whole pages",
    ),
    Claim(
        "10",
        "Table 8",
        "Regions first, then the page, is faster than the page alone.",
        "2.09 to 2.34 end to end",
        SPEED,
        (
            Check(
                "regions first over the page alone, end to end",
                "documents_speed",
                regions_over_page,
                above=1.0,
            ),
        ),
        "six held-out pages of three kinds",
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
                partial(
                    quotient,
                    "aal",
                    "regions first, 0.75 in both",
                    "regions first, 0.75 in regions",
                ),
                above=1.0,
            ),
            claimed(
                "end to end",
                partial(
                    quotient,
                    "e2e",
                    "regions first, 0.75 in both",
                    "regions first, 0.75 in regions",
                ),
                above=1.0,
            ),
        ),
    ),
    *(
        Claim(
            f"12{letter}",
            "Fig. 3",
            f"Worse drafts cost little ({title}).",
            "stays above 2.4 of 2.42; above 0.8 of the tokens",
            CLAIMED,
            (
                claimed(
                    "5% of characters wrong, of all tokens a forward",
                    partial(worse, "5% of characters wrong", reader),
                    above=0.8,
                ),
                claimed(
                    "boxes shifted by 16 points",
                    partial(worse, "boxes shifted by 16 points", reader),
                    above=0.8,
                ),
            ),
        )
        for letter, title, reader in (
            ("a", "the package's reader", "said"),
            ("b", "a simulated perfect reader", "right"),
        )
    ),
    Claim(
        "13",
        "Section 4.4, Figs. A2 to A5",
        "Long pages gain more.",
        "slides 1.52, newspapers 2.98",
        SPEED,
        (
            Check(
                "speed on pages (226 tokens) over crops (83)",
                "documents_speed",
                longer,
                above=1.0,
            ),
        ),
        "two pages of each kind",
    ),
    cannot(
        "14",
        "Tables A1, A2",
        "Gains stay at 8,192 tokens.",
        "2.62, 2.42",
        "the reader was trained on answers of up to 600 tokens",
    ),
    Claim(
        "15",
        "Fig. A1",
        "Targets fall into loops on some pages.",
        "such pages are dropped",
        CLAIMED,
        (claimed("share of eight pages that end in a loop", loops, above=0.0, form=".0%"),),
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
