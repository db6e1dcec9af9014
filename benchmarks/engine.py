"""The engine on the embedded pair: speedup by speculation, overhead outside the models, and the
speedup that theory predicts.

    python benchmarks/engine.py --out benchmarks/results/engine

Every configuration answers every clip once per repeat, interleaved, so that noise of the machine
affects all of them alike. Times are end to end (vision and prefill included) unless they are named
decode. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from draftlens_lab.measure.statistics import format_quartiles, quartiles
from shared import (
    Answerer,
    Benchmark,
    Case,
    PrefilledPrompt,
    Report,
    Run,
    assisted_answerer,
    backbones,
    encoded_prompt,
    engine_answerer,
    median_seconds,
    milliseconds_line,
    predicted_speedup,
    ratios,
    rotated,
    stock_answerer,
    table,
)

import draftlens
from draftlens.engine import Engine
from draftlens.inputs import Inputs

FIGURES = ("e2e", "decode", "tau", "outside")
"""Figures of a run that are collected, where the configuration has them."""

FORWARD_REPEATS = 60


def configurations(engine: Engine, gamma: int) -> dict[str, Answerer]:
    """Name to a function that answers a prompt."""
    target, draft = backbones(engine)
    fixed = {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    return {
        "hf-generate": stock_answerer(target),
        "hf-assisted (defaults)": assisted_answerer(target, draft, {}),
        f"hf-assisted (γ = {gamma})": assisted_answerer(target, draft, fixed),
        "plain": timed_answerer(engine, "plain"),
        f"chain (γ = {gamma})": timed_answerer(engine, {"num_speculative_tokens": gamma}),
        "tree (eagle)": timed_answerer(engine, {"tree": "eagle"}),
        "tree (auto, the default)": timed_answerer(engine, {"tree": "auto"}),
    }


def timed_answerer(engine: Engine, method: Any) -> Answerer:
    """Answers by a method, and measures the share of decode time outside forwards."""
    answer = engine_answerer(engine, method)

    def answer_timed(inputs: Inputs, options: dict[str, Any]) -> Run:
        with forward_seconds(engine) as seconds:
            run = answer(inputs, options)
        # The draft reads the prompt after the first token, which is part of decoding.
        inside = sum(seconds) + run["phases"]["draft_prefill"]
        outside = 1 - inside / run["decode"]
        return {**run, "tau": run["mean_acceptance_length"], "outside": outside}

    return answer_timed


@contextmanager
def forward_seconds(engine: Engine) -> Iterator[list[float]]:
    """Collect the seconds of each decode forward of both models."""
    seconds: list[float] = []
    running = False

    def timed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def timed_forward(*args: Any) -> Any:
            nonlocal running
            if running:  # a chain of forwards, which is timed as a whole
                return forward(*args)
            running = True
            choosing: list[float] = []
            start = time.perf_counter()
            output = forward(*(adding(choosing, arg) for arg in args))
            seconds.append(time.perf_counter() - start - sum(choosing))
            running = False
            return output

        return timed_forward

    def adding(durations: list[float], arg: Any) -> Any:
        """The argument; if it chooses whether a chain ends, its seconds are added."""
        if not callable(arg):
            return arg

        def ends(*given: Any) -> Any:
            start = time.perf_counter()
            result = arg(*given)
            durations.append(time.perf_counter() - start)
            return result

        return ends

    models = backbones(engine)
    for backbone in models:
        for name in ("forward", "greedy_chain"):
            setattr(backbone, name, timed(getattr(backbone, name)))
    try:
        yield seconds
    finally:
        for backbone in models:
            for name in ("forward", "greedy_chain"):
                delattr(backbone, name)


def warm_up(answer: Answerer, inputs: Inputs, options: dict[str, Any]) -> dict[str, Any]:
    """Answer a prompt without measuring.

    Returns:
        Empty figures, or `failed`: some versions of transformers do not support assisted generation
        for these models.
    """
    try:
        answer(inputs, options)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    figures: dict[str, Any] = {name: {} for name in FIGURES}
    return {**figures, "identical": True, "emitted": 0}


def add_run(figures: dict[str, Any], clip: str, run: Run, reference: list[list[int]]) -> None:
    """Add one answer to the figures of its configuration."""
    for name in FIGURES:
        if name in run:
            figures[name].setdefault(clip, []).append(round(run[name], 6))
    figures["identical"] &= run["tokens"] == reference
    figures["emitted"] += sum(len(row) for row in run["tokens"])


def forward_costs(engine: Engine, inputs: Inputs, gamma: int) -> dict[str, float]:
    """Median seconds of raw forwards after a real prompt, with the sizes interleaved."""
    target, draft = backbones(engine)
    sizes = {"target": (1, gamma + 1, 26), "draft": (1, 2)}
    cases: dict[str, Case] = {}
    for role, backbone in (("target", target), ("draft", draft)):
        prefilled = PrefilledPrompt.of(backbone, encoded_prompt(backbone, inputs.target))
        for size in sizes[role]:
            cases[f"{role}({size})"] = prefilled.chain_case(size)
    return median_seconds(cases, FORWARD_REPEATS)


def summarize(runs: Mapping[str, Any], costs: Mapping[str, float], gamma: int) -> dict[str, Any]:
    """Medians over clips and repeats, speedups over stock generate, and the speedup that the costs
    predict."""
    summary: dict[str, Any] = {}
    for name, run in runs.items():
        summary[name] = run if "failed" in run else figures_of(run, runs["hf-generate"])
    name = f"chain (γ = {gamma})"
    chain = runs[name]
    summary["chain against plain, decode"] = {
        "predicted": predicted_speedup(summary[name]["tau"], gamma, costs),
        "measured": quartiles(paired_ratios(runs["plain"]["decode"], chain["decode"])),
    }
    speedups = [
        quartiles(paired_ratios(run["e2e"], chain["e2e"]))
        for other, run in runs.items()
        if "assisted" in other and "failed" not in run
    ]
    known = [speedup for speedup in speedups if speedup is not None]
    best = min(known, key=lambda speedup: speedup["median"], default=None)
    summary["chain against best stock assisted, e2e"] = best
    return summary


def figures_of(run: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of one configuration over all clips and repeats."""
    figures = {
        "e2e_seconds": statistics.median(all_values(run["e2e"])),
        "speedup_e2e": quartiles(paired_ratios(reference["e2e"], run["e2e"])),
        "speedup_decode": quartiles(paired_ratios(reference["decode"], run["decode"])),
        "identical": run["identical"],
    }
    for name in ("tau", "outside"):
        if run[name]:
            figures[name] = statistics.mean(all_values(run[name]))
    return figures


def all_values(by_clip: Mapping[str, Sequence[float]]) -> list[float]:
    """The values of all clips in one list."""
    return [value for values in by_clip.values() for value in values]


def report(args: argparse.Namespace) -> Report:
    """Runs and costs of the configurations."""
    engine = draftlens.load("embedded", device="cpu")
    folder = Path(str(files("draftlens") / "embedded" / "clips"))
    clips = [record.with_suffix("") for record in sorted(folder.glob("*.mp4.json"))]
    prompts = {
        clip.name: engine.read("Describe the video.", video=clip, num_frames=8) for clip in clips
    }
    runs = measure(engine, prompts, args)
    costs = forward_costs(engine, next(iter(prompts.values())), args.gamma)
    return {"runs": runs, "costs": costs, "summary": summarize(runs, costs, args.gamma)}


def measure(
    engine: Engine, prompts: Mapping[str, Inputs], args: argparse.Namespace
) -> dict[str, Any]:
    """Measure every configuration on every clip, interleaved.

    Returns:
        Name of each configuration to its `FIGURES` by clip, and whether its tokens are `identical`
        to those of the first configuration in the order of the repeat; or to `failed`.
    """
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    answerers = configurations(engine, args.gamma)
    first_prompt = next(iter(prompts.values()))
    runs = {name: warm_up(answer, first_prompt, options) for name, answer in answerers.items()}
    runnable = [name for name in answerers if "failed" not in runs[name]]
    for repeat in range(args.repeats):
        for clip, inputs in prompts.items():
            names = rotated(runnable, repeat)
            answers = {name: answerers[name](inputs, options) for name in names}
            reference = answers[names[0]]["tokens"]
            for name in names:
                add_run(runs[name], clip, answers[name], reference)
    return runs


def paired_ratios(
    slow: Mapping[str, Sequence[float]], fast: Mapping[str, Sequence[float]]
) -> list[float]:
    """Ratios of runs of the same clip in the same repeat."""
    return [value for clip in slow for value in ratios(slow[clip], fast[clip])]


def page(report: Report) -> list[str]:
    """The configurations."""
    summary = report["summary"]
    rows = [{"name": name, **summary[name]} for name in report["runs"]]
    columns: dict[str, Any] = {
        "": "{name}",
        "end to end, s": lambda row: row.get("failed") or f"{row['e2e_seconds']:.3f}",
        "speedup e2e": lambda row: format_quartiles(row.get("speedup_e2e")),
        "speedup decode": lambda row: format_quartiles(row.get("speedup_decode")),
        "τ": "{tau:.2f}",
        "outside forwards": "{outside:.1%}",
        "identical": "{identical}",
    }
    theory = summary["chain against plain, decode"]
    best = format_quartiles(summary["chain against best stock assisted, e2e"])
    return [
        table(rows, columns),
        "Speedups are against hf-generate, paired by clip and repeat: median (quartiles). "
        "Outside forwards: share of decode time in neither model's forward (the draft's reading "
        "of the prompt is one), mean.",
        f"Chain against our plain decoding, decode only: measured "
        f"{format_quartiles(theory['measured'])}, predicted by τ / (γ·Td/Tt + Tt(γ)/Tt): "
        f"{theory['predicted']:.2f}.",
        f"Chain against the better stock assisted generation, end to end: {best}." if best else "",
        f"Raw forwards, ms: {milliseconds_line(report['costs'])}.",
    ]


BENCHMARK = Benchmark(
    "engine",
    __doc__,
    "Engine benchmark",
    report,
    page,
    {"--repeats": 9, "--gamma": 5},
)


if __name__ == "__main__":
    BENCHMARK.main()
