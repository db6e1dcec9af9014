"""How far logits move when a pass is compiled, for the tiny models of every family in the tests."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

from compiled_parts import by_modules
from draftlens.core.tree import ancestors, attention_mask, chain, depths
from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.passes.inductor.engine import library_of
from draftlens.passes.inductor.static_pass import ANY, PassShape

PREDICTION = """Written before the first run: no family moves by more than 2e-5 at logits of about
10, which is what checking several tokens in one pass moves them by already."""

WIDTH = 6
CASES = 20


def main() -> None:
    args = argument_parser(__doc__, "benchmarks/results/compiled_families", repeats=1).parse_args()
    configure(args.threads)
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from families import FAMILIES, inputs

    rows = []
    for family in FAMILIES:
        backbone = Backbone(family.build())
        rows.append({"family": str(family), **moved(backbone, inputs(family, family.richest))})
        print(rows[-1], flush=True)
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


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


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    rows = []
    for row in report["rows"]:
        if "failure" in row:
            rows.append([row["family"], f"runs by its modules: {row['failure']}", "", ""])
        else:
            cells = [f"{row['moved']:.1e}", f"{row['largest']:.1f}", f"{row['seconds']:.0f}"]
            rows.append([row["family"], *cells])
    columns = ("family", "logits move by", "largest logit", "seconds to compile")
    paragraphs = [
        "# Logits of compiled passes",
        "\n".join(markdown_table(columns, rows)),
        f"Three rows, {WIDTH} tokens each, {CASES} draws of tokens after the richest prompt of "
        "the family; float32.",
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
