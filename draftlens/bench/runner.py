"""The run: who answers which clip when, what goes wrong, and what is kept of it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from draftlens.api import Engine
from draftlens.bench.clips import Clip, Shown
from draftlens.bench.contestants import Contestant
from draftlens.bench.memory import Peak
from draftlens.bench.options import Options
from draftlens.bench.store import Failure, Measurement, Refusal, Store
from draftlens.bench.workloads import clips_of
from draftlens.errors import MediaError

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Plan:
    """A run that is ready to begin.

    Args:
        engine: the models.
        clips: what is shown.
        contestants: who answers, the reference first.
        options: of the run.
    """

    engine: Engine
    clips: list[Clip]
    contestants: list[Contestant]
    options: Options

    def description(self) -> dict[str, Any]:
        """Everything that measurements depend on, as JSON values: two runs may be mixed only if these are equal."""
        from draftlens.train.evaluate.environment import environment, model_facts

        models = {"target": self.engine.target} | ({"draft": self.engine.draft} if self.engine.draft else {})
        return {
            "models": {role: model_facts(model) for role, model in models.items() if model is not None},
            "options": self.options.plain(),
            "methods": {one.name: one.way.settings() for one in self.contestants},
            "clips": {clip.name: clip.prompt for clip in self.clips},
            "memory": Peak(self.devices()).kind,
            "environment": environment(self.engine.target.backbone.device),
        }

    def devices(self) -> list[torch.device]:
        """Every device that a weight is on."""
        models = [self.engine.target] + ([self.engine.draft] if self.engine.draft else [])
        found = {parameter.device for model in models for parameter in model.backbone.model.parameters()}
        return sorted(found, key=str)


@dataclass(frozen=True)
class Cell:
    """One measurement that is to be made."""

    repeat: int
    clip: Clip
    contestant: Contestant

    @property
    def key(self) -> tuple[str, str, int]:
        """As `Measurement` has it."""
        return self.clip.name, self.contestant.name, self.repeat


class Watcher(Protocol):
    """Who looks on."""

    def plan(self, measurements: int) -> None:
        """So many measurements are to be made."""

    def begin(self, what: str) -> None:
        """This comes next."""

    def done(self, measurements: int) -> None:
        """So many more are made, or will not be."""


class Unwatched:
    """Nobody looks on."""

    def plan(self, measurements: int) -> None:
        """Nothing."""

    def begin(self, what: str) -> None:
        """Nothing."""

    def done(self, measurements: int) -> None:
        """Nothing."""


def prepare(engine: Engine, chosen: list[Contestant], options: Options) -> Plan:
    """Find the clips.

    Raises:
        ConfigError: there are none.
    """
    return Plan(engine, clips_of(options, engine.target.processor), chosen, options)


def schedule(
    clips: Sequence[Clip], chosen: Sequence[Contestant], repeats: int, seed: int
) -> Iterator[tuple[Clip, list[Cell]]]:
    """Clip by clip and repeat by repeat, all methods in an order drawn anew, the same one in every run of a seed.

    So what slows the machine down for a while hits all methods alike, and none always follows the same other one.
    """
    for repeat in range(repeats):
        for clip in clips:
            order = list(chosen)
            random.Random(f"{seed}/{repeat}/{clip.name}").shuffle(order)
            yield clip, [Cell(repeat, clip, one) for one in order]


def run(plan: Plan, store: Store, watcher: Watcher | None = None) -> None:
    """Measure what is missing. Each measurement is in the store when the next one begins.

    Args:
        store: begun, with what was measured before.
    """
    watcher = watcher or Unwatched()
    held = {(m.clip, m.method, m.repeat) for m in store.of(Measurement)}
    failed = {failure.clip for failure in store.of(Failure)}
    clips = [clip for clip in plan.clips if clip.name not in failed]
    blocks = [
        (clip, [cell for cell in cells if cell.key not in held])
        for clip, cells in schedule(clips, plan.contestants, plan.options.repeats, plan.options.seed)
    ]
    blocks = [(clip, cells) for clip, cells in blocks if cells]
    watcher.plan(sum(len(cells) for _, cells in blocks))
    refused = _warm_up(plan, blocks, store, watcher)
    peak = Peak(plan.devices())
    with _settled():
        for clip, cells in blocks:
            runnable = [cell for cell in cells if cell.contestant.name not in refused]
            watcher.done(len(cells) - len(runnable))
            if clip.name in failed:
                watcher.done(len(runnable))
            elif runnable and not _measure_block(plan, clip, runnable, store, peak, watcher):
                failed.add(clip.name)


@contextmanager
def _settled() -> Iterator[None]:
    """Keep what is loaded by now out of the garbage collector's way: going through it takes up to a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_block(plan: Plan, clip: Clip, cells: list[Cell], store: Store, peak: Peak, watcher: Watcher) -> bool:
    """All methods on one clip; False if one of them failed, which ends it."""
    method, failure = "", None
    left = len(cells)
    try:
        shown = clip.prepare()
        for cell in cells:
            method = cell.contestant.name
            watcher.begin(f"{clip.name}: {method}")
            store.append(_measure(plan, cell, shown, peak))
            left -= 1
            watcher.done(1)
    except Exception as error:
        failure = Failure(clip.name, method, cells[0].repeat, told(error))
    if failure is None:
        return True
    free()  # not before: the exception holds on to what its frames held
    store.append(failure)
    watcher.done(left)
    return False


def _measure(plan: Plan, cell: Cell, shown: Shown, peak: Peak) -> Measurement:
    gc.collect()  # what earlier answers left behind is not collected at this one's expense
    start = peak.start()
    answer = cell.contestant.way.answer(plan.engine, shown, plan.options.max_new_tokens)
    highest = peak.stop()
    clip, name, repeat = cell.key
    return Measurement(
        clip=clip,
        group=cell.clip.group,
        method=name,
        repeat=repeat,
        peak_bytes=highest,
        start_bytes=start,
        **vars(answer),
    )


def _warm_up(plan: Plan, blocks: list[tuple[Clip, list[Cell]]], store: Store, watcher: Watcher) -> set[str]:
    """Have every method that is still to be measured answer once, uncounted; the names of those that cannot."""
    waiting = {cell.contestant.name for _, cells in blocks for cell in cells}
    clips = {clip.name: clip for clip, _ in blocks}
    refused = set()
    for one in (one for one in plan.contestants if one.name in waiting):
        watcher.begin(f"warming up: {one.name}")
        for clip in clips.values():
            error, clips_fault = _tried(plan, one, clip)
            if error is not None:
                free()
            if not clips_fault:
                break
        if error is not None and not clips_fault:
            refused.add(one.name)
            store.append(Refusal(one.name, error))
    return refused


def _tried(plan: Plan, one: Contestant, clip: Clip) -> tuple[str | None, bool]:
    """What went wrong when a method answered briefly, None if nothing did, and whether the clip is to blame."""
    room = min(WARM_UP_TOKENS, plan.options.max_new_tokens)
    try:
        one.way.answer(plan.engine, clip.prepare(), room)
    except (MediaError, torch.OutOfMemoryError, MemoryError) as error:
        return told(error), True  # the clip fails in its turn
    except Exception as error:
        return told(error), False
    return None, False


def told(error: Exception) -> str:
    """An exception as one line, with its kind where the message is not ours."""
    text = " ".join(str(error).split())
    ours = type(error).__module__.startswith("draftlens")
    return text if ours and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def free() -> None:
    """Give back what a failed answer held."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
