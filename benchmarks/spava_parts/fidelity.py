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
from shared import argument_parser, configure, digest, environment, save
from torch import Tensor

from draftlens import load
from draftlens.engine import Engine
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Prompt
from draftlens.prefill.spava.hosts import ALONE, Hosts, set_hosts
from draftlens.prefill.spava.processes.launch import start
from spava_parts.asked import FRAMES, Cell, right
from spava_parts.fidelity_page import page, summaries
from spava_parts.spoken import Spoken, along, greedy
from spava_parts.ways import ANSWERERS, WAYS, Answerer, Way, by_hosts, exact, names_of

PREDICTION = """\
Written before this run, knowing the trials of the issue (40 questions: passing matters, anchor and
choice do not show) and a first run of six prompts a cell (KL along the full prefill's answer: spava
0.004 for ordering, uniform 0.57, nothing passed 0.65).

1. Ordering at 1,025 visual tokens: full 85%; spava, random and no anchor within 3 points of it;
   uniform and nothing passed lose a third of all answers; star 15 points. Retrieval: nobody loses
   more than 3 points but slowfast, which loses 30. Counting: nothing passed loses 10 points, all
   others fewer than 5. Captions: nobody loses more than 5 points of the facts but slowfast.
2. XAttention computes 85% of all blocks at 1,025 tokens (blocks of 128 are an eighth of the prompt)
   and 60% at 4,097; SpargeAttn 60% and 40%. Both stay within 3 points of full.
3. Texts cut to one frame: full falls to 60%, and the query's choice still does not beat chance by
   more than 5 points, since chance differs from head to head and from layer to layer.
4. Longer passing helps until n/128; the anchor changes nothing but captions.
5. At 4,097 the order of methods is the same, and KL is smaller in relation to nothing passed.
6. FastV loses 5 points of ordering and of captions' facts 10.

Before the run with the second edition of the pair, on the prompts of docs/claims.md: in ordering
SPAVA is 2 points behind full, XAttention and SpargeAttn 1 to 3 ahead of SPAVA, FastV 3 behind it.
In counting nothing passed loses 8 points against SPAVA and no anchor 3. In retrieval of texts that
one frame shows SlowFast loses 15 points against full, and SPAVA none."""

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

Row = dict[str, Any]
"""One prompt of one cell: `cell`, `index`, `visual`, a digest of the `weights`, figures by way."""


def main() -> None:
    """Compare, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    weights = digest(engine.target.backbone.model)
    chosen = RINGS if args.ring else CLAIMED if args.claims else CELLS
    rows = read_rows(args.rows, weights)
    if args.minutes:
        ends_at = time.monotonic() + 60 * args.minutes
        with args.rows.open("a") as file:
            hosts = start(engine.target.backbone, 2, args.threads) if args.ring else ALONE
            set_hosts(engine.target.backbone, ALONE)
            prompts = todo(rows, chosen, args.lengths, args.rounds)
            for row in measured(engine, prompts, ends_at, hosts):
                row["weights"] = weights
                rows.append(row)
                file.write(json.dumps(row) + "\n")
                file.flush()
    cells = {cell.name: cell for cell in (*chosen, *RINGS) if cell.visual in args.lengths}
    report = {
        "environment": environment(args),
        "prediction": PREDICTION,
        "cells": [summary for cell in cells.values() for summary in summaries(cell, rows)],
    }
    save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    out = "benchmarks/results/spava_fidelity"
    parser = argument_parser(__doc__, out, repeats=1)
    parser.add_argument(
        "--rows", type=Path, default=Path("runs/spava_fidelity.jsonl"), help="one prompt a line"
    )
    parser.add_argument(
        "--minutes", type=float, default=0, help="how long to go on; 0 for the report alone"
    )
    parser.add_argument("--rounds", type=int, help="stop after this many rounds")
    parser.add_argument("--lengths", type=int, nargs="+", default=[*FRAMES], choices=[*FRAMES])
    parser.add_argument(
        "--claims", action="store_true", help="only the prompts that docs/claims.md judges"
    )
    parser.add_argument("--ring", action="store_true", help="only the check of two processes")
    parser.set_defaults(max_new_tokens=LIMIT)
    return parser.parse_args()


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
    rows: Sequence[Row], cells: Sequence[Cell], lengths: Sequence[int], rounds: int | None = None
) -> list[tuple[Cell, int]]:
    """Cells and indices of the prompts that are still to be read, in rounds, or in the first."""
    done = {(row["cell"], row["index"]) for row in rows}
    places = []
    for number, cell in enumerate(cells):
        if cell.visual in lengths:
            for index in range(cell.number):
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
        tokens, moved = compared(backbone, prompt, way, full, ends)
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
    return [ends] if type(ends) is int else list(ends)


def divergence(expected: Tensor, found: Tensor) -> float:
    """Mean KL divergence of the full prefill's distributions from the others, in nats a token."""
    true = expected.double().log_softmax(-1)
    other = found.double().log_softmax(-1)
    return float((true.exp() * (true - other)).sum(-1).mean())


def agreement(expected: Tensor, found: Tensor) -> float:
    """Share of tokens that are the likeliest under both."""
    return float((expected.argmax(-1) == found.argmax(-1)).double().mean())
