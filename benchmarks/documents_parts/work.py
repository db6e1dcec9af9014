"""Sections of the part `claims` that count work: exact, and without noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from documents_parts.bench import Bench, Cell, Section, distance
from documents_parts.held_out import SCANS, HeldOut
from documents_parts.noise import characters
from documents_parts.paged import Found, paired_ratio
from documents_parts.replay import LENGTH, Way
from documents_parts.timing import page_inputs
from draftlens.documents.asking import Ending
from draftlens.documents.reading.layouts import Layout
from draftlens.documents.reading.page import Page, Piece, Region
from draftlens.documents.reading.pipeline import StandardPipeline

WRONG = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
SHIFTS = (0, 4, 8, 16, 32)
WINDOWS = (1, 2, 3, 4, 5, 6)
NODES = (8, 16, 32, 64, 128, 256)
KINDS = ("crop", "paragraph", "page", "long page", "two columns")


class ShiftedLayout:
    """A layout whose boxes stand elsewhere.

    Args:
        shift: points to the right and down.
        layout: finds them.
    """

    sees = True

    def __init__(self, shift: float, layout: Layout) -> None:
        self._layout = layout
        self._shift = shift

    def missing(self) -> str | None:
        """See `Layout.missing`."""
        return self._layout.missing()

    def find(self, page: Page, pieces: Sequence[Piece]) -> list[Region]:
        """See `Layout.find`."""
        regions = self._layout.find(page, pieces)
        return [self._moved(region) for region in regions]

    def _moved(self, region: Region) -> Region:
        box = region.box
        moved = replace(
            box,
            left=box.left + self._shift,
            right=box.right + self._shift,
            top=box.top + self._shift,
            bottom=box.bottom + self._shift,
        )
        return replace(region, box=moved)


def measure_length(bench: Bench, number: int) -> Found:
    """Tokens a pass by length, for the reader and for one that made no mistake (claim 13)."""
    found: Found = {}
    for kind in KINDS:
        page = bench.pages(kind)[number]
        stock = bench.stock(page)
        wrong, longest = distance(page.markdown, stock.markdown)
        found[kind] = _both(bench, page, bench.drafts(page, _layer(bench))) | {
            "tokens": len(stock.tokens),
            "wrong": wrong,
            "longest": longest,
        }
    return found


def length(found: Sequence[Found]) -> Section:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for kind in KINDS:
        pages = [page[kind] for page in found]
        tokens = sum(page["tokens"] for page in pages) / len(pages)
        wrong = sum(page["wrong"] for page in pages)
        accuracy = 1 - wrong / max(1, sum(page["longest"] for page in pages))
        figures[kind] = _per_pass(pages) | {"tokens": tokens}
        rows.append([kind, tokens, accuracy, figures[kind]["said"], figures[kind]["right"]])
    return Section(
        "Tokens a pass by length (claim 13)",
        ("pages", "tokens", "right", "tokens a pass", "perfect reader"),
        rows,
        f"{len(found)} pages of each kind, text layers as drafts, all draft tokens checked. A "
        "perfect reader says the page's Markdown; its column is simulated.",
        figures,
    )


def measure_quality(bench: Bench, number: int) -> Found:
    """Tokens a pass where only the drafts get worse: the target sees the same page (claim 12)."""
    page = bench.pages("page")[number]
    clean = bench.drafts(page, _layer(bench))
    drafts: dict[str, list[str]] = {}
    for share in WRONG:
        noisy = characters(share)
        drafts[f"{share:.0%} of characters wrong"] = noisy(clean, random.Random(number))
    for shift in SHIFTS:
        pipeline = StandardPipeline("text-layer", ShiftedLayout(shift, bench.layout))
        drafts[f"boxes shifted by {shift} points"] = bench.drafts(page, pipeline)
    for scan in SCANS:
        pipeline = StandardPipeline("tesseract", bench.layout)
        drafts[f"tesseract, {scan}"] = bench.drafts(bench.pages("page", scan)[number], pipeline)
    return {name: _both(bench, page, texts) for name, texts in drafts.items()}


def quality(found: Sequence[Found]) -> Section:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    unharmed = _per_pass([page[f"{WRONG[0]:.0%} of characters wrong"] for page in found])
    for name in found[0]:
        figures[name] = _per_pass([page[name] for page in found])
        kept = [_kept(figures[name], unharmed, reader) for reader in ("said", "right")]
        rows.append([name, figures[name]["said"], kept[0], figures[name]["right"], kept[1]])
    return Section(
        "Tokens a pass by the quality of drafts (claim 12)",
        ("drafts", "tokens a pass", "of all", "perfect reader", "of all"),
        rows,
        f"The same {len(found)} pages and answers in all rows; only what the pipeline reads gets "
        "worse. Intervals: 95%, bootstrap over pages, paired.",
        figures,
    )


def _kept(worse: Found, unharmed: Found, reader: str) -> str:
    """What is left of the tokens a pass, which of answers that do not change is a ratio of
    passes."""
    passes = (found["pages"][reader]["passes"] for found in (unharmed, worse))
    return paired_ratio(*passes).text(".2f")


def measure_settings(bench: Bench, number: int) -> Found:
    """Tokens a pass by window, matching, variants, and size of the trees."""
    bare = Way()
    ways = {"as it is": bare}
    for window in WINDOWS:
        ways[f"n = {window}"] = bare.but(window=window)
    ways["token ids"] = bare.but(by_text=False)
    ways["no variants"] = bare.but(variants=False)
    ways["no recovery"] = bare.but(recovery=False)
    ways["no heads"] = bare.but(heads=False)
    for most in NODES:
        ways[f"{most} nodes"] = replace(bare, nodes=most)
    ways["a chain"] = replace(bare, branches=1)
    found: Found = {}
    for kind in ("paragraph", "page"):
        page = bench.pages(kind)[number]
        drafts = bench.drafts(page, _layer(bench))
        found[kind] = {name: _both(bench, page, drafts, way) for name, way in ways.items()}
    return found


def settings(found: Sequence[Found]) -> Section:
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for name in found[0]["page"]:
        pages = [page[kind][name] for page in found for kind in ("paragraph", "page")]
        figures[name] = _per_pass(pages)
        passes = [sum(page[reader]["passes"] for page in pages) for reader in ("said", "right")]
        rows.append([name, figures[name]["said"], figures[name]["right"], *passes])
    return Section(
        "Tokens a pass by how draft tokens are found",
        ("way", "tokens a pass", "perfect reader", "passes", "passes, perfect reader"),
        rows,
        f"Paragraphs and pages, {len(found)} of each; n = 3, texts, 256 nodes and 4 branches where "
        "nothing else is said.",
        figures,
    )


def check_replays(bench: Bench) -> Section:
    """Replays against the real engine: the same passes."""
    rows: list[list[Cell]] = []
    method = {"method": "hsd", "num_speculative_tokens": LENGTH}
    asker = bench.parser(drafter="none").asker
    for page in [*bench.pages("crop")[:1], *bench.pages("paragraph")[:1]]:
        drafts = bench.drafts(page, StandardPipeline("text-layer"))
        count = bench.replay(page, drafts)
        inputs = page_inputs(bench.plain, page.file)
        ending = Ending(asker.profile.max_new_tokens)
        result = asker.answer(inputs, [drafts], method, ending).run()
        assert tuple(result.tokens[0]) == bench.stock(page).tokens
        assert result.stats.passes == count.passes
        rows.append([page.file.stem, count.passes, result.stats.passes])
    return Section("Replays are right", ("page", "replayed passes", "passes"), rows)


def _layer(bench: Bench) -> StandardPipeline:
    return StandardPipeline("text-layer", bench.layout)


def _both(bench: Bench, page: HeldOut, drafts: Sequence[str], way: Way | None = None) -> Found:
    """Counts for what the reader says, and for what a perfect one would say."""
    counts = {
        "said": bench.replay(page, drafts, way),
        "right": bench.replay(page, drafts, way, bench.truth(page)),
    }
    return {name: {"tokens": c.tokens, "passes": c.passes} for name, c in counts.items()}


def _per_pass(pages: Sequence[Found]) -> Found:
    """Tokens a pass of several pages together, and the counts of each page."""
    found: Found = {"pages": {}}
    for reader in ("said", "right"):
        columns = {name: [page[reader][name] for page in pages] for name in ("tokens", "passes")}
        found["pages"][reader] = columns
        found[reader] = sum(columns["tokens"]) / max(1, sum(columns["passes"]))
    return found
