"""The first picture of README and site, and the one of docs/parallel.md, from recorded results.

    python benchmarks/pictures.py

`docs/img/answer.png`: an answer of the embedded pair with the tokens that the draft supplied (a
chain of 5, so that every run gives the same picture), and the times of
benchmarks/results/engine.json.
`docs/img/parallel.png`: the speedups of benchmarks/results/parallel_pair.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from draftlens_lab.measure.palette import BLUE, INK, MUTED, PAPER, SLATE, TEAL, YELLOW
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

import draftlens

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "img"
CLIP = ROOT / "draftlens" / "embedded" / "clips" / "shapes.mp4"

DPI = 100
WIDTH = 14.0
"""Inches. At a text width of 830 pixels letters of 20 points are as large as the page's."""
MARGIN = 0.4
TEXT, SMALL, HEAD = 20, 17, 24
"""Sizes of letters in points."""
LINE = 0.42
"""Inches from one printed line to the next."""
LETTER = TEXT * 0.602 / 72
"""Inches of a letter of DejaVu Sans Mono."""
LINE_LETTERS = int((WIDTH - 2 * MARGIN) / LETTER)
BAR = 0.5
"""Inches from one bar to the next."""

ENGINES = (
    ("hf-generate", "stock generate", SLATE),
    ("hf-assisted (γ = 5)", "stock assisted generation, chains of 5", SLATE),
    ("chain (γ = 5)", "draftlens, chain of 5", TEAL),
    ("tree (auto, the default)", "draftlens, default", TEAL),
)
WAYS = (
    ("plain", "plain decoding", SLATE),
    ("stock assisted", "stock assisted generation", SLATE),
    ("unpruned, serial chain of 9", "draft before target (best serial chain)", BLUE),
    ("unpruned, parallel", "draft beside target (parallel)", TEAL),
)


@dataclass(frozen=True)
class Bar:
    name: str
    value: float
    label: str
    colour: str


def answer_tokens() -> list[tuple[str, bool]]:
    """The pieces of an answer, and whether the draft supplied them."""
    engine = draftlens.load(device="cpu", method={"num_speculative_tokens": 5})
    pieces: list[tuple[str, bool]] = []
    for chunk in engine.stream("Describe the video.", video=str(CLIP), max_new_tokens=320):
        pieces += zip(engine.pieces(list(chunk.tokens)), chunk.from_draft, strict=True)
    return [(text, drafted) for text, drafted in pieces if text]


def printed(pieces: Sequence[tuple[str, bool]]) -> list[list[tuple[str, bool]]]:
    """The pieces in lines; words stay whole."""
    words: list[list[tuple[str, bool]]] = []
    for text, drafted in pieces:
        if not words or text.startswith(" "):
            words.append([])
        words[-1].append((text, drafted))
    lines: list[list[tuple[str, bool]]] = [[]]
    length = 0
    for word in words:
        width = sum(len(text) for text, _ in word)
        if length + width > LINE_LETTERS:
            lines.append([])
            length = 0
            word = [(word[0][0].lstrip(), word[0][1]), *word[1:]]
        lines[-1] += word
        length += width
    return lines


def canvas(height: float) -> tuple[Figure, Axes]:
    """A figure whose units are inches, downwards."""
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, facecolor=PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return figure, axes


def write(axes: Axes, across: float, down: float, text: str, **style: Any) -> None:
    axes.text(across, down, text, va="center", parse_math=False, **{"color": INK, **style})


def draw_bars(axes: Axes, top: float, bars: Sequence[Bar]) -> None:
    """Bars below each other, with names on their left and labels at their ends."""
    left = 6.3
    scale = (WIDTH - left - 2.9) / max(bar.value for bar in bars)
    for number, bar in enumerate(bars):
        middle = top + number * BAR + BAR / 2
        write(axes, MARGIN, middle, bar.name, size=SMALL)
        axes.barh(middle, bar.value * scale, left=left, height=0.7 * BAR, color=bar.colour)
        write(axes, left + bar.value * scale + 0.12, middle, bar.label, size=SMALL, weight="bold")


def draw_answer(path: Path) -> None:
    pieces = answer_tokens()
    lines = printed(pieces)
    summary = json.loads((RESULTS / "engine.json").read_text())["summary"]
    bars = []
    for key, name, colour in ENGINES:
        seconds, speedup = summary[key]["e2e_seconds"], summary[key]["speedup_e2e"]["median"]
        label = f"{seconds:.2f} s" if speedup == 1 else f"{seconds:.2f} s, {speedup:.2f} times"
        bars.append(Bar(name, seconds, label, colour))
    text_top = 1.25
    bars_top = text_top + len(lines) * LINE + 1.0
    figure, axes = canvas(bars_top + len(bars) * BAR + 0.65)
    drafted = sum(is_drafted for _, is_drafted in pieces)
    write(axes, MARGIN, 0.45, "One answer, by two models", size=HEAD, weight="bold")
    share = f"{drafted} of {len(pieces)} tokens"
    legend = f"supplied by the small draft and verified by the target: {share}"
    axes.barh(0.95, 0.35, left=MARGIN, height=0.26, color=YELLOW, alpha=0.55)
    write(axes, MARGIN + 0.5, 0.95, legend, size=SMALL, color=MUTED)
    for number, line in enumerate(lines):
        across, middle = MARGIN, text_top + number * LINE + LINE / 2
        for text, is_drafted in line:
            width = len(text) * LETTER
            blank = (len(text) - len(text.lstrip())) * LETTER
            if is_drafted:
                axes.barh(
                    middle,
                    width - blank,
                    left=across + blank,
                    height=0.8 * LINE,
                    color=YELLOW,
                    alpha=0.55,
                    align="center",
                    linewidth=0,
                )
            write(axes, across, middle, text, size=TEXT, family="DejaVu Sans Mono")
            across += width
    write(axes, MARGIN, bars_top - 0.4, "Seconds for an answer", size=HEAD, weight="bold")
    draw_bars(axes, bars_top, bars)
    note = (
        "Embedded pair, two clips, one thread of an AMD EPYC, vision and prefill included. "
        "Same tokens."
    )
    write(axes, MARGIN, bars_top + len(bars) * BAR + 0.3, note, size=SMALL - 2, color=MUTED)
    save(figure, path)


def draw_parallel(path: Path) -> None:
    runs = json.loads((RESULTS / "parallel_pair.json").read_text())["runs"]
    height = 1.0
    panels = []
    for frames in ("16", "64"):
        seconds = {way: median(run["e2e"] for run in runs[frames][way]) for way, _, _ in WAYS}
        bars = []
        for key, name, colour in WAYS:
            ratio = seconds["plain"] / seconds[key]
            bars.append(Bar(name, ratio, f"{ratio:.2f} times", colour))
        panels.append((height, frames, bars))
        height += 0.55 + len(bars) * BAR + 0.3
    figure, axes = canvas(height + 0.2)
    write(axes, MARGIN, 0.45, "Speed over plain decoding, end to end", size=HEAD, weight="bold")
    for top, frames, bars in panels:
        write(axes, MARGIN, top + 0.15, f"{frames} frames", size=TEXT, weight="bold")
        draw_bars(axes, top + 0.45, bars)
    note = "Embedded pair, greedy, float32, two cores of an AMD EPYC, medians of three repeats."
    write(axes, MARGIN, height - 0.1, note, size=SMALL - 2, color=MUTED)
    save(figure, path)


def save(figure: Figure, path: Path) -> None:
    figure.savefig(path, facecolor=PAPER)
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    draw_answer(IMAGES / "answer.png")
    draw_parallel(IMAGES / "parallel.png")
