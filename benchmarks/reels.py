"""Answers about a part of a reel, by the number of its frames: how often the embedded target finds
a shot among ever more frames, and one frame among up to 1,024."""

from __future__ import annotations

import argparse
from typing import Any

from draftlens_lab.evaluate.answers import ModelAnswerer, render_side
from draftlens_lab.evaluate.parts import part_samples, parts_right
from draftlens_lab.evaluate.report import percent_interval
from draftlens_lab.measure.tables import markdown_table
from shared import argument_parser, configure, environment, environment_line, save

import draftlens

FAMILIES = ("focus", "needle")
COLUMNS = ("questions", "frames", "asked", "right word for word", "facts right")


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/reels", repeats=1)
    parser.add_argument("--target", default="embedded", help="a folder or a Hub id")
    parser.add_argument("--frames", default="16,64,256,1024", help="lengths of the reels")
    parser.add_argument("--samples", type=int, default=60, help="questions a family and length")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    args = parser.parse_args()
    configure(args.threads)
    report: dict[str, Any] = {
        "environment": {**environment(args), "samples": args.samples, "target": args.target},
        "right": measure(args),
    }
    page = markdown(report)
    save(args.out, report, page)
    print(page)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The figures of `parts_right` by family and number of frames."""
    engine = draftlens.load(args.target, draft=None, device="cpu")
    answerer = ModelAnswerer(engine, render_side(engine.target.processor))
    lengths = [int(frames) for frames in args.frames.split(",")]
    right: dict[str, Any] = {family: {} for family in args.families}
    for frames in lengths:
        for family in args.families:
            samples = part_samples(family, args.samples, 0, frames)
            answers = answerer.answer(samples, frames, lambda _: None)
            right[family][str(frames)] = parts_right(samples, answers)
            print(rows(family, str(frames), right[family][str(frames)]), flush=True)
    return right


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    table = [
        row
        for family, lengths in report["right"].items()
        for frames, figures in lengths.items()
        for row in rows(family, frames, figures)
    ]
    lines = [
        "# Questions about a part of a reel",
        "",
        environment_line(report["environment"]),
        "",
        *markdown_table(COLUMNS, table),
        "",
        "Held-out reels; 95% intervals. A reel of 16 frames has 4 shots, longer ones up to 16. A "
        "needle is in one frame. Of a secret word, the answer is the fact.",
    ]
    return "\n".join(lines) + "\n"


def rows(family: str, frames: str, figures: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row for a family, and one for each of its forms."""
    parts = {family: figures, **{f"· {form}": part for form, part in figures["forms"].items()}}
    return [
        (
            name,
            frames,
            str(part["exact"]["total"]),
            percent_interval(part["exact"]),
            percent_interval(part["facts"]),
        )
        for name, part in parts.items()
    ]


if __name__ == "__main__":
    main()
