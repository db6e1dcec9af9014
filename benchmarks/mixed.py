"""Method mixed beside the two methods that it chooses between, on the embedded pair.

Workloads: captions; second turns that ask for the same caption again; captions with the caption of
another clip, or the answer with every eighth word wrong, as a reference; short answers. Costs of
forwards: those of the pair, which are launches, and those of real weights, for which each forward
sleeps until its time is over: ratios of 1.5B and 0.5B weights on one core of an AMD EPYC by torch
(float32) and by OpenVINO (the draft with 8-bit weights), with 20 ms for one token of the target.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from draftlens_lab.evaluate.answers import conversation, dialogue
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens_lab.world.samples import Sample
from lookup import FRAMES, SIDE, second_turn
from shared import (
    PROMPT,
    Run,
    argument_parser,
    configure,
    environment,
    environment_line,
    rotated,
    save,
)

import draftlens
from draftlens.drafting.adaptive import history as cost_store
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

PREDICTION = """Written before the first run. Where the model drafts best (captions, short answers)
mixed is 0.97 to 1.0 times as fast as speculative, where copying is best (the same caption again)
0.95 to 1.0 times as fast as lookup, and with a reference that is wrong now and then 1.0 to 1.3
times as fast as the better one, most with OpenVINO's costs, whose draft steps are dearest beside a
copied token. On the pair's own costs it loses up to 5% to the better one, since one look at
another drafter is a tenth of a draft's step."""

OUTCOME = """With copied tokens after those of the model, mixed is 0.93 to 1.05 times as fast as the
best of the others, 0.99 in the median; without them it was 0.89 to 1.02 and 0.96. With the costs of
real weights by OpenVINO it is level or ahead (0.99 to 1.05). It stays below 0.98 where forwards are
launches, whose rounds of a few milliseconds a lookup lengthens by one (0.94), and with float32
costs and a reference that is wrong now and then (0.93)."""

CURVES: Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]] = {
    "the pair's own": ({}, {}),
    "float32": (
        {1: 20.0, 2: 37.9, 3: 54.8, 4: 42.0, 6: 46.6, 9: 53.2, 26: 80.9},
        {1: 7.3, 2: 12.0, 4: 13.0, 8: 15.0, 26: 26.0},
    ),
    "OpenVINO": (
        {1: 20.0, 2: 22.0, 3: 23.4, 4: 24.6, 6: 26.8, 9: 32.8, 16: 39.8, 26: 56.4},
        {1: 3.0, 2: 3.3, 4: 3.7, 8: 4.5, 26: 8.5},
    ),
}
"""Milliseconds of a forward by its tokens, of target and draft."""

METHODS = ("plain", "speculative", "lookup", "mixed")
Workload = list[tuple[Inputs, dict[str, Any], list[str]]]


@contextmanager
def taking(backbone: Backbone, milliseconds: Mapping[int, float]) -> Iterator[None]:
    """Let each forward over the tokens of an answer take a time by their number."""
    if not milliseconds:
        yield
        return
    began = [0.0]

    def begin(module: Any, args: Any, kwargs: Any) -> None:
        began[0] = time.perf_counter()

    def end(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        rows, width = kwargs["inputs_embeds"].shape[:2]
        if kwargs["attention_mask"] is not None or rows * width == 1:
            until = began[0] + _interpolated(milliseconds, rows * width) / 1000
            time.sleep(max(0.0, until - time.perf_counter()))

    with ExitStack() as hooks:
        decoder = backbone.decoder
        hooks.callback(decoder.register_forward_pre_hook(begin, with_kwargs=True).remove)
        hooks.callback(decoder.register_forward_hook(end, with_kwargs=True).remove)
        yield


def _interpolated(milliseconds: Mapping[int, float], width: int) -> float:
    widths = sorted(milliseconds)
    right = next((known for known in widths if known >= width), widths[-1])
    left = max((known for known in widths if known < right), default=right)
    if left == right:
        return milliseconds[right]
    slope = (milliseconds[right] - milliseconds[left]) / (right - left)
    return milliseconds[left] + slope * (width - left)


def workloads(engine: Engine, clips: int, most: int) -> dict[str, Workload]:
    """Prompts, options of their answers, and references, by workload."""
    found: dict[str, Workload] = {}
    options: dict[str, Any] = {"max_new_tokens": most, "do_sample": False}

    def add(name: str, inputs: Inputs, *references: str) -> None:
        found.setdefault(name, []).append((inputs, options, list(references)))

    for seed in range(clips):
        scene = sample_scene(HELD_OUT + seed)
        own = marked_caption(scene)
        clip = Sample("clip", (scene,), (Turn(PROMPT, own, "caption"),))
        caption = engine.process([conversation(clip, FRAMES, SIDE)])
        question = Turn("How many shots are there?", "", "counting")
        short = Sample("clip", (scene,), (question,))
        add("captions", caption)
        add("the same caption again", engine.process([dialogue(second_turn(seed), FRAMES, SIDE)]))
        add(
            "with another clip's caption",
            caption,
            marked_caption(sample_scene(HELD_OUT + 500 + seed)),
        )
        answer = engine.answer(caption, method="plain", **options).run().texts[0]
        add("with a caption that is wrong now and then", caption, with_errors(answer))
        add("short answers", engine.process([conversation(short, FRAMES, SIDE)]))
    return found


def with_errors(text: str) -> str:
    """The text with every eighth word replaced."""
    words = text.split(" ")
    words[4::8] = ["something"] * len(words[4::8])
    return " ".join(words)


def answerer(engine: Engine, method: str) -> Callable[[Inputs, dict[str, Any], list[str]], Run]:
    def answer(inputs: Inputs, options: dict[str, Any], references: list[str]) -> Run:
        given = dict(options)
        if references and method in ("lookup", "mixed"):
            given["references"] = references
        began = time.perf_counter()
        result = engine.answer(inputs, method=method, **given).run()
        seconds = time.perf_counter() - began
        per_pass = result.stats.mean_acceptance_length
        return {"tokens": result.tokens, "e2e": seconds, "per_pass": per_pass}

    return answer


def measure(engine: Engine, costs: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each workload and method."""
    contestants = [(method, answerer(engine, method)) for method in METHODS]
    rows = []
    for workload, prompts in workloads(engine, args.clips, args.max_new_tokens).items():
        runs: dict[str, list[Run]] = {method: [] for method in METHODS}
        for repeat in range(args.repeats + 1):
            for prompt in prompts:
                for method, answer in rotated(contestants, repeat):
                    run = answer(*prompt)
                    if repeat:
                        runs[method].append(run)
        assert all(
            len({str(run["tokens"]) for run in each}) == 1
            for each in zip(*runs.values(), strict=True)
        )
        rows.append({"costs": costs, "workload": workload, **speeds(runs)})
        print(rows[-1], flush=True)
    return rows


def ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def speeds(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Speed of each method relative to plain decoding, and of mixed relative to the best other."""
    seconds = {method: [run["e2e"] for run in each] for method, each in runs.items()}
    totals = {method: sum(each) for method, each in seconds.items()}
    best = min(("plain", "speculative", "lookup"), key=totals.__getitem__)
    return {
        **{method: ratio(seconds["plain"], seconds[method]) for method in METHODS},
        "best": best,
        "mixed over best": ratio(seconds[best], seconds["mixed"]),
        "total over best": totals[best] / totals["mixed"],
        "tokens a pass": {m: statistics.mean(run["per_pass"] for run in runs[m]) for m in METHODS},
    }


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/mixed", repeats=3)
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--costs", nargs="+", choices=CURVES, default=list(CURVES))
    args = parser.parse_args()
    configure(args.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        # The benchmark neither uses nor changes what is known of this machine.
        patches.enter_context(
            mock.patch.object(cost_store, "cache_folder", return_value=Path(folder))
        )
        for costs in args.costs:
            engine = draftlens.load("embedded", device="cpu", calibrate=False)
            backbones = [engine.target.backbone, engine.draft.backbone]  # type: ignore[union-attr]
            with ExitStack() as slower:
                for backbone, curve in zip(backbones, CURVES[costs], strict=True):
                    slower.enter_context(taking(backbone, curve))
                for path in Path(folder).glob("costs/*"):
                    path.unlink()
                cost_store.calibrate_models(backbones, 8.0)
                rows += measure(engine, costs, args)
    facts = {**environment(args), "clips": args.clips}
    page = markdown(rows, facts)
    save(args.out, {"environment": facts, "prediction": PREDICTION, "rows": rows}, page)
    print(page)


def markdown(rows: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> str:
    """The report as a page."""
    columns = ("costs", "workload", *METHODS[1:], "best", "mixed over best", "total over best")
    cells = [[_shown(row[column]) for column in columns] for row in rows]
    lines = ["# Method mixed", "", *markdown_table(columns, cells, text_columns=(0, 1, 5)), ""]
    lines += [
        "Speeds relative to plain decoding, end to end, medians over prompts and repeats.",
        "",
    ]
    lines += [f"Prediction. {' '.join(PREDICTION.split())}", ""]
    lines += [f"Outcome. {' '.join(OUTCOME.split())}", "", environment_line(facts)]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
