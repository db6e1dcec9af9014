"""The default engine of passes: what it costs at the start, and what it brings.

Starts: a fresh process makes a pair of real shape with random weights, lets `compile` prepare the
passes of both models, and answers by plain decoding, with no graph on disk, with one, and by the
modules. Decoding: a larger pair answers by plain decoding and by a chain of 5 whose draft is right
as often as a recorded one, by modules and by OpenVINO with and without 8-bit weights of the draft,
interleaved. Seconds are the processor's, since other programs hardly change them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from auto_parts.cells import recorded_depths
from random_models import random_model
from replayed_draft import ReplayedDraft
from shared import Benchmark, Report, grid, interleaved_seconds, medians, table
from simulation import recorded_text

from draftlens.models.adapter import Backbone
from draftlens.passes import attach
from draftlens.request import Request
from draftlens.streaming import Stream
from draftlens.verify import run_stock

SHORT = 14
"""Tokens of a short answer; a long one has `--max-new-tokens`."""

PROMPT_TOKENS = 150
PROMPT = "chat1"
VOCABULARY = 75968
START_PAIR = (("0.5B", 24), ("0.5B", 4))
DECODE_PAIR = (("1.5B", 14), ("0.5B", 12))
"""Sizes and numbers of layers of target and draft."""

STARTS = {"modules": "False", "auto, no graph on disk": "auto", "auto, graph on disk": "auto"}
ENGINES: Mapping[str, Mapping[str, Any]] = {
    "modules": {"compile": False},
    "OpenVINO": {"compile": "openvino"},
    "OpenVINO, 8-bit draft": {"compile": "openvino", "draft_quantization": "int8"},
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"method": "plain"},
    "chain of 5": {"num_speculative_tokens": 5},
}


def prompt() -> dict[str, torch.Tensor]:
    ids = torch.arange(PROMPT_TOKENS)[None] % 1000 + 5
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def start(args: argparse.Namespace) -> dict[str, Any]:
    """Processor's seconds of the preparation, and from the request to some tokens."""
    target, draft = (Backbone(random_model(*shape, VOCABULARY)) for shape in START_PAIR)
    models = [target, draft]
    began = time.process_time()
    attach(models, args.start == "auto" and "auto")
    prepared = time.process_time() - began
    options = {"max_new_tokens": args.max_new_tokens}
    began = time.process_time()
    stream = Stream(target, draft, Request(prompt(), method=METHODS["plain"], options=options))
    seconds = [time.process_time() - began for _ in stream]
    return {
        "preparing": prepared,
        "first": seconds[0],
        "short": seconds[SHORT - 1],
        "long": seconds[-1],
        "passes": "; ".join(model.passes.label or "modules" for model in models),
        "weights": sum(each.nbytes for model in models for each in model.model.parameters()),
    }


def starts(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for _ in range(args.repeats):
        with tempfile.TemporaryDirectory() as cache:
            for name, compile in STARTS.items():
                command = [sys.executable, sys.argv[0].split()[0], "default", "--start", compile]
                command += ["--max-new-tokens", str(args.max_new_tokens)]
                environment = {**os.environ, "XDG_CACHE_HOME": cache}
                done = subprocess.run(
                    command, check=True, capture_output=True, text=True, env=environment
                )
                rows.append({"start": name, **json.loads(done.stdout.splitlines()[-1])})
                print(rows[-1], flush=True)
    return rows


def decoding(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of an answer by engine and method."""
    of_target, of_draft = DECODE_PAIR
    target = Backbone(random_model(*of_target, VOCABULARY))
    draft = ReplayedDraft(random_model(*of_draft, VOCABULARY))
    answer = run_stock(target, prompt(), max_new_tokens=args.max_new_tokens).tokens[0]
    text = recorded_text(args.max_new_tokens, recorded_depths("float32", PROMPT), 0)
    options = {"max_new_tokens": args.max_new_tokens}

    def run(engine: str, method: str) -> None:
        attach([target, draft], **ENGINES[engine])
        draft.play(text, answer, PROMPT_TOKENS)
        request = Request(prompt(), method=METHODS[method], options=options)
        result = Stream(target, draft, request).run()
        assert result.tokens == [list(answer)], f"{engine}, {method}: other tokens"

    cases = {
        (engine, method): lambda engine=engine, method=method: run(engine, method)
        for engine in ENGINES
        for method in METHODS
    }
    named = {" / ".join(case): call for case, call in cases.items()}
    found = interleaved_seconds(named, args.repeats, time.process_time)
    return [
        {"engine": engine, "method": method, "seconds": found[f"{engine} / {method}"]}
        for engine, method in cases
    ]


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """Starts and decoding; with `--start` the figures of this process are printed."""
    if args.start:
        print(json.dumps(start(args)))
        raise SystemExit(0)
    report: Report = {"starts": starts(args)}
    yield report
    yield {**report, "decoding": decoding(args)}


def page(report: Report) -> list[str]:
    """Starts by what is on disk, and tokens each second by engine."""
    columns: dict[str, str | Callable[[Any], object]] = {
        "compile": "{start}",
        "preparing, s": "{preparing:.1f}",
        "first token": "{first:.2f}",
        f"{SHORT} tokens": "{short:.2f}",
        "long answer": "{long:.2f}",
        "all": lambda row: f"{row['preparing'] + row['long']:.1f}",
    }
    labels = {row["start"]: row["passes"] for row in report["starts"]}
    named = ", ".join(f"{name}: {label}" for name, label in labels.items())
    blocks = [
        table(medians(report["starts"], "start"), columns),
        f"Passes of target and draft: {named}.",
    ]
    if "decoding" not in report:
        return blocks
    tokens = report["environment"]["max_new_tokens"]
    rates = {
        (row["engine"], row["method"]): tokens / statistics.median(row["seconds"])
        for row in report["decoding"]
    }
    slow = {method: rates["modules", method] for method in METHODS}

    def cell(engine: str, method: str) -> str:
        rate = rates[engine, method]
        return f"{rate:.1f} ({rate / slow[method]:.2f})"

    return [
        *blocks,
        "Tokens each second, and in brackets over the modules:",
        grid("", ENGINES, METHODS, cell),
    ]


BENCHMARK = Benchmark(
    "compiled_default",
    __doc__,
    "The default engine of passes",
    measure,
    page,
    {
        "--repeats": 3,
        "--max-new-tokens": 64,
        "--start": {"choices": ("auto", "False"), "help": "print the figures of this process only"},
    },
)
