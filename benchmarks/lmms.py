"""The real lmms-eval on tasks of the procedural world: scores, answers and time of the target's
stock `generate`, of plain decoding and of SpecVLM.

    draftlens lmms-task TASKS --samples 4
    python benchmarks/lmms.py TASKS --out benchmarks/results/lmms_eval

Needs an environment with lmms-eval (docs/lmms-eval.md). Seconds are those of the processor, which
other programs hardly change, from the task's document to the answer. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftlens_lab.lmms.model import DraftlensModel
from draftlens_lab.lmms.tasks import GROUP
from draftlens_lab.measure.tables import markdown_table
from lmms_eval import evaluator
from lmms_eval.tasks import TaskManager
from shared import argument_parser, configure, environment, environment_line, rotated, save

METHODS = ("stock", "plain", "specvlm")
COLUMNS = ("method", "requests together", "answers", "other than stock's", "exact", "words")
TIMES = ("method", "requests together", "captions, of stock", "questions, of stock", "acc. length")


class Timed(DraftlensModel):
    """Adds up the seconds of the processor for the requests of each task."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seconds: dict[str, float] = {}
        self.lengths: dict[str, float] = {}

    def generate_until(self, requests: Sequence[Any]) -> list[Any]:
        """One task after the other."""
        tasks = list(dict.fromkeys(request.task_name for request in requests))
        answers: dict[int, Any] = {}
        for task in tasks:
            own = [request for request in requests if request.task_name == task]
            began = time.process_time()
            found = super().generate_until(own)
            self.seconds[task] = time.process_time() - began
            self.lengths[task] = self.answering.mean_acceptance_length
            answers |= {id(request): each for request, each in zip(own, found, strict=True)}
        return [answers[id(request)] for request in requests]


def main() -> None:
    parser = argument_parser(__doc__, "benchmarks/results/lmms_eval", repeats=3)
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--batch", type=int, default=4, help="requests together, beside 1")
    parser.set_defaults(max_new_tokens=256)
    args = parser.parse_args()
    configure(args.threads)
    facts = {**environment(args), "lmms-eval": version("lmms_eval")}
    for found in measured(args):
        facts["repeats"] = len(found[0]["repeats"])
        report = {"found": found, "environment": facts}
        save(args.out, report, page(report))
    print(page(report))


def measured(args: argparse.Namespace) -> Iterator[list[dict[str, Any]]]:
    """A row for each method and number of requests together, after every repeat."""
    manager = TaskManager(include_path=str(args.tasks), include_defaults=False)
    ways = [(method, size) for size in (1, args.batch) for method in METHODS]
    models = {way: Timed(method=way[0], batch_size=way[1], device="cpu") for way in ways}
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for repeat in range(args.repeats):
        for way in rotated(ways, repeat):
            found = evaluated(models[way], manager)
            row = rows.setdefault(way, {"method": way[0], "together": way[1], **found})
            assert row["answers"] == found["answers"], way
            row.setdefault("repeats", []).append(dict(models[way].seconds))
            row["acceptance_lengths"] = models[way].lengths
        yield [rows[way] for way in ways]


def evaluated(model: DraftlensModel, manager: Any) -> dict[str, Any]:
    """Scores and answers by task."""
    results = evaluator.simple_evaluate(
        model=model, tasks=[GROUP], task_manager=manager, log_samples=True, bootstrap_iters=0
    )
    samples = results["samples"]
    scores = {
        task: {name: results["results"][task][f"{name},none"] for name in ("exact", "words")}
        for task in samples
    }
    answers = {task: [each["filtered_resps"] for each in samples[task]] for task in samples}
    return {"scores": scores, "answers": answers}


def page(report: Mapping[str, Any]) -> str:
    """The report as Markdown."""
    rows = report["found"]
    stock = {row["together"]: row for row in rows if row["method"] == "stock"}
    scores, times = [], []
    for row in rows:
        way = [row["method"], str(row["together"])]
        reference = stock[row["together"]]
        given = [each for task in row["answers"].values() for each in task]
        expected = [each for task in reference["answers"].values() for each in task]
        differ = sum(a != b for a, b in zip(given, expected, strict=True))
        exact, words = (_mean(row, name) for name in ("exact", "words"))
        scores.append([*way, str(len(given)), str(differ), f"{exact:.1%}", f"{words:.1%}"])
        gains = [_gain(reference, row, f"{GROUP}_{name}") for name in ("captions", "questions")]
        length = row["acceptance_lengths"][f"{GROUP}_captions"]
        times.append([*way, *gains, f"{length:.2f}" if length else ""])
    lines = [
        "# lmms-eval on the procedural world",
        "",
        "Scores are those that lmms-eval reports, over all samples of the three tasks.",
        "",
        *markdown_table(COLUMNS, scores),
        "",
        "How many times as fast as stock `generate`, in seconds of the processor from a task's "
        "document to the answer, reading included: the median over repeats, with the least and the "
        "greatest. A row compares with stock at the same number of requests together. The mean "
        "acceptance length is that of the captions.",
        "",
        *markdown_table(TIMES, times),
        "",
        f"<sub>{environment_line(report['environment'])}</sub>",
        "",
    ]
    return "\n".join(lines)


def _mean(row: Mapping[str, Any], score: str) -> float:
    """The mean over all samples."""
    weights = {task: len(answers) for task, answers in row["answers"].items()}
    total = sum(row["scores"][task][score] * weight for task, weight in weights.items())
    return float(total / sum(weights.values()))


def _gain(reference: Mapping[str, Any], row: Mapping[str, Any], task: str) -> str:
    pairs = zip(reference["repeats"], row["repeats"], strict=True)
    gains = [stock[task] / own[task] for stock, own in pairs]
    return f"{statistics.median(gains):.2f} ({min(gains):.2f}–{max(gains):.2f})"


if __name__ == "__main__":
    main()
