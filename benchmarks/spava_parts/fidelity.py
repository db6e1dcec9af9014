"""How far approximate prefills move the answers of the embedded target.

Prompts are read in rounds, some of every cell in each, and each is written to a file of rows when
it is done. A run that was stopped goes on where it was, and a report can be made at any time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from draftlens_lab.evaluate.answers import conversation, render_side
from draftlens_lab.world.samples import Sample
from shared import PAIR, Benchmark, Report, digest, pair_of
from torch import Tensor

from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts.asked import FRAMES, Cell, right
from spava_parts.fidelity_page import page, summaries
from spava_parts.spoken import Spoken, along, greedy
from spava_parts.ways import ANSWERERS, WAYS, Answerer, Way, by_hosts, exact, names_of

LIMIT = 320
"""Most tokens of an answer."""

CELLS = (
    Cell("ordering", 1025, 0, "compared", 100, rounds=10),
    Cell("retrieval", 1025, 0, "compared", 60, rounds=14),
    Cell("ordering", 1025, 1, "needles", 60, rounds=14),
    Cell("counting", 1025, 0, "compared", 40),
    Cell("caption", 1025, 0, "compared", 20),
    Cell("ordering", 1025, 0, "lengths", 20),
    Cell("retrieval", 1025, 1, "needles", 20),
    Cell("needle", 1025, 0, "needles", 20),
    Cell("ordering", 1025, 2, "needles", 20),
    Cell("ordering", 1025, 4, "needles", 20),
    Cell("ordering", 4097, 0, "long", 20),
    Cell("retrieval", 4097, 0, "long", 10),
    Cell("ordering", 4097, 1, "needles", 10),
    Cell("counting", 4097, 0, "long", 10),
    Cell("caption", 4097, 0, "long", 10),
    Cell("ordering", 16001, 0, "needles", 1, rounds=6),
)
"""In the order of a round."""

RINGS = (Cell("ordering", 1025, 0, "ring", 3), Cell("ordering", 4097, 0, "ring", 2))
"""Prompts that two processes read exactly."""

CLAIMED = (
    Cell("ordering", 1025, 0, "order", 300),
    Cell("counting", 1025, 0, "count", 300, rounds=10),
    Cell("retrieval", 1025, 1, "retrieve", 100),
    Cell("ordering", 1025, 0, "lengths", 40),
)
"""Prompts and ways that `docs/claims.md` judges."""

CHOICES = (
    Cell("counting", 1025, 0, "choices", 60),
    Cell("ordering", 1025, 0, "choices", 60),
    Cell("ordering", 1025, 1, "choices", 60),
    Cell("retrieval", 1025, 1, "choices", 60),
    Cell("caption", 1025, 0, "choices", 20),
)
"""Prompts on which choices of passing keys are compared; that of `SpavaPrefill` was made on samples
of other seeds (400 and 500)."""

Row = dict[str, Any]
"""One prompt of one cell: `cell`, `index`, `visual`, a digest of the `weights`, figures by way."""


def read_rows(file: Path, weights: str) -> list[Row]:
    """The rows of earlier runs; a last line that was cut off and rows of a target with other
    weights are dropped from the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    lines = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = [json.loads(line) for line in lines]
    rows = [row for row in rows if row.get("weights") == weights]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def todo(
    rows: Sequence[Row],
    cells: Sequence[Cell],
    lengths: Sequence[int],
    rounds: int | None = None,
    most: int | None = None,
) -> list[tuple[Cell, int]]:
    """Cells and indices of the prompts that are still to be read, in rounds, or in the first; of
    each cell the first `most` or all."""
    done = {(row["cell"], row["index"]) for row in rows}
    places = []
    for number, cell in enumerate(cells):
        if cell.visual in lengths:
            for index in range(cell.number)[:most]:
                places.append((ceil(cell.rounds * (index + 1) / cell.number), number, index))
    order = [
        (cells[number], index)
        for place, number, index in sorted(places)
        if rounds is None or place <= rounds
    ]
    return [(cell, index) for cell, index in order if (cell.name, index) not in done]


def measured(
    engine: Engine, prompts: Sequence[tuple[Cell, int]], ends_at: float, hosts: Hosts
) -> Iterator[Row]:
    """Rows, until a moment of the monotonic clock."""
    samples: dict[str, list[Sample]] = {}
    for cell, index in prompts:
        if time.monotonic() > ends_at:
            return
        if cell.name not in samples:
            samples[cell.name] = cell.samples(cell.number)
        names = names_of(cell.ways, index, cell.visual)
        ways = {name: WAYS[name] for name in names if name in WAYS}
        if cell.ways == "ring":
            ways = {"ring, 2 processes": by_hosts(exact("ring"), hosts)}
        answerers = {name: ANSWERERS[name] for name in names if name in ANSWERERS}
        yield row_of(engine, cell, index, samples[cell.name][index], ways, answerers)


def row_of(
    engine: Engine,
    cell: Cell,
    index: int,
    sample: Sample,
    ways: Mapping[str, Way],
    answerers: Mapping[str, Answerer],
) -> Row:
    """All ways on one prompt, whose features and whose full answer are made once."""
    backbone = engine.target.backbone
    side = render_side(engine.target.processor)
    inputs = engine.process([conversation(sample, cell.frames, side)])
    prepared = backbone.prepare(inputs.target, max_new_tokens=LIMIT)
    prompt = backbone.encode(prepared)
    tokenizer = engine.target.processor.tokenizer
    ends = ends_of(prepared.config)
    truth = tokenizer(sample.turns[-1].answer, add_special_tokens=False).input_ids
    read = exact("full")(backbone, prompt).read
    full = greedy(backbone, read, [*truth, *ends], ends, LIMIT)

    def judged(tokens: Sequence[int]) -> list[int]:
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        return list(right(sample, text))

    figures: dict[str, Any] = {"full": {"right": judged(full.tokens), "kl": 0.0, "same": 1.0}}
    for name, way in ways.items():
        try:
            tokens, moved = compared(backbone, prompt, way, full, ends)
        except ValueError as cause:  # a way that does not read prompts of this model
            print(f"{name} is left out: {cause}", flush=True)
            continue
        figures[name] = {"right": judged(tokens), **moved}
    for name, answerer in answerers.items():
        figures[name] = {"right": judged(answerer(backbone, prepared, prompt))}
    visual = int(prompt.visual.sum())
    return {"cell": cell.name, "index": index, "visual": visual, "figures": figures}


def compared(
    backbone: Backbone, prompt: Prompt, way: Way, full: Spoken, ends: Sequence[int]
) -> tuple[list[int], dict[str, float]]:
    """The answer of a way, and how far its distributions are from those of the full prefill."""
    costed = way(backbone, prompt)
    found = along(backbone, costed.read, full.tokens)
    tokens = full.tokens
    same = agreement(full.logits, found)
    if same < 1:
        tokens = greedy(backbone, costed.read, full.tokens, ends, LIMIT).tokens
    return tokens, {
        "kl": divergence(full.logits, found),
        "same": same,
        "flops": costed.share,
    }


def ends_of(config: Any) -> list[int]:
    """Tokens that end an answer."""
    ends = config.eos_token_id
    return [ends] if type(ends) is int else list(ends or ())


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean KL divergence of the full prefill's distributions from the others, in nats a token."""
    true = expected.double().log_softmax(-1)
    other = found.double().log_softmax(-1)
    return float((true.exp() * (true - other)).sum(-1).mean())


def agreement(expected: Tensor, found: Tensor) -> float:
    """Share of tokens that are the likeliest under both."""
    return float((expected.argmax(-1) == found.argmax(-1)).double().mean())


def cells_of(args: argparse.Namespace) -> Sequence[Cell]:
    """The cells that the options name."""
    if args.ring:
        return RINGS
    if args.choices:
        return CHOICES
    return CLAIMED if args.claims else CELLS


def measure(args: argparse.Namespace) -> Report:
    """Read prompts for some minutes, and summarize all rows."""
    engine = pair_of(args, method="plain", calibrate=False)
    weights = digest(engine.target.backbone.model)
    chosen = cells_of(args)
    rows = read_rows(args.rows, weights)
    if args.minutes:
        ends_at = time.monotonic() + 60 * args.minutes
        with args.rows.open("a") as file:
            hosts = start(engine.target.backbone, 2, args.threads) if args.ring else ALONE
            set_hosts(engine.target.backbone, ALONE)
            prompts = todo(rows, chosen, args.lengths, args.rounds, args.prompts)
            for row in measured(engine, prompts, ends_at, hosts):
                row["weights"] = weights
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    cells = {cell.name: cell for cell in (*chosen, *RINGS) if cell.visual in args.lengths}
    return {"cells": [found for cell in cells.values() for found in summaries(cell, rows)]}


BENCHMARK = Benchmark(
    "spava_fidelity",
    __doc__,
    "Approximate prefills: fidelity",
    measure,
    page,
    {
        **PAIR,
        "--rows": {
            "type": Path,
            "default": Path("runs/spava_fidelity.jsonl"),
            "help": "one prompt a line",
        },
        "--minutes": {
            "type": float,
            "default": 0,
            "help": "how long to go on; 0 for the report alone",
        },
        "--rounds": {"type": int, "help": "stop after this many rounds"},
        "--prompts": {"type": int, "help": "of each kind at most"},
        "--lengths": {"type": int, "nargs": "+", "default": [*FRAMES], "choices": [*FRAMES]},
        "--claims": {
            "action": "store_true",
            "help": "only the prompts that docs/claims.md judges",
        },
        "--choices": {
            "action": "store_true",
            "help": "only the prompts that compare choices of passing keys",
        },
        "--ring": {"action": "store_true", "help": "only the check of two processes"},
        "--max-new-tokens": LIMIT,
    },
)
