"""How much attention XAttention and SpargeAttn leave: counted, never timed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from draftlens_lab.evaluate.answers import conversation, render_side
from draftlens_lab.measure.tables import markdown_table
from draftlens_lab.world.samples import Sample
from shared import argument_parser, configure, encoded_prompt, environment, environment_line, save

from draftlens import load
from draftlens.engine import Engine
from spava_parts.asked import FRAMES, samples_of
from spava_parts.baselines.masked import MaskedAttention, Rule
from spava_parts.baselines.sparge import Sparge
from spava_parts.baselines.xattention import XAttention

PREDICTION = """\
Written before the first run of this part, after a look at one prompt of 1,025 tokens, of which both
leave nearly everything. At 4,097 tokens XAttention leaves 80% of the blocks and SpargeAttn 90%: the
target has few heads, and its blocks hold eight frames, whose tokens are unlike each other."""

RULES: Mapping[str, Rule] = {
    "xattention, stride 16, 0.9": XAttention(),
    "xattention, stride 16, 0.8": XAttention(threshold=0.8),
    "spargeattn, 0.3, 0.96": Sparge(),
}
"""Rules by name; 0.9 and 0.8 are defaults of two functions of XAttention's code."""


def main() -> None:
    """Count, and write the report."""
    args = parse()
    configure(args.threads)
    engine = load(device="cpu", method="plain", calibrate=False)
    rows: list[dict[str, Any]] = []
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    for length in args.lengths:
        counted = [counts_of(engine, sample, length) for sample in questions(args.prompts, length)]
        for name in RULES:
            kept = [counts[name]["kept"] for counts in counted]
            flops = [counts[name]["flops"] for counts in counted]
            row = {"rule": name, "length": length, "prompts": len(counted)}
            rows.append(row | {"kept": fmean(kept), "flops": fmean(flops)})
        save(args.out, report, page(report))
    print(page(report))


def parse() -> argparse.Namespace:
    """Options of the part."""
    parser = argument_parser(__doc__, "benchmarks/results/spava_sparse", repeats=1)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1025, 4097], choices=[*FRAMES])
    return parser.parse_args()


def questions(number: int, length: int) -> list[Sample]:
    """Held-out samples with questions about order."""
    return list(samples_of("ordering", number, FRAMES[length]))


def counts_of(engine: Engine, sample: Sample, length: int) -> dict[str, dict[str, float]]:
    """Shares of blocks and of FLOPs that each rule leaves of causal attention."""
    backbone = engine.target.backbone
    side = render_side(engine.target.processor)
    inputs = engine.process([conversation(sample, FRAMES[length], side)])
    prompt = encoded_prompt(backbone, inputs.target)
    found = {}
    for name, rule in RULES.items():
        attention = MaskedAttention(rule, prompt.lengths)
        with backbone.alone():
            backbone.prefill(prompt, backbone.new_cache(prompt, 1), attention)
        found[name] = {
            "kept": attention.kept / attention.visible,
            "flops": attention.flops / attention.dense_flops,
        }
    return found


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["# Sparse attention, counted", "", environment_line(report["environment"]), ""]
    lines += ["## Prediction", "", report["prediction"], "", "## Shares of causal attention", ""]
    lines += ["FLOPs are those of the products that are left and of choosing them.", ""]
    rows = []
    for row in report["rows"]:
        shares = [f"{100 * row['kept']:.1f}%", f"{100 * row['flops']:.1f}%"]
        rows.append([f"{row['length']:,}", row["rule"], str(row["prompts"]), *shares])
    columns = ["visual tokens", "rule", "prompts", "blocks", "FLOPs"]
    return "\n".join([*lines, *markdown_table(columns, rows, (1,)), ""])
