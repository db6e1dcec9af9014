"""What to run where a CUDA device is at hand: exactness first, then speed, in a bounded time.

    python -m benchmarks.gpu --minutes 8
    python -m benchmarks.gpu --device cpu --tiny  # the same paths, small, without a GPU

1. Every method on the embedded pair in float32, with TF32 off, against stock `generate`: tokens.
2. The same ways with inductor's code (without CUDA graphs, which draftlens does not make).
3. Speed with random weights of real shapes in bfloat16, and a draft that is right as often as a
   recorded one (`replayed_draft.py`): stock `generate`, then our ways. In bfloat16 tokens may
   differ from stock's at near-ties, so that is shown and is no error.

Each way answers once before it is timed, which compiles and measures what there is to, and then
`--repeats` times, of which the median counts. The clock of an answer begins and ends when the
device has done all that it was given. The peak of memory is that of torch's allocator, models
included. What does not fit into the time is skipped and named; a way that has begun runs to its
end. Writes OUT.json and OUT.md, one table.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the scripts import one another by their names

import torch
from auto_parts.cells import recorded_depths
from random_models import random_model
from replayed_draft import ReplayedDraft
from shared import (
    Answerer,
    Benchmark,
    Report,
    Run,
    assisted_answerer,
    backbones,
    caption_sample,
    engine_answerer,
    environment,
    sample_inputs,
    stock_answerer,
    table,
)
from simulation import recorded_text

import draftlens
from draftlens.inputs import Inputs
from draftlens.models.adapter import Backbone

METHODS: Mapping[str, Any] = {
    "plain": "plain",
    "chain of 5": {"num_speculative_tokens": 5},
    "EAGLE's tree": {"tree": "eagle"},
    "auto": {"tree": "auto"},
    "specvlm": {"method": "specvlm"},
    "tabed": {"method": "tabed"},
    "lookup": {"method": "lookup"},
    "hsd": {"method": "hsd"},
    "parallel": {"method": "parallelvlm"},
    "spava's prefill": {"method": "plain", "prefill": "spava"},
}
"""Ways of answering by name."""

APPROXIMATE = ("spava's prefill",)
"""Ways whose tokens may be others."""

LOST: tuple[type[BaseException], ...] = (torch.AcceleratorError,)
"""Errors after which every call to a device fails; a lack of memory is none."""

STOCK = "stock generate"
NOTHING_TO_COMPARE = "stock generate has no answer to compare with"
SPEED_METHODS = ("plain", "chain of 5", "EAGLE's tree", "auto")
RECORDED = ("chat1", "code2", "image2")
"""Recorded prompts whose acceptance is replayed."""

PAIRS = {False: (("3B", "0.5B"), ("7B", "0.5B")), True: (("tiny", "tiny"),)}
"""Sizes of target and draft, for a device and for a test."""


@dataclass
class Answers:
    """Rows of the table, and what was left out.

    Args:
        end: when nothing further is begun, by `time.monotonic`.
        is_lost: whether an error has made the device useless.
    """

    end: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    is_lost: bool = False

    def run(self, part: str, way: str, answer: Callable[[], Mapping[str, Any]]) -> None:
        """Add a row: figures of an answer, or why there are none."""
        if self.is_lost or time.monotonic() > self.end:
            cause = "the device is lost" if self.is_lost else "no time left"
            row: dict[str, Any] = {"note": cause}
        else:
            try:
                row = dict(answer())
            except Exception as error:  # the other ways are to be checked all the same
                row = {"failed": True, "note": f"{type(error).__name__}: {str(error)[:120]}"}
                self.is_lost = isinstance(error, LOST)
        self.rows.append({"part": part, "way": way, **row})
        print(self.rows[-1], flush=True)

    @property
    def has_failed(self) -> bool:
        """Whether a way failed, or gave others than the tokens of stock `generate` that it must
        give."""
        return any(
            row.get("failed") or (row.get("equal") is False and not row["may_differ"])
            for row in self.rows
        )


def check_tokens(answers: Answers, args: argparse.Namespace, compile: Any) -> None:
    """Tokens of the embedded pair by every method, and the seconds they took."""
    part = f"embedded pair, {compile or 'modules'}"
    loaded: list[draftlens.Engine] = []

    def load() -> dict[str, Any]:
        options: dict[str, Any] = {"dtype": "float32", "compile": compile}
        loaded.append(draftlens.load("embedded", device=args.device, **options))
        return {"note": "the pair in the package"}

    answers.run(part, "loading", load)
    if not loaded:
        return
    (engine,) = loaded
    target, draft = backbones(engine)
    inputs = sample_inputs(engine, caption_sample(0), 2 if args.tiny else 16)
    ways = {
        STOCK: stock_answerer(target),
        "stock assisted": assisted_answerer(target, draft, {}),
        **{name: engine_answerer(engine, method) for name, method in METHODS.items()},
    }
    reference = Reference()
    for way, answer in ways.items():
        timed = _timed(args, answer, inputs, reference, way in APPROXIMATE, way == STOCK)
        answers.run(part, way, timed)


def measure_speed(answers: Answers, args: argparse.Namespace, target: str, draft: str) -> None:
    """Seconds of decoding with random weights of real shapes and recorded acceptance. The script of
    the replayed draft adds about eight small launches to each of its passes, which count against
    drafting."""
    part = f"random weights, {target} and {draft}"
    pair = _Pair(args, target, draft)
    answers.run(part, "loading", pair.load)
    if pair.target is None:
        return
    reference = Reference()
    ids = torch.arange(pair.prompt_tokens, device=args.device)[None] + 5
    inputs = Inputs({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    may_differ = pair.target.dtype != torch.float32
    stock = stock_answerer(pair.target)
    answers.run(part, STOCK, _timed(args, stock, inputs, reference, may_differ, True))
    for prompt in RECORDED if reference.tokens else ():
        pair.replay(prompt, reference.tokens[0])
        for name in SPEED_METHODS:
            answer = pair.answerer(METHODS[name])
            timed = _timed(args, answer, inputs, reference, may_differ)
            answers.run(part, f"{name}, {prompt}", timed)


class _Pair:
    """Models with random weights; `target` is None until they are loaded."""

    def __init__(self, args: argparse.Namespace, target: str, draft: str) -> None:
        self.device = args.device
        self.sizes = (target, draft)
        self.layers = 2 if args.tiny else 24
        self.dtype = torch.float32 if args.tiny else torch.bfloat16
        self.prompt_tokens = 8 if args.tiny else 500
        self.target: Backbone | None = None
        self.draft: ReplayedDraft | None = None

    def load(self) -> dict[str, Any]:
        models = [
            random_model(size, self.layers, dtype=self.dtype, device=self.device)
            for size in self.sizes
        ]
        self.target, self.draft = Backbone(models[0]), ReplayedDraft(models[1])
        return {"note": f"{self.layers} layers each"}

    def replay(self, prompt: str, answer: list[int]) -> None:
        assert self.draft is not None
        text = recorded_text(len(answer), recorded_depths("float32", prompt), seed=0)
        self.draft.play(text, answer, self.prompt_tokens)

    def answerer(self, method: Any) -> Answerer:
        def answer(inputs: Inputs, options: dict[str, Any]) -> Run:
            draft = None if method == "plain" else self.draft
            result = draftlens.generate(
                self.target, inputs.target, draft=draft, method=method, **options
            )
            return {"tokens": result.tokens, **result.stats.to_dict()}

        return answer


@dataclass
class Reference:
    """The tokens of stock `generate`; empty until it has answered."""

    tokens: list[list[int]] = field(default_factory=list)


def _timed(
    args: argparse.Namespace,
    answer: Answerer,
    inputs: Inputs,
    reference: Reference,
    may_differ: bool = False,
    is_stock: bool = False,
) -> Callable[[], dict[str, Any]]:
    """Answers once, then for the clock, and gives the medians. Stock `generate` sets the
    reference."""
    options: dict[str, Any] = {"max_new_tokens": 6 if args.tiny else 64, "do_sample": False}

    def figures() -> dict[str, Any]:
        if not is_stock and not reference.tokens:
            raise RuntimeError(NOTHING_TO_COMPARE)
        answer(inputs, dict(options))
        with peak_memory(args.device) as peak:
            runs = [_measured(args.device, answer, inputs, options) for _ in range(args.repeats)]
        if is_stock:
            reference.tokens = runs[0]["tokens"]
        medians = {
            name: statistics.median(run[name] for run in runs) for name in ("e2e", "decode", "late")
        }
        return {
            "equal": all(run["tokens"] == reference.tokens for run in runs),
            "may_differ": may_differ,
            **medians,
            "tau": runs[0].get("mean_acceptance_length"),
            "peak_bytes": peak.num_bytes,
        }

    return figures


def _measured(device: str, answer: Answerer, inputs: Inputs, options: dict[str, Any]) -> Run:
    """An answer by clocks that begin and end when the device has nothing to do. Those of the
    answer itself end when its last token is read; `late` is what the device did after that."""
    wait(device)
    run = answer(inputs, dict(options))
    began = time.perf_counter()
    wait(device)
    late = time.perf_counter() - began
    return {**run, "e2e": run["e2e"] + late, "decode": run["decode"] + late, "late": late}


def wait(device: str) -> None:
    """Until the device has done all that it was given. A CPU has done it already."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


@dataclass
class Peak:
    """Most bytes of tensors on a device at one time; None where torch does not count them."""

    num_bytes: int | None = None


@contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    peak = Peak()
    if not device.startswith("cuda"):
        yield peak
        return
    torch.cuda.reset_peak_memory_stats(device)
    yield peak
    peak.num_bytes = torch.cuda.max_memory_allocated(device)


def release(device: str) -> None:
    """Give back the memory of models that are no longer used, cycles included."""
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


def device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def rows_of(args: argparse.Namespace) -> Answers:
    """All parts."""
    answers = Answers(time.monotonic() + 60 * args.minutes)
    check_tokens(answers, args, compile=False)
    if not args.tiny:
        release(args.device)
        check_tokens(answers, args, compile="inductor")
    for target, draft in PAIRS[args.tiny]:
        release(args.device)
        measure_speed(answers, args, target, draft)
    return answers


def measure(args: argparse.Namespace) -> Iterator[Report]:
    """All rows; fails after they are written if tokens differ that must not."""
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device: use --device cpu --tiny")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    answers = rows_of(args)
    facts = {"device": device_name(args.device), "torch": torch.__version__}
    facts["CUDA"] = str(torch.version.cuda)
    yield {"environment": {**environment(args), **facts}, "rows": answers.rows}
    if answers.has_failed:
        raise SystemExit("a way failed, or its tokens differ from those of stock generate")


def page(report: Report) -> list[str]:
    """One table."""
    stock = {row["part"]: row.get("decode") for row in report["rows"] if row["way"] == STOCK}

    def same(row: Mapping[str, Any]) -> str:
        others = "others" if row.get("may_differ") else "NO"
        return {True: "yes", False: others, None: ""}[row.get("equal")]

    def speedup(row: Mapping[str, Any]) -> str:
        slow, own = stock.get(row["part"]), row.get("decode")
        return f"{slow / own:.2f}" if slow and own else ""

    columns: dict[str, Any] = {
        "models": "{part}",
        "way": "{way}",
        "tokens of stock": same,
        "s": "{e2e:.3f}",
        "decode, s": "{decode:.3f}",
        "x stock, decode": speedup,
        "τ": "{tau:.2f}",
        "peak, GB": "{peak_bytes:.2GB}",
        "": "{note}",
    }
    return [table(report["rows"], columns)]


BENCHMARK = Benchmark(
    "gpu",
    __doc__,
    "On one device",
    measure,
    page,
    {
        "--minutes": 8.0,
        "--device": "cuda",
        "--repeats": 3,
        "--tiny": {"action": "store_true", "help": "one short answer of each way"},
    },
)


if __name__ == "__main__":
    BENCHMARK.main()
