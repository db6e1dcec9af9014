"""Answers about a part of a reel, by the number of its frames: how often the embedded target finds
a shot among ever more frames, and one frame among up to 1,024."""

from __future__ import annotations

import argparse
from typing import Any

from draftlens_lab.evaluate.answers import ModelAnswerer, render_side
from draftlens_lab.evaluate.parts import part_samples, parts_right
from draftlens_lab.evaluate.report import percent_interval
from shared import Benchmark, Report, environment, table

import draftlens

FAMILIES = ("focus", "needle")


def measure(args: argparse.Namespace) -> Report:
    """The figures of `parts_right` by family and number of frames."""
    engine = draftlens.load(args.target, draft=None, device="cpu")
    answerer = ModelAnswerer(engine, render_side(engine.target.processor))
    right: dict[str, Any] = {family: {} for family in args.families}
    for frames in args.frames.split(","):
        for family in args.families:
            samples = part_samples(family, args.samples, 0, int(frames))
            answers = answerer.answer(samples, int(frames), lambda _: None)
            right[family][frames] = parts_right(samples, answers)
            print(family, frames, right[family][frames], flush=True)
    facts = {**environment(args), "samples": args.samples, "target": args.target}
    return {"environment": facts, "right": right}


def page(report: Report) -> list[str]:
    """A row for each family, and one for each of its forms."""
    rows = [
        {"name": name, "frames": frames, **part}
        for family, lengths in report["right"].items()
        for frames, figures in lengths.items()
        for name, part in [
            (family, figures),
            *((f"· {form}", of_form) for form, of_form in figures["forms"].items()),
        ]
    ]
    columns: dict[str, Any] = {
        "questions": "{name}",
        "frames": "{frames}",
        "asked": "{exact[total]}",
        "right word for word": lambda row: percent_interval(row["exact"]),
        "facts right": lambda row: percent_interval(row["facts"]),
    }
    return [
        table(rows, columns),
        "Held-out reels; 95% intervals. A reel of 16 frames has 4 shots, longer ones up to 16. A "
        "needle is in one frame. Of a secret word, the answer is the fact.",
    ]


BENCHMARK = Benchmark(
    "reels",
    __doc__,
    "Questions about a part of a reel",
    measure,
    page,
    {
        "--target": {"default": "embedded", "help": "a folder or a Hub id"},
        "--frames": {"default": "16,64,256,1024", "help": "lengths of the reels"},
        "--samples": {"type": int, "default": 60, "help": "questions a family and length"},
        "--families": {"nargs": "+", "choices": FAMILIES, "default": list(FAMILIES)},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
