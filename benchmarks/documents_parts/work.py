"""Sections of the part `claims` that count work: exact, and without noise."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from documents_parts.bench import Bench, Cell, Section
from documents_parts.held_out import SCANS, HeldOut
from documents_parts.noise import characters
from documents_parts.replay import LENGTH, Count, Way, per_pass
from documents_parts.timing import page_inputs
from draftlens.documents.asking import Ending
from draftlens.documents.reading.layouts import make_layout
from draftlens.documents.reading.page import Page
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.documents.reading.values import Piece, Region

WRONG = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
SHIFTS = (0, 4, 8, 16, 32)
WINDOWS = (1, 2, 3, 4, 5, 6)
NODES = (8, 16, 32, 64, 128, 256)
KINDS = ("crop", "paragraph", "page", "long page", "two columns")


class ShiftedLayout:
    """A layout whose boxes stand elsewhere.

    Args:
        shift: points to the right and down.
    """

    sees = True

    def __init__(self, shift: float) -> None:
        self._layout = make_layout("rapid-layout")
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


def length(bench: Bench) -> Section:
    """Tokens a pass by length, for the reader and for one that made no mistake (claim 13)."""
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for kind in KINDS:
        pages = bench.pages(kind)
        said, right = _both(bench, pages, _drafts(bench, pages, StandardPipeline("text-layer")))
        tokens = sum(len(bench.stock(page).tokens) for page in pages) / len(pages)
        accuracy = bench.accuracy(pages, [bench.stock(page).markdown for page in pages])
        rows.append([kind, tokens, accuracy, per_pass(said), per_pass(right)])
        figures[kind] = {"tokens": tokens, "said": per_pass(said), "right": per_pass(right)}
    return Section(
        "Tokens a pass by length (claim 13)",
        ("pages", "tokens", "right", "tokens a pass", "perfect reader"),
        rows,
        "Text layers as drafts, all guesses checked. A perfect reader says the page's Markdown; "
        "its column is simulated.",
        figures,
    )


def quality(bench: Bench) -> Section:
    """Tokens a pass where only the drafts get worse: the target sees the same page (claim 12)."""
    pages = bench.pages("page")
    layer = StandardPipeline("text-layer")
    drafts: dict[str, list[list[str]]] = {}
    for share in WRONG:
        rng = random.Random(1)
        noisy = characters(share)
        clean = _drafts(bench, pages, layer)
        drafts[f"{share:.0%} of characters wrong"] = [noisy(texts, rng) for texts in clean]
    for shift in SHIFTS:
        pipeline = StandardPipeline("text-layer", ShiftedLayout(shift))
        drafts[f"boxes shifted by {shift} points"] = _drafts(bench, pages, pipeline)
    for scan in SCANS:
        pipeline = StandardPipeline("tesseract")
        drafts[f"tesseract, {scan}"] = _drafts(bench, bench.pages("page", scan), pipeline)
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for name, texts in drafts.items():
        said, right = _both(bench, pages, texts)
        rows.append([name, per_pass(said), per_pass(right)])
        figures[name] = {"said": per_pass(said), "right": per_pass(right)}
    return Section(
        "Tokens a pass by the quality of drafts (claim 12)",
        ("drafts", "tokens a pass", "perfect reader"),
        rows,
        "The same pages and answers in all rows; only what the pipeline reads gets worse.",
        figures,
    )


def settings(bench: Bench) -> Section:
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
    pages = [page for kind in ("paragraph", "page") for page in bench.pages(kind)]
    drafts = _drafts(bench, pages, StandardPipeline("text-layer"))
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for name, way in ways.items():
        said, right = _both(bench, pages, drafts, way)
        rows.append([name, per_pass(said), per_pass(right), _passes(said), _passes(right)])
        figures[name] = {"said": per_pass(said), "right": per_pass(right)}
    return Section(
        "Tokens a pass by how guesses are found",
        ("way", "tokens a pass", "perfect reader", "passes", "passes, perfect reader"),
        rows,
        "n = 3, texts, 256 nodes and 4 branches where nothing else is said.",
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


def _drafts(bench: Bench, pages: Sequence[HeldOut], pipeline: Any) -> list[list[str]]:
    return [bench.drafts(page, pipeline) for page in pages]


def _both(
    bench: Bench, pages: Sequence[HeldOut], drafts: Sequence[Sequence[str]], way: Way | None = None
) -> tuple[list[Count], list[Count]]:
    """Counts for what the reader says, and for what a perfect one would say."""
    pairs = list(zip(pages, drafts, strict=True))
    said = [bench.replay(page, texts, way) for page, texts in pairs]
    right = [bench.replay(page, texts, way, bench.truth(page)) for page, texts in pairs]
    return said, right


def _passes(counts: Sequence[Count]) -> int:
    return sum(count.passes for count in counts)
