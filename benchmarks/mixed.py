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
from draftlens_lab.world import HELD_OUT, Turn, marked_caption, sample_scene
from draftlens_lab.world.samples import Sample
from lookup import FRAMES, SIDE, second_turn
from shared import (
    PROMPT,
    Benchmark,
    Report,
    Run,
    backbones,
    environment,
    median_ratio,
    rotated,
    table,
)

import draftlens
from draftlens.drafting.adaptive import history as cost_store
from draftlens.engine import Engine
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

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


def speeds(runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    """Speed of each method relative to plain decoding, and of mixed relative to the best other."""
    seconds = {method: [run["e2e"] for run in each] for method, each in runs.items()}
    totals = {method: sum(each) for method, each in seconds.items()}
    best = min(("plain", "speculative", "lookup"), key=totals.__getitem__)
    return {
        **{method: median_ratio(seconds["plain"], seconds[method]) for method in METHODS},
        "best": best,
        "mixed over best": median_ratio(seconds[best], seconds["mixed"]),
        "total over best": totals[best] / totals["mixed"],
        "tokens a pass": {m: statistics.mean(run["per_pass"] for run in runs[m]) for m in METHODS},
    }


def rows_of(engine: Engine, costs: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each workload."""
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


def measure(args: argparse.Namespace) -> Report:
    """Rows for all costs of forwards."""
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        # The benchmark neither uses nor changes what is known of this machine.
        patches.enter_context(
            mock.patch.object(cost_store, "cache_folder", return_value=Path(folder))
        )
        for costs in args.costs:
            engine = draftlens.load("embedded", device="cpu", calibrate=False)
            models = backbones(engine)
            with ExitStack() as slower:
                for backbone, curve in zip(models, CURVES[costs], strict=True):
                    slower.enter_context(taking(backbone, curve))
                for path in Path(folder).glob("costs/*"):
                    path.unlink()
                cost_store.calibrate_models(list(models), 8.0)
                rows += rows_of(engine, costs, args)
    return {"environment": {**environment(args), "clips": args.clips}, "rows": rows}


def page(report: Report) -> list[str]:
    """The rows."""
    columns = {
        "costs": "{costs}",
        "workload": "{workload}",
        **{method: f"{{{method}:.2f}}" for method in METHODS[1:]},
        "best": "{best}",
        "mixed over best": "{mixed over best:.2f}",
        "total over best": "{total over best:.2f}",
    }
    return [
        table(report["rows"], columns),
        "Speeds relative to plain decoding, end to end, medians over prompts and repeats.",
    ]


BENCHMARK = Benchmark(
    "mixed",
    __doc__,
    "Method mixed",
    measure,
    page,
    {
        "--repeats": 3,
        "--clips": 4,
        "--costs": {"nargs": "+", "choices": CURVES, "default": list(CURVES)},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
