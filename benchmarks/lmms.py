"""The real lmms-eval on tasks of the procedural world: scores, answers and time of the target's
stock `generate`, of plain decoding and of SpecVLM.

    draftlens lmms-task TASKS --samples 4
    python benchmarks/lmms.py TASKS --out benchmarks/results/lmms_eval

Needs an environment with lmms-eval (docs/lmms-eval.md). Seconds are those of the processor, which
other programs hardly change, from the task's document to the answer. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftlens_lab.lmms.model import DraftlensModel
from draftlens_lab.lmms.tasks import GROUP
from lmms_eval import evaluator
from lmms_eval.tasks import TaskManager
from shared import Benchmark, Report, environment, range_line, ratios, rotated, table

METHODS = ("stock", "plain", "specvlm")


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


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """The report after every repeat."""
    facts = {**environment(args), "lmms-eval": version("lmms_eval")}
    for found in measured(args):
        yield {"found": found, "environment": {**facts, "repeats": len(found[0]["repeats"])}}


def page(report: Report) -> list[str]:
    """Scores, and times of stock over those of each way."""
    stock = {row["together"]: row for row in report["found"] if row["method"] == "stock"}
    rows = []
    for row in report["found"]:
        reference = stock[row["together"]]
        given, expected = (
            [each for task in one["answers"].values() for each in task] for one in (row, reference)
        )
        gains = {
            name: range_line(
                ratios(
                    [repeat[f"{GROUP}_{name}"] for repeat in reference["repeats"]],
                    [repeat[f"{GROUP}_{name}"] for repeat in row["repeats"]],
                )
            )
            for name in ("captions", "questions")
        }
        rows.append(
            {
                **row,
                **gains,
                "count": len(given),
                "differ": sum(a != b for a, b in zip(given, expected, strict=True)),
                "exact": _mean(row, "exact"),
                "words": _mean(row, "words"),
                "length": row["acceptance_lengths"][f"{GROUP}_captions"] or None,
            }
        )
    way = {"method": "{method}", "requests together": "{together}"}
    scores = {
        **way,
        "answers": "{count}",
        "other than stock's": "{differ}",
        "exact": "{exact:.1%}",
        "words": "{words:.1%}",
    }
    times = {
        **way,
        "captions, of stock": "{captions}",
        "questions, of stock": "{questions}",
        "acc. length": "{length:.2f}",
    }
    return [
        "Scores are those that lmms-eval reports, over all samples of the three tasks.",
        table(rows, scores),
        "How many times as fast as stock `generate`, in seconds of the processor from a task's "
        "document to the answer, reading included: the median over repeats, with the least and the "
        "greatest. A row compares with stock at the same number of requests together. The mean "
        "acceptance length is that of the captions.",
        table(rows, times),
    ]


def _mean(row: Mapping[str, Any], score: str) -> float:
    """The mean over all samples."""
    weights = {task: len(answers) for task, answers in row["answers"].items()}
    total = sum(row["scores"][task][score] * weight for task, weight in weights.items())
    return float(total / sum(weights.values()))


BENCHMARK = Benchmark(
    "lmms_eval",
    __doc__,
    "lmms-eval on the procedural world",
    measure,
    page,
    {
        "--repeats": 3,
        "tasks": {"type": Path},
        "--batch": {"type": int, "default": 4, "help": "requests together, beside 1"},
        "--max-new-tokens": 256,
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
