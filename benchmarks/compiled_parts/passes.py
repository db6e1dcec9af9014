"""Milliseconds of single forwards of the embedded pair, by the modules and by compiled code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from draftlens_lab.measure.tables import markdown_table
from shared import (
    Case,
    PrefilledPrompt,
    argument_parser,
    backbones,
    caption_sample,
    configure,
    encoded_prompt,
    environment,
    environment_line,
    median_seconds,
    sample_inputs,
    save,
)

import draftlens
from compiled_parts import by_modules
from draftlens.models.adapter import Backbone

PREDICTION = """Written after a first look at one pass each and before this part was run: one token
of the target takes 0.35 to 0.4 of its time, six tokens 0.35 to 0.45, 26 tokens 0.45 to 0.6; the
draft 0.2 to 0.3. After 4,097 visual tokens attention is most of the pass, and the share is 0.6 to
0.75."""

FRAMES = (8, 64, 256)
WIDTHS = {"target": (1, 6, 26), "draft": (1, 2, 6)}
PHASES = {
    ("target", 1): "plain decoding",
    ("target", 6): "check of a chain of 5",
    ("target", 26): "check of EAGLE's tree",
    ("draft", 1): "a draft step",
    ("draft", 2): "catching up",
    ("draft", 6): "catching up after a whole chain",
}


def main() -> None:
    args = argument_parser(__doc__, "benchmarks/results/compiled_passes", repeats=40).parse_args()
    configure(args.threads)
    engine = draftlens.load("embedded", device="cpu", calibrate=False, compile=True)
    rows: list[dict[str, Any]] = []
    for frames in FRAMES:
        inputs = sample_inputs(engine, caption_sample(0), frames)
        for role, backbone in zip(("target", "draft"), backbones(engine), strict=True):
            prefilled = PrefilledPrompt.of(backbone, encoded_prompt(backbone, inputs.target))
            for width in WIDTHS[role]:
                seconds = _compared(backbone, prefilled, width, args.repeats)
                rows.append({"role": role, "width": width, "frames": frames, **seconds})
                rows[-1]["context"] = prefilled.cache.lengths[0]
    report = {"environment": environment(args), "prediction": PREDICTION, "rows": rows}
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def _compared(
    backbone: Backbone, prefilled: PrefilledPrompt, width: int, repeats: int
) -> dict[str, float]:
    compiled = prefilled.chain_case(width)

    def eager() -> None:
        with by_modules([backbone]):
            compiled()

    cases: dict[str, Case] = {"eager": eager, "compiled": compiled}
    return median_seconds(cases, repeats)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a page."""
    rows = []
    for row in report["rows"]:
        share = row["compiled"] / row["eager"]
        rows.append(
            [
                PHASES[row["role"], row["width"]],
                f"{row['role']}({row['width']})",
                str(row["context"]),
                f"{1e3 * row['eager']:.2f}",
                f"{1e3 * row['compiled']:.2f}",
                f"{share:.2f}",
            ]
        )
    columns = ("phase", "pass", "context", "modules, ms", "compiled, ms", "share")
    paragraphs = [
        "# Single passes",
        "\n".join(markdown_table(columns, rows, text_columns=(0, 1))),
        f"Environment: {environment_line(report['environment'])}.",
        f"Prediction. {' '.join(report['prediction'].split())}",
    ]
    return "\n\n".join(paragraphs) + "\n"
