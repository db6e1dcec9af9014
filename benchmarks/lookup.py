"""Method lookup beside stock `generate` and stock prompt lookup on the embedded target.

Four workloads: captions of clips, second turns that ask for the same caption again, answers that
must not end and so repeat themselves, and short answers in which nothing repeats. Stock prompt
lookup is given `suppress_tokens` of the ids that stand for pixels; without, it fails where it
proposes one of them.
"""

from __future__ import annotations

import argparse
from typing import Any

from draftlens_lab.evaluate.answers import conversation, dialogue
from draftlens_lab.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens_lab.world.samples import Sample
from shared import (
    AGAINST_STOCK,
    PROMPT,
    Answerer,
    Benchmark,
    Report,
    against_stock,
    caption_sample,
    engine_answerer,
    environment,
    interleaved_runs,
    stock_answerer,
    table,
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


def measure(args: argparse.Namespace) -> Report:
    """One row for each workload and way."""
    engine = load(device="cpu", method="lookup")
    contestants = ways(engine)
    rows = []
    for name, prompts in workloads(engine, args.clips, args.max_new_tokens).items():
        runs = interleaved_runs(contestants, prompts, args.repeats)
        for way, own in runs.items():
            rows.append({"workload": name, "way": way, **against_stock(own, runs[STOCK])})
    return {"environment": {**environment(args), "clips": args.clips}, "rows": rows}


def page(report: Report) -> list[str]:
    """The rows."""
    columns = {"workload": "{workload}", "way": "{way}", **AGAINST_STOCK}
    del columns["lowest"], columns["highest"]
    return [table(report["rows"], columns)]


BENCHMARK = Benchmark(
    "lookup",
    __doc__,
    "Method lookup",
    measure,
    page,
    {"--repeats": 3, "--clips": 3},
)


if __name__ == "__main__":
    BENCHMARK.main()
