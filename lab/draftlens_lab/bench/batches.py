"""Batches of several prompts: latency, throughput, and up to which size drafting pays."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, pairwise
from typing import Any

from draftlens.engine import Engine
from draftlens.methods.base import PlainDecoding
from draftlens.verify import run_stock
from draftlens_lab.bench.clips import Reader
from draftlens_lab.bench.contestants import REFERENCE, Contestant, HfGenerate, Ours
from draftlens_lab.bench.runner import WARM_UP_TOKENS, BenchRun, error_message, free
from draftlens_lab.bench.store import BatchMeasurement, Failure, Store
from draftlens_lab.measure.progress import ProgressListener, SilentProgress
from draftlens_lab.measure.statistics import quartiles
from draftlens_lab.measure.tables import Table, format_number

Figures = dict[str, Any]

BatchAnswer = Callable[[Engine, Sequence[Reader], int], list[list[int]]]
"""Answers prompts together; called with the engine, the prompts and the most new tokens."""


@dataclass(frozen=True)
class _Cell:
    size: int
    repeat: int
    contestant: Contestant

    @property
    def clip(self) -> str:
        """The batch, as failures name it."""
        return f"batch of {self.size}"


def measure_batches(plan: BenchRun, store: Store, listener: ProgressListener | None = None) -> None:
    """Measure the batches that the store does not hold.

    A batch consists of clips of the first group, repeated where there are too few.
    """
    listener = listener or SilentProgress()
    cells = _missing(plan, store)
    listener.plan(len(cells))
    clips = [clip for clip in plan.clips if clip.group == plan.clips[0].group]
    readers = [clip.prepare() for clip in clips]
    warm: set[tuple[str, str]] = set()
    for cell in cells:
        key = (cell.clip, cell.contestant.name)
        listener.begin(f"{cell.clip}: {cell.contestant.name}")
        if key not in _failed(store):
            _try(plan, cell, list(islice(cycle(readers), cell.size)), store, key in warm)
            warm.add(key)
        listener.done(1)


def batch_answer(contestant: Contestant) -> BatchAnswer | None:
    """How a contestant answers several prompts together; None if it cannot."""
    way = contestant.way
    if isinstance(way, HfGenerate):
        return _stock
    return _answer_of(way) if isinstance(way, Ours) else None


def batch_figures(store: Store, contestants: Sequence[Contestant]) -> Figures:
    """Figures by size and method, and the break-even size by method.

    Returns:
        JSON values: `base` (the method that gains are relative to), `sizes` and `break_even`; empty
        without measurements.
    """
    measured: list[BatchMeasurement] = store.of(BatchMeasurement)
    if not measured:
        return {}
    by_key = {(m.size, m.method, m.repeat): m for m in measured}
    plain = [each.name for each in contestants if each.way == Ours(PlainDecoding())]
    base = next((name for name in plain if any(m.method == name for m in measured)), REFERENCE)
    names = [each.name for each in contestants if any(m.method == each.name for m in measured)]
    sizes: dict[str, Figures] = {}
    gains: dict[str, dict[int, float]] = {}
    for size in sorted({m.size for m in measured}):
        rows = sizes.setdefault(str(size), {})
        for name in names:
            own = [m for m in measured if (m.size, m.method) == (size, name)]
            if own:
                rows[name] = _row(own, by_key, base)
                if rows[name]["gain"] is not None:
                    gains.setdefault(name, {})[size] = rows[name]["gain"]["median"]
    others = {name: found for name, found in gains.items() if name not in (base, REFERENCE)}
    return {
        "base": base,
        "sizes": sizes,
        "break_even": {name: break_even(found) for name, found in others.items()},
    }


def break_even(gains: Mapping[int, float]) -> str:
    """The number of rows from which a draft no longer pays, between measured sizes by a straight
    line over the logarithm of the size."""
    measured = sorted(gains.items())
    if measured[0][1] < 1:
        return f"below {measured[0][0]} rows"
    for (size, gain), (larger, lower) in pairwise(measured):
        if lower < 1:
            share = (gain - 1) / (gain - lower)
            return f"{size * (larger / size) ** share:.0f} rows"
    return f"above {measured[-1][0]} rows"


def batch_table(figures: Figures) -> Table:
    """The figures as a table of the report."""
    base = figures["base"]
    columns = ("method", "rows", "latency, s", "tokens/s", f"times as fast as {base}", "identical")
    rows = []
    names = list(dict.fromkeys(name for methods in figures["sizes"].values() for name in methods))
    for name in names:
        for size, methods in figures["sizes"].items():
            if name not in methods:
                continue
            row = methods[name]
            gain = "" if row["gain"] is None else format_number(row["gain"]["median"], 2)
            speed = format_number(row["tokens_per_second"]["median"], 1)
            latency = format_number(row["seconds"]["median"], 3)
            rows.append((name, size, latency, speed, gain, agreement(row)))
    note = (
        "Latency: seconds until all answers of a batch are there, reading included, median. "
        "Identical: answers equal to those that hf-generate gives to the same batch."
    )
    if figures["break_even"]:
        sizes = "; ".join(f"{name} {size}" for name, size in figures["break_even"].items())
        note += f" Break-even with {base}: {sizes}."
    return Table("By batch size", columns, rows, note)


def agreement(row: Mapping[str, Any]) -> str:
    """The cell that says whether all answers were those of stock `generate`."""
    if not row["compared"]:
        return ""
    is_all = row["identical"] == row["compared"]
    return "yes" if is_all else f"{row['identical']} of {row['compared']}"


def _row(
    own: Sequence[BatchMeasurement],
    by_key: Mapping[tuple[int, str, int], BatchMeasurement],
    base: str,
) -> Figures:
    gains, identical, compared = [], 0, 0
    for each in own:
        other = by_key.get((each.size, base, each.repeat))
        if other is not None:
            gains.append(other.seconds / each.seconds)
        reference = by_key.get((each.size, REFERENCE, each.repeat))
        if reference is not None:
            pairs = zip(each.tokens, reference.tokens, strict=True)
            identical += sum(a == b for a, b in pairs)
            compared += each.size
    return {
        "seconds": quartiles([each.seconds for each in own]),
        "tokens_per_second": quartiles([sum(map(len, m.tokens)) / m.seconds for m in own]),
        "gain": quartiles(gains),
        "identical": identical,
        "compared": compared,
    }


def _missing(plan: BenchRun, store: Store) -> list[_Cell]:
    """All methods of a size and repeat directly one after the other, in a random order."""
    done = {(m.size, m.method, m.repeat) for m in store.of(BatchMeasurement)}
    able = [each for each in plan.contestants if batch_answer(each)]
    cells = []
    for repeat in range(plan.options.repeats):
        for size in plan.options.batch_sizes:
            order = list(able)
            random.Random(f"{plan.options.seed}/{repeat}/{size}").shuffle(order)
            cells += [_Cell(size, repeat, each) for each in order]
    return [each for each in cells if (each.size, each.contestant.name, each.repeat) not in done]


def _failed(store: Store) -> set[tuple[str, str]]:
    return {(each.clip, each.method) for each in store.of(Failure)}


def _try(
    plan: BenchRun, cell: _Cell, readers: Sequence[Reader], store: Store, is_warm: bool
) -> None:
    answer = batch_answer(cell.contestant)
    assert answer is not None
    most = plan.options.max_new_tokens
    try:
        if not is_warm:
            answer(plan.engine, readers, min(WARM_UP_TOKENS, most))
        began = time.perf_counter()
        tokens = answer(plan.engine, readers, most)
        seconds = time.perf_counter() - began
    except Exception as error:
        message = error_message(error)
    else:
        store.append(
            BatchMeasurement(cell.size, cell.contestant.name, cell.repeat, tokens, seconds)
        )
        return
    free()  # after the except clause: until then the exception keeps the frames alive
    store.append(Failure(cell.clip, cell.contestant.name, cell.repeat, message))


def _answer_of(way: Ours) -> BatchAnswer:
    def answer(engine: Engine, readers: Sequence[Reader], most: int) -> list[list[int]]:
        plan = engine.plan(way.method)
        plan.wait_until_ready()
        if not plan.uses_draft:
            engine = Engine(engine.target, None, way.method)
        inputs = engine.process([read() for read in readers])
        return engine.answer(inputs, method=way.method, max_new_tokens=most).run().tokens

    return answer


def _stock(engine: Engine, readers: Sequence[Reader], most: int) -> list[list[int]]:
    alone = Engine(engine.target, None, PlainDecoding())
    inputs = alone.process([read() for read in readers]).target
    return run_stock(engine.target.backbone, inputs, max_new_tokens=most, do_sample=False).tokens
