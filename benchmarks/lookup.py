"""Method lookup beside stock `generate` and stock prompt lookup on the embedded target.

Four workloads: captions of clips, second turns that ask for the same caption again, answers that
must not end and so repeat themselves, and short answers in which nothing repeats. Stock prompt
lookup is given `suppress_tokens` of the ids that stand for pixels; without, it fails where it
proposes one of them.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from draftlens_lab.evaluate.answers import conversation, dialogue
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens_lab.world.samples import Sample
from shared import (
    PROMPT,
    Answerer,
    Run,
    argument_parser,
    caption_sample,
    configure,
    engine_answerer,
    environment,
    environment_line,
    rotated,
    save,
    stock_answerer,
)

from draftlens import load
from draftlens.engine import Engine
from draftlens.inputs import Inputs

FRAMES = 8
SIDE = 64
STOCK = "stock generate"
Workload = list[tuple[Inputs, dict[str, Any]]]


def second_turn(seed: int) -> Sample:
    """A clip whose caption is asked for twice."""
    scene = sample_scene(HELD_OUT + seed)
    turn = Turn(PROMPT, marked_caption(scene), "caption")
    return Sample("clip", (scene,), (turn, turn))


def workloads(engine: Engine, clips: int, most: int) -> dict[str, Workload]:
    """Prompts with the options of their answers, by workload."""
    found: dict[str, Workload] = {
        "captions": [],
        "the same caption again": [],
        "answers that must not end": [],
        "short answers": [],
    }
    for seed in range(clips):
        caption = engine.process([conversation(caption_sample(seed), FRAMES, SIDE)])
        again = engine.process([dialogue(second_turn(seed), FRAMES, SIDE)])
        scene = sample_scene(HELD_OUT + seed)
        question = Turn("How many shots are there?", "", "counting")
        short = engine.process([conversation(Sample("clip", (scene,), (question,)), FRAMES, SIDE)])
        options = {"max_new_tokens": most, "do_sample": False}
        found["captions"].append((caption, options))
        found["the same caption again"].append((again, options))
        endless = {**options, "min_new_tokens": most}
        found["answers that must not end"].append((short, endless))
        found["short answers"].append((short, options))
    return found


def ways(engine: Engine) -> dict[str, Answerer]:
    """The contestants."""
    target = engine.target.backbone
    suppressed = sorted(target.pixel_ids)
    return {
        STOCK: stock_answerer(target),
        "stock prompt lookup": stock_answerer(
            target, prompt_lookup_num_tokens=10, suppress_tokens=suppressed
        ),
        "`plain`": engine_answerer(engine, "plain"),
        "`lookup`": engine_answerer(engine, "lookup"),
        "`lookup`, 10 tokens": engine_answerer(
            engine, {"method": "lookup", "num_speculative_tokens": 10}
        ),
    }


def measure(engine: Engine, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each workload and way."""
    contestants = ways(engine)
    rows = []
    for name, prompts in workloads(engine, args.clips, args.max_new_tokens).items():
        runs: dict[str, list[Run]] = {way: [] for way in contestants}
        for repeat in range(args.repeats):
            for inputs, options in prompts:
                for way, answer in rotated(list(contestants.items()), repeat):
                    runs[way].append(answer(inputs, options))
        rows += [row_of(name, way, runs) for way in contestants]
    return rows


def row_of(workload: str, way: str, runs: Mapping[str, list[Run]]) -> dict[str, Any]:
    """Medians over the runs of one way, compared with stock runs of the same prompt and repeat."""
    pairs = list(zip(runs[STOCK], runs[way], strict=True))
    per_pass = [run["mean_acceptance_length"] for run in runs[way] if "passes" in run]
    return {
        "workload": workload,
        "way": way,
        "decode speedup": statistics.median(s["decode"] / run["decode"] for s, run in pairs),
        "speedup": statistics.median(s["e2e"] / run["e2e"] for s, run in pairs),
        "tokens a pass": statistics.mean(per_pass) if per_pass else None,
        "tokens": sum(len(run["tokens"][0]) for run in runs[way]),
        "differing answers": sum(s["tokens"] != run["tokens"] for s, run in pairs),
    }


def main() -> None:
    """Measure and write the report."""
    parser = argument_parser(__doc__, "benchmarks/results/lookup", repeats=3)
    parser.add_argument("--clips", type=int, default=3)
    args = parser.parse_args()
    configure(args.threads)
    engine = load(device="cpu", method="lookup")
    rows = measure(engine, args)
    facts = {**environment(args), "clips": args.clips}
    header = list(rows[0])
    cells = [[shown(row[key]) for key in header] for row in rows]
    table = "\n".join(markdown_table(header, cells, text_columns=(0, 1)))
    save(args.out, {"environment": facts, "rows": rows}, f"{table}\n\n{environment_line(facts)}\n")
    print(table)


def shown(value: Any) -> str:
    """A figure of the table."""
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
