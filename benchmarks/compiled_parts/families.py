"""How far logits move when a pass is compiled, for the tiny models of every family in the tests."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from shared import Benchmark, Report, table

from compiled_parts import by_modules
from draftlens.core.tree import ancestors, attention_mask, chain, depths
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.passes.inductor.engine import library_of
from draftlens.passes.inductor.static_pass import ANY, PassShape

WIDTH = 6
CASES = 20


@torch.inference_mode()
def moved(backbone: Backbone, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The largest difference between logits of a compiled pass and of the modules.

    Returns:
        `failure`, if the pass cannot be compiled; else `moved`, the largest logit as `largest`, and
        `seconds` of compilation.
    """
    attach([backbone], True)
    prompt = backbone.encode(backbone.prepare(inputs, max_new_tokens=1))
    rows = len(prompt.lengths)
    cache = backbone.new_cache(prompt, room=64)
    backbone.prefill(prompt, cache)
    tree = chain(WIDTH - 1)
    mask = attention_mask(prompt.lengths, ancestors(tree))
    positions = prompt.positions(depths(tree).expand(rows, -1))
    shape = PassShape(ANY, ANY, tuple(positions.shape[:-2]))
    library = library_of(backbone)
    assert library is not None
    library.wait(shape)
    if shape in library.failures:
        return {"failure": library.failures[shape]}
    most = 0.0
    largest = 0.0
    for seed in range(CASES):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(backbone.vocab_size, (rows, WIDTH), generator=generator)
        cache.truncate(prompt.lengths)
        compiled = backbone.forward(tokens, positions, cache, mask)
        cache.truncate(prompt.lengths)
        with by_modules([backbone]):
            expected = backbone.forward(tokens, positions, cache, mask)
        most = max(most, float((compiled - expected).abs().max()))
        largest = max(largest, float(expected.abs().max()))
    return {"moved": most, "largest": largest, "seconds": library.seconds.get(shape, 0.0)}


def measure(args: argparse.Namespace) -> Report:
    """A row for each family."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from families import FAMILIES, inputs

    rows = []
    for family in FAMILIES:
        backbone = Backbone(family.build())
        rows.append({"family": str(family), **moved(backbone, inputs(family, family.richest))})
        print(rows[-1], flush=True)
    return {"rows": rows}


def page(report: Report) -> list[str]:
    """The distances by family."""
    columns: dict[str, Any] = {
        "family": "{family}",
        "logits move by": lambda row: row.get("failure") or f"{row['moved']:.1e}",
        "largest logit": "{largest:.1f}",
        "seconds to compile": "{seconds:.0f}",
    }
    return [
        table(report["rows"], columns),
        f"Three rows, {WIDTH} tokens each, {CASES} draws of tokens after the richest prompt of "
        "the family; float32.",
    ]


BENCHMARK = Benchmark("compiled_families", __doc__, "Logits of compiled passes", measure, page)
