"""The claims of the paper, what was expected of each here, and the figures that decide it.

Verdicts need intervals; `benchmarks/claims_parts/hsd.py` has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from documents_parts.held_out import SCANS
from documents_parts.timing import STOCK

Figures = Mapping[str, Mapping[str, Any]]
"""The figures of all sections, by the section's name."""

HSD = "hsd, text layer"

TIMED_KINDS = ("crop", "paragraph", "page", "long page")
"""Kinds of pages that every way is timed on, from short to long."""


@dataclass(frozen=True)
class Claim:
    """One claim.

    Args:
        number: in the issue's table.
        says: the paper, in short.
        prediction: what was expected of this benchmark, written before its first run.
        seen: what was measured, from the figures of sections, or why nothing can be.
    """

    number: int
    says: str
    prediction: str
    seen: Callable[[Figures], str]


def _untestable(why: str) -> Callable[[Figures], str]:
    def seen(figures: Figures) -> str:
        return f"cannot be tested here: {why}"

    return seen


def _timed(figures: Figures, kind: str) -> Mapping[str, Any]:
    """The ways of one kind of page."""
    ways: Mapping[str, Any] = figures[f"times, {kind}"]["ways"]
    return ways


def _all_cells(figures: Figures) -> list[float]:
    """End to end of stock `generate`, of every kind of page and origin that hsd was timed on."""
    tables = [_timed(figures, kind) for kind in TIMED_KINDS]
    tables += [found["ways"] for found in figures["origins"].values()]
    cells = []
    for ways in tables:
        cells += [found["e2e"] for way, found in ways.items() if way.startswith("hsd")]
    return cells


def _paper_figures(figures: Figures) -> str:
    ways = _timed(figures, "page")[HSD]
    return (
        "none of its targets can be had. This reader, on pages that it mostly misreads: AAL "
        f"{ways['aal']:.2f}, e2e {ways['e2e']:.2f}"
    )


def _claim_1(figures: Figures) -> str:
    return f"cannot be tested here: {_paper_figures(figures)}"


def _claim_3(figures: Figures) -> str:
    cells = _all_cells(figures)
    below = sum(cell < 1 for cell in cells)
    return f"{below} of {len(cells)} cells are below stock; the smallest is {min(cells):.2f}"


def _claim_6(figures: Figures) -> str:
    found = figures["draft model"]
    if not found:
        return "cannot be tested here: no earlier checkpoint was given"
    model = found["draft model, chosen by auto"]
    hsd = found[HSD]
    return (
        f"of plain, end to end: draft model {model['e2e']:.2f} at AAL {model['aal']:.2f}, hsd "
        f"{hsd['e2e']:.2f} at {hsd['aal']:.2f}"
    )


def _claim_7(figures: Figures) -> str:
    found = figures["sources"]
    cheap = found["text layer, lines as blocks"]["seconds"]
    dear = found.get("draft model", found[STOCK])["seconds"]
    return (
        f"a draft by the text layer takes {cheap:.3f} s a page, by tesseract "
        f"{found['tesseract']['seconds']:.2f} s, by a draft model {dear:.2f} s"
    )


def _claim_9(figures: Figures) -> str:
    found = figures["stages"]
    ways = found["ways"]
    target = ways[STOCK]["accuracy"]
    alone = ways["regions alone, 0.75"]["accuracy"]
    both = ways["regions first, 0.75 in both"]["accuracy"]
    return (
        f"right: pipeline {found['pipeline']:.1%}, target {target:.1%}, regions alone {alone:.1%}, "
        f"both stages {both:.1%}"
    )


def _claim_10(figures: Figures) -> str:
    ways = figures["stages"]["ways"]
    page = ways["page"]
    both = ways["regions first, exact"]
    return (
        f"tokens a pass {page['per pass']:.2f} -> {both['per pass']:.2f}, e2e {page['e2e']:.2f} -> "
        f"{both['e2e']:.2f}, forwards {page['forwards']} -> {both['forwards']} with the crops'"
    )


def _claim_11(figures: Figures) -> str:
    ways = figures["stages"]["ways"]
    exact = ways["regions first, 0.75 in regions"]
    lax = ways["regions first, 0.75 in both"]
    gain = lax["aal"] / exact["aal"] - 1
    return (
        f"AAL {exact['aal']:.2f} -> {lax['aal']:.2f} ({gain:+.0%}), e2e {exact['e2e']:.2f} -> "
        f"{lax['e2e']:.2f}"
    )


def _claim_12(figures: Figures) -> str:
    found = figures["quality"]
    best = found["0% of characters wrong"]
    few = found["5% of characters wrong"]
    shifted = found["boxes shifted by 16 points"]
    scans = [found[f"tesseract, {scan}"]["said"] for scan in SCANS]
    return (
        f"of {best['said']:.2f} tokens a pass, 5% of wrong characters leave {few['said']:.2f}, "
        f"boxes shifted by 16 points {shifted['said']:.2f}, tesseract on scans "
        f"{', '.join(f'{value:.2f}' for value in scans)}; with a perfect reader the first three "
        f"are {best['right']:.2f}, {few['right']:.2f}, {shifted['right']:.2f}"
    )


def _claim_13(figures: Figures) -> str:
    found = figures["length"]
    right = [found[kind]["right"] for kind in TIMED_KINDS]
    said = [found[kind]["said"] for kind in TIMED_KINDS]
    seconds = [_timed(figures, kind)[HSD]["e2e"] for kind in TIMED_KINDS]
    return "; ".join(
        f"{found[kind]['tokens']:.0f} tokens: {a:.2f} a pass ({b:.2f} perfect), e2e {c:.2f}"
        for kind, a, b, c in zip(TIMED_KINDS, said, right, seconds, strict=True)
    )


def _claim_15(figures: Figures) -> str:
    loops = {kind: figures[f"times, {kind}"]["loops"] for kind in TIMED_KINDS}
    return f"pages of this reader that end in a loop, by kind: {loops}"


CLAIMS = (
    Claim(
        1,
        "OmniDocBench, e2e: dots.ocr 2.42, HunyuanOCR 2.78, Qwen3-VL-8B 1.38",
        "Nothing is known about targets that cannot be had.",
        _claim_1,
    ),
    Claim(
        2,
        "regular pages gain most, notes least",
        "The generator has one style of page.",
        _untestable("the generator draws one style; its kinds differ in length, see claim 13"),
    ),
    Claim(
        3,
        "consistent speedups (yet nine of its cells are below 1)",
        "Fails for garbage and for short pages, where drafts cost more than they save.",
        _claim_3,
    ),
    Claim(
        4,
        "olmOCR-bench: dots.ocr 2.27, old scans 1.58",
        "The reader's text on real pages is nonsense.",
        _untestable("the reader knows its generator only; scans of it are in the table of origins"),
    ),
    Claim(
        5,
        "English gains as Chinese does",
        "The reader knows ASCII only.",
        _untestable("for lack of a target; alignment of CJK is in tests/unit/draft"),
    ),
    Claim(
        6,
        "a draft model accepts as much and gains nothing (1.06), HSD does (2.42)",
        "Holds: the early reader has a quarter of the layers and sees the page anew.",
        _claim_6,
    ),
    Claim(7, "a draft takes 1.99 s a page instead of 13.07 s", "Holds by far: 10 ms.", _claim_7),
    Claim(
        8,
        "gains shrink on compressed vision (1.41 to 1.91)",
        "There is no such target.",
        _untestable("it needs a target with compressed vision"),
    ),
    Claim(
        9,
        "regions alone cost accuracy, both stages do not",
        "The first half fails: the reader is better on crops. The second half holds.",
        _claim_9,
    ),
    Claim(
        10,
        "regions first: AAL 3.49 -> 3.87, e2e 2.09 -> 2.34",
        "Tokens a pass rise a little, time does not fall: on a CPU crops cost as much as pages.",
        _claim_10,
    ),
    Claim(
        11,
        "tolerance 0.75: AAL +29%, e2e 2.34 -> 2.42",
        "Holds: a reader in doubt takes what is offered; AAL +40%.",
        _claim_11,
    ),
    Claim(
        12,
        "worse drafts cost little",
        "Holds for this reader, whose own mistakes bound it; a perfect one loses half at 5% of "
        "wrong characters.",
        _claim_12,
    ),
    Claim(
        13,
        "long pages gain more; poor drafts and dear prefill bound the rest",
        "Holds end to end from crops to pages; tokens a pass do not rise with length.",
        _claim_13,
    ),
    Claim(
        14,
        "gains stay at 8,192 tokens",
        "The reader was trained on up to 600.",
        _untestable("the reader was trained on answers of up to 600 tokens"),
    ),
    Claim(15, "targets fall into loops", "Holds on long pages, one of four.", _claim_15),
)
