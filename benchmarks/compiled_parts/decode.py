"""Answers of the embedded pair, decode only: by the modules, by compiled code, by stock `generate`,
and by stock `generate` with a static cache that transformers compiles."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.statistics import format_quartiles, quartiles
from draftlens_lab.measure.tables import markdown_table
from engine import timed_answerer
from shared import (
    Answerer,
    Run,
    argument_parser,
    backbones,
    caption_sample,
    configure,
    engine_answerer,
    environment,
    environment_line,
    rotated,
    sample_inputs,
    save,
    stock_answerer,
)
from transformers import CompileConfig

import draftlens
from compiled_parts import by_modules
from draftlens.engine import Engine
from draftlens.inputs import Inputs

PREDICTION = """Written before the first run, with the times of single passes known: plain decoding
compiled is 2.3 times as fast as by the modules at 8 frames and 1.5 times at 64; a chain of 5 is 2
times as fast at 8 frames and 1.3 times at 64, and 4 times as fast as stock generate at 8 frames;
stock with a compiled static cache lies between plain decoding by the modules and compiled. Time
outside forwards is 15% of the compiled chain, since forwards shrink and the loop does not. Before
the automatic tree was added: compiled it is 1.0 to 1.15 times as fast as the compiled chain, and
12% of its time is outside forwards."""

CHAIN = {"num_speculative_tokens": 5}
EAGLE = {"tree": "eagle"}
AUTO = {"tree": "auto"}


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/compiled_decode", repeats=5)
    parser.add_argument("--frames", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--skip-stock-compiled", action="store_true")
    args = parser.parse_args()
    configure(args.threads)
    engine = draftlens.load("embedded", device="cpu", compile=True)
    answerers = configurations(engine, args.skip_stock_compiled)
    options = {"max_new_tokens": args.max_new_tokens, "do_sample": False}
    runs: dict[str, Any] = {}
    for frames in args.frames:
        inputs = sample_inputs(engine, caption_sample(0), frames)
        runs[str(frames)] = measured(answerers, inputs, options, args.repeats)
    report = {"environment": environment(args), "prediction": PREDICTION, "runs": runs}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def configurations(engine: Engine, skip_stock_compiled: bool) -> dict[str, Answerer]:
    """Name to a function that answers a prompt."""
    target, _ = backbones(engine)
    config = CompileConfig(fullgraph=False, mode="default")
    config._compile_all_devices = True  # transformers compiles on GPUs only unless it is told so
    answerers = {
        "stock": stock_answerer(target),
        "plain, modules": _by_modules(engine, engine_answerer(engine, "plain")),
        "plain, compiled": timed_answerer(engine, "plain"),
        "chain, modules": _by_modules(engine, engine_answerer(engine, CHAIN)),
        "chain, compiled": timed_answerer(engine, CHAIN),
        "eagle, modules": _by_modules(engine, engine_answerer(engine, EAGLE)),
        "eagle, compiled": timed_answerer(engine, EAGLE),
        "auto, modules": _by_modules(engine, engine_answerer(engine, AUTO)),
        "auto, compiled": timed_answerer(engine, AUTO),
    }
    if not skip_stock_compiled:
        static = {"cache_implementation": "static", "compile_config": config}
        answerers["stock, compiled static cache"] = stock_answerer(target, **static)
    return answerers


def _by_modules(engine: Engine, answer: Answerer) -> Answerer:
    def answer_by_modules(inputs: Inputs, options: dict[str, Any]) -> Run:
        with by_modules(backbones(engine)):
            return answer(inputs, options)

    return answer_by_modules


def measured(
    answerers: Mapping[str, Answerer], inputs: Inputs, options: dict[str, Any], repeats: int
) -> dict[str, Any]:
    """Seconds of decoding of each configuration, interleaved, and whether its tokens are those of
    stock `generate`."""
    reference = answerers["stock"](inputs, options)["tokens"]
    figures: dict[str, Any] = {
        name: {"decode": [], "outside": [], "identical": True} for name in answerers
    }
    for answer in answerers.values():
        answer(inputs, options)
    for repeat in range(repeats):
        for name in rotated(list(answerers), repeat):
            run = answerers[name](inputs, options)
            figures[name]["decode"].append(run["decode"])
            figures[name]["outside"].append(run.get("outside"))
            figures[name]["identical"] &= run["tokens"] == reference
    return figures


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    paragraphs = ["# Answers, decode only"]
    for frames, runs in report["runs"].items():
        rows = [_row(name, run, runs) for name, run in runs.items()]
        columns = ("", "decode, ms", "over stock", "over modules", "outside", "identical")
        paragraphs.append(f"{frames} frames:")
        paragraphs.append("\n".join(markdown_table(columns, rows, text_columns=(0, 5))))
    paragraphs += [
        "Ratios are paired by repeat: median (quartiles). Outside: share of decode time in neither "
        "model's forward, mean.",
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"


def _row(name: str, run: Mapping[str, Any], runs: Mapping[str, Any]) -> list[str]:
    modules = runs.get(name.replace("compiled", "modules"), run)
    outside = [share for share in run["outside"] if share is not None]
    return [
        name,
        f"{1e3 * statistics.median(run['decode']):.1f}",
        _ratio(runs["stock"], run),
        _ratio(modules, run) if name.endswith(", compiled") else "",
        f"{statistics.mean(outside):.1%}" if outside else "",
        "yes" if run["identical"] else "NO",
    ]


def _ratio(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> str:
    pairs = zip(slow["decode"], fast["decode"], strict=True)
    return format_quartiles(quartiles([before / after for before, after in pairs]))
