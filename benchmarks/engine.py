"""The engine on the embedded pair: what speculation buys, what overhead costs, and whether theory explains it.

    python benchmarks/engine.py --out benchmarks/results/engine

Every configuration answers every clip once per repeat, interleaved, so that machine noise hits all alike. Times are
end to end (vision and prefill included) unless they say decode. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import transformers

import draftlens
from draftlens.api import Engine, Inputs
from draftlens.compare import run_stock
from draftlens.models.backbone import Backbone
from draftlens.ops import tree as trees

PREDICTION = """Written before the first run: plain decoding beats stock generate by about 10%, since the outer model's
forward and stock's per-token bookkeeping are skipped; chain speculation at γ = 5 reaches 1.7 to 2.1 times; stock
assisted generation stays below 1.2 times; time outside forwards is 6 to 10% of decode."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engine"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=320)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    engine = draftlens.load("embedded", device="cpu")
    folder = Path(str(files("draftlens") / "embedded" / "clips"))
    clips = [record.with_suffix("") for record in sorted(folder.glob("*.mp4.json"))]
    prompts = {clip.name: engine.read("Describe the video.", video=clip, num_frames=8) for clip in clips}
    runs = measure(engine, prompts, args)
    costs = forward_costs(engine, next(iter(prompts.values())), args.gamma)
    report = {"environment": environment(args), "prediction": PREDICTION, "runs": runs, "costs": costs}
    report["summary"] = summarize(runs, costs, args.gamma)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(report) + "\n")
    args.out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


def configurations(engine: Engine, gamma: int) -> dict[str, Callable[[Inputs, dict[str, Any]], dict[str, Any]]]:
    """Name to a function that answers one prompt and returns tokens and times."""
    target, draft = engine.target.backbone, engine.draft.backbone.model  # type: ignore[union-attr]

    def stock(**extra: Any) -> Callable[[Inputs, dict[str, Any]], dict[str, Any]]:
        def call(inputs: Inputs, options: dict[str, Any]) -> dict[str, Any]:
            run = run_stock(target, inputs.target, **options, **extra)
            return {"tokens": run.tokens, "e2e": run.e2e, "decode": run.decode}

        return call

    def ours(method: Any) -> Callable[[Inputs, dict[str, Any]], dict[str, Any]]:
        def call(inputs: Inputs, options: dict[str, Any]) -> dict[str, Any]:
            with timed_forwards(engine) as spent:
                result = engine.answer(inputs, method=method, **options).run()
            stats = result.stats
            inside = spent() + stats.phases["draft_prefill"]  # the draft reads the prompt behind the first token
            extra = {"tau": stats.mean_acceptance_length, "outside": 1 - inside / stats.decode}
            return {"tokens": result.tokens, "e2e": stats.e2e, "decode": stats.decode, **extra}

        return call

    fixed = {"num_assistant_tokens": gamma, "num_assistant_tokens_schedule": "constant"}
    return {
        "hf-generate": stock(),
        "hf-assisted (defaults)": assisted(stock, draft, {}),
        f"hf-assisted (γ = {gamma})": assisted(stock, draft, {**fixed, "assistant_confidence_threshold": 0.0}),
        "plain": ours("plain"),
        f"chain (γ = {gamma})": ours({"num_speculative_tokens": gamma}),
        "tree (eagle)": ours({"tree": "eagle"}),
    }


def assisted(stock: Any, draft: Any, settings: dict[str, Any]) -> Callable[[Inputs, dict[str, Any]], dict[str, Any]]:
    """Stock assisted generation; its knobs live in the draft's generation config."""

    def call(inputs: Inputs, options: dict[str, Any]) -> dict[str, Any]:
        before = {name: getattr(draft.generation_config, name) for name in settings}
        draft.generation_config.update(**settings)
        try:
            return stock(assistant=draft)(inputs, options)  # type: ignore[no-any-return]
        finally:
            draft.generation_config.update(**before)

    return call


class timed_forwards:  # noqa: N801 - used as a context manager
    """Adds up the time inside decode forwards of both models."""

    def __init__(self, engine: Engine) -> None:
        self.backbones = [m.backbone for m in (engine.target, engine.draft) if m is not None]
        self.seconds = 0.0

    def __enter__(self) -> Callable[[], float]:
        for backbone in self.backbones:
            backbone.forward = self._timed(Backbone.forward.__get__(backbone))  # type: ignore[method-assign]
        return lambda: self.seconds

    def __exit__(self, *_: object) -> None:
        for backbone in self.backbones:
            del backbone.forward

    def _timed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            output = forward(*args)
            self.seconds += time.perf_counter() - start
            return output

        return call


def measure(engine: Engine, prompts: dict[str, Inputs], args: argparse.Namespace) -> dict[str, Any]:
    """Times of every configuration on every clip, interleaved; tokens are compared with stock's."""
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    table = configurations(engine, args.gamma)
    runs: dict[str, Any] = {
        name: {"e2e": {}, "decode": {}, "tau": {}, "outside": {}, "identical": True} for name in table
    }
    for name, call in list(table.items()):
        try:
            call(next(iter(prompts.values())), options)  # warm-up, and whether stock can run it at all
        except Exception as error:
            runs[name] = {"failed": f"{type(error).__name__}: {error}"}
            del table[name]
    for repeat in range(args.repeats):
        for clip, inputs in prompts.items():
            reference = None
            for name, call in rotate(list(table.items()), repeat):
                found = call(inputs, options)
                run = runs[name]
                for key in ("e2e", "decode", "tau", "outside"):
                    if key in found:
                        run[key].setdefault(clip, []).append(round(found[key], 6))
                reference = reference or found["tokens"]
                run["identical"] &= found["tokens"] == reference
                run["emitted"] = run.get("emitted", 0) + sum(map(len, found["tokens"]))
    return runs


def rotate(items: list[Any], by: int) -> list[Any]:
    """Another order in each repeat, so that no configuration always follows the same one."""
    by %= len(items)
    return items[by:] + items[:by]


def forward_costs(engine: Engine, inputs: Inputs, gamma: int) -> dict[str, float]:
    """Seconds of raw forwards behind a real prompt: median of 60, the sizes interleaved."""
    cases: dict[str, Callable[[], None]] = {}
    for role, loaded, sizes in (("target", engine.target, (1, gamma + 1, 26)), ("draft", engine.draft, (1, 2))):
        backbone = loaded.backbone  # type: ignore[union-attr]
        prompt = backbone.encode(backbone.prepare(inputs.target, max_new_tokens=1))
        cache = backbone.new_cache(prompt, 40)
        backbone.prefill(prompt, cache)
        for size in sizes:
            cases[f"{role}({size})"] = forward_case(backbone, prompt, cache, size)
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(60):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def forward_case(backbone: Backbone, prompt: Any, cache: Any, size: int) -> Callable[[], None]:
    """One forward of `size` tokens, rolled back afterwards."""
    tokens = torch.arange(size)[None] + 5
    positions = prompt.positions(torch.arange(size)[None])
    lengths = list(cache.lengths)
    mask = trees.attention_mask(lengths, torch.ones(size, size, dtype=torch.bool).tril())

    def call() -> None:
        backbone.forward(tokens, positions, cache, mask)
        cache.truncate(lengths)

    return call


def summarize(runs: dict[str, Any], costs: dict[str, float], gamma: int) -> dict[str, Any]:
    """Medians over clips and repeats, ratios to stock generate, and the speedup that the costs predict."""
    summary: dict[str, Any] = {}
    for name, run in runs.items():
        if "failed" in run:
            summary[name] = run
            continue
        ratios = {key: paired(runs["hf-generate"][key], run[key]) for key in ("e2e", "decode")}
        summary[name] = {
            "e2e_seconds": statistics.median(values(run["e2e"])),
            "speedup_e2e": spread(ratios["e2e"]),
            "speedup_decode": spread(ratios["decode"]),
            "identical": run["identical"],
            **{key: statistics.mean(values(run[key])) for key in ("tau", "outside") if run[key]},
        }
    chain = next(name for name in runs if name.startswith("chain"))
    tau, one = summary[chain]["tau"], costs["target(1)"]
    predicted = tau / (gamma * costs["draft(1)"] / one + costs[f"target({gamma + 1})"] / one)
    measured = spread(paired(runs["plain"]["decode"], runs[chain]["decode"]))
    assisted_best = [
        spread(paired(run["e2e"], runs[chain]["e2e"])) for n, run in runs.items() if "assisted" in n and "e2e" in run
    ]
    summary["chain against plain, decode"] = {"predicted": predicted, "measured": measured}
    summary["chain against best stock assisted, e2e"] = min(assisted_best, key=lambda s: s["median"], default=None)
    return summary


def values(by_clip: dict[str, list[float]]) -> list[float]:
    """All clips' values in one list."""
    return [value for column in by_clip.values() for value in column]


def paired(slow: dict[str, list[float]], fast: dict[str, list[float]]) -> list[float]:
    """Ratios of runs of the same clip in the same repeat."""
    return [a / b for clip in slow for a, b in zip(slow[clip], fast[clip], strict=True)]


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    return {"median": middle, "q1": low, "q3": high}


def environment(args: argparse.Namespace) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": args.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "draftlens": draftlens.__version__,
        "commit": commit.stdout.strip(),
        "repeats": args.repeats,
        "max_new_tokens": args.max_new_tokens,
        "dtype": "float32",
    }


def processor() -> str:
    """The processor's model name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    summary, costs = report["summary"], report["costs"]
    lines = [
        "# Engine benchmark",
        "",
        "| | end to end, s | speedup e2e | speedup decode | τ | outside forwards | identical |",
    ]
    lines.append("|---|---:|---:|---:|---:|---:|---|")
    for name in report["runs"]:
        row = summary[name]
        if "failed" in row:
            lines.append(f"| {name} | failed: {row['failed']} | | | | | |")
            continue
        tau = f"{row['tau']:.2f}" if "tau" in row else ""
        outside = f"{row['outside']:.1%}" if "outside" in row else ""
        ratios = " | ".join(ratio(row[key]) for key in ("speedup_e2e", "speedup_decode"))
        same = "yes" if row["identical"] else "NO"
        lines.append(f"| {name} | {row['e2e_seconds']:.3f} | {ratios} | {tau} | {outside} | {same} |")
    theory = summary["chain against plain, decode"]
    best = summary["chain against best stock assisted, e2e"]
    lines += [
        "",
        "Speedups are against hf-generate, paired by clip and repeat: median (quartiles). Outside forwards: share",
    ]
    lines[-1] += " of decode time in neither model's forward (the draft's reading of the prompt is one), mean."
    lines += ["", f"Chain against our plain decoding, decode only: measured {ratio(theory['measured'])}, "]
    lines[-1] += f"predicted by τ / (γ·Td/Tt + Tt(γ)/Tt): {theory['predicted']:.2f}."
    if best is not None:
        lines += ["", f"Chain against the better stock assisted generation, end to end: {ratio(best)}."]
    lines += ["", "Raw forwards, ms: " + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in costs.items()) + "."]
    lines += ["", "Environment: " + ", ".join(f"{k} {v}" for k, v in report["environment"].items()) + "."]
    lines += ["", "Prediction. " + " ".join(report["prediction"].split()), ""]
    return "\n".join(lines)


def ratio(value: dict[str, float]) -> str:
    """A median with its quartiles."""
    return f"{value['median']:.2f} ({value['q1']:.2f} to {value['q3']:.2f})"


if __name__ == "__main__":
    main()
