"""Sections of the part `claims` about crops: as rows of one session, or packed into one row."""

from __future__ import annotations

import time
from typing import Any

import torch
from shared import Case, encoded_prompt, median_seconds

from documents_parts.bench import Bench, Cell, Section
from documents_parts.timing import page_inputs
from draftlens.core.tree import attention_mask, batch_ancestors, batch_depths, chain
from draftlens.documents.asking import Ending
from draftlens.documents.reading.pipeline import StandardPipeline
from draftlens.documents.regions import crops_of, read_regions
from draftlens.models.adapter import Backbone

MOST_ROWS = (1, 4, 16)
SHAPES = ((4, 8), (8, 1), (8, 8), (16, 8))
"""Rows and tokens of each row."""


def crops(bench: Bench) -> Section:
    """Crops as rows of one ragged session, against one after the other (stage 1)."""
    parser = bench.parser(drafter="text-layer", stages="regions+page")
    ending = Ending(parser.asker.profile.max_new_tokens)
    pages = [
        bench.drafted(page, StandardPipeline("text-layer", "blocks"))
        for kind in ("page", "two columns")
        for page in bench.pages(kind)
    ]
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for most_rows in MOST_ROWS:
        group = crops_of(pages, parser.asker)
        began = time.perf_counter()
        stats = read_regions(group, parser.asker, ending, most_rows).stats
        seconds = time.perf_counter() - began
        saved = stats.first - len(group)
        figures[str(most_rows)] = {"seconds": seconds, "forwards": stats.target_forwards}
        rows.append(
            [
                f"at most {most_rows} rows",
                len(group),
                seconds,
                stats.target_forwards,
                stats.passes,
                stats.emitted,
                saved,
            ]
        )
    return Section(
        "Crops as rows (stage 1)",
        (
            *("rows", "crops", "seconds", "forwards", "passes of rows"),
            *("tokens", "accepted in prefills"),
        ),
        rows,
        "All crops of the pages with one and two columns, in one session. The last column counts "
        "draft tokens that were accepted while a crop's prompt was read.",
        figures,
    )


def packing(bench: Bench) -> Section:
    """Milliseconds of a forward whose tokens stand in rows, or are packed into one row."""
    page = bench.pages("crop")[0]
    prompt = bench.plain.asker.profile.page_prompt
    picture = bench.drafted(page, None).picture
    assert picture is not None
    backbone = bench.engine.target.backbone
    alone = page_inputs(bench.plain, page.file).target
    rows: list[list[Cell]] = []
    figures: dict[str, Any] = {}
    for num_rows, tokens in SHAPES:
        together = bench.plain.asker.process([picture] * num_rows, [prompt] * num_rows).target
        cases = {
            "rows": _forward(backbone, together, 0, tokens),
            "packed": _forward(backbone, alone, num_rows - 1, num_rows * tokens),
        }
        seconds = median_seconds(cases, max(5, bench.repeats))
        figures[f"{num_rows}x{tokens}"] = seconds
        rows.append([f"{num_rows} x {tokens}", *(1e3 * value for value in seconds.values())])
    return Section(
        "Rows against packing: milliseconds of one forward",
        ("rows x tokens", "rows", "packed"),
        rows,
        "Packed: the tokens of all crops in one row, behind the prompts of all crops.",
        figures,
    )


def _forward(backbone: Backbone, inputs: Any, further_prompts: int, tokens: int) -> Case:
    """A forward of some tokens a row behind a prompt and as many tokens more as further prompts
    would have; they are removed from the cache afterwards."""
    prompt = encoded_prompt(backbone, inputs)
    length = max(prompt.lengths)
    cache = backbone.new_cache(prompt, further_prompts * length + tokens)
    backbone.prefill(prompt, cache)
    if further_prompts:
        _read(backbone, prompt, cache, further_prompts * length)
    base = list(cache.lengths)

    def forward() -> None:
        _read(backbone, prompt, cache, tokens)
        cache.truncate(base)

    return forward


def _read(backbone: Backbone, prompt: Any, cache: Any, tokens: int) -> None:
    """Read a chain of tokens in each row."""
    rows = len(prompt.lengths)
    device = backbone.device
    chains = [chain(tokens - 1)] * rows
    mask = attention_mask(list(cache.lengths), batch_ancestors(chains, device))
    positions = prompt.next_position + batch_depths(chains, device)
    ids = torch.full((rows, tokens), 5, device=device)
    backbone.forward(ids, positions, cache, mask)
