"""The run: who answers which clip when, what goes wrong, and what is kept of it."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from draftlens.api import Engine
from draftlens.bench.clips import Clip, Shown
from draftlens.bench.contestants import Contestant
from draftlens.bench.fingerprints import fingerprint, model_files
from draftlens.bench.memory import Peak
from draftlens.bench.options import Options
from draftlens.bench.store import Failure, Measurement, Refusal, Store
from draftlens.bench.workloads import clips_of
from draftlens.core.errors import (
    ConfigError,
    IncompatiblePairError,
    MediaError,
    UnsupportedModelError,
)

WARM_UP_TOKENS = 16
TRIES = 3
"""A method is refused when it failed on so many clips that the reference answers."""
ON_EVERY_CLIP = (ConfigError, IncompatiblePairError, UnsupportedModelError)
"""Errors that have nothing to do with what is shown."""


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
        """Everything that measurements depend on, as JSON values: two runs may be mixed only if
        these are equal."""
        from draftlens.evaluate.environment import environment, model_facts

        models = {"target": self.engine.target} | (
            {"draft": self.engine.draft} if self.engine.draft else {}
        )
        files = {clip.name: clip.files() for clip in self.clips}
        return {
            "models": {
                role: {**model_facts(model), "files": model_files(model.name, role)}
                for role, model in models.items()
            },
            "options": self.options.plain(),
            "methods": {one.name: one.way.settings() for one in self.contestants},
            "clips": {clip.name: clip.prompt for clip in self.clips},
            "files": {name: fingerprint(found) for name, found in files.items() if found},
            "memory": Peak(self.devices()).kind,
            "environment": environment(self.engine.target.backbone.device),
        }

    def devices(self) -> list[torch.device]:
        """Every device that a weight is on."""
        models = [self.engine.target] + ([self.engine.draft] if self.engine.draft else [])
        found = {
            parameter.device for model in models for parameter in model.backbone.model.parameters()
        }
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


def prepare(
    engine: Engine, chosen: list[Contestant], options: Options, out: Path | None = None
) -> Plan:
    """Find the clips.

    Args:
        engine, chosen, options: of the plan.
        out: folder of the run: no clip is taken from it.

    Raises:
        ConfigError: there are none.
    """
    return Plan(engine, clips_of(options, engine.target.processor, out), chosen, options)


def schedule(
    clips: Sequence[Clip], chosen: Sequence[Contestant], repeats: int, seed: int
) -> Iterator[tuple[Clip, list[Cell]]]:
    """Clip by clip and repeat by repeat, all methods in an order drawn anew, the same one in every
    run of a seed.

    So what slows the machine down for a while hits all methods alike, and none always follows the
    same other one.
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
        for clip, cells in schedule(
            clips, plan.contestants, plan.options.repeats, plan.options.seed
        )
    ]
    blocks = [(clip, cells) for clip, cells in blocks if cells]
    watcher.plan(sum(len(cells) for _, cells in blocks))
    refused = _warm_up(plan, blocks, store, watcher)
    failed = {failure.clip for failure in store.of(Failure)}
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
    """Keep what is loaded by now out of the garbage collector's way: going through it takes up to a
    second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_block(
    plan: Plan, clip: Clip, cells: list[Cell], store: Store, peak: Peak, watcher: Watcher
) -> bool:
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
        failure = _failure(error, clip, method, cells[0].repeat)
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


def _warm_up(
    plan: Plan, blocks: list[tuple[Clip, list[Cell]]], store: Store, watcher: Watcher
) -> set[str]:
    """Have every method that is still to be measured answer once, uncounted; the names of those
    that cannot.

    One that has been measured already is not refused any more: what it fails on is a clip.
    """
    waiting = {cell.contestant.name for _, cells in blocks for cell in cells}
    measured = {m.method for m in store.of(Measurement)}
    repeats: dict[str, tuple[Clip, int]] = {}
    for clip, cells in blocks:
        repeats.setdefault(clip.name, (clip, cells[0].repeat))
    fit, refused = list(repeats.values()), set()
    for one in (one for one in plan.contestants if one.name in waiting):
        watcher.begin(f"warming up: {one.name}")
        error = _refusal(plan, one, fit, store)
        if error is not None and one.name not in measured:
            refused.add(one.name)
            if (
                Refusal(one.name, error) not in store.records
            ):  # it may have been refused before the run was resumed
                store.append(Refusal(one.name, error))
    return refused


def _refusal(plan: Plan, one: Contestant, fit: list[tuple[Clip, int]], store: Store) -> str | None:
    """Why a method does not run; None if it does, or if there is no clip to show it.

    Args:
        fit: clips to try it on, with the repeat that comes next. One that the reference cannot
            answer either is to blame itself: it is recorded as failed and leaves the list.
    """
    reference, errors = plan.contestants[0], list[str]()
    for clip, repeat in list(fit):
        failure, anywhere = _tried(plan, one, clip, repeat)
        if failure is None:
            return None
        if anywhere and one is not reference:
            return failure.error
        blamed = failure if one is reference else _tried(plan, reference, clip, repeat)[0]
        if blamed is not None:
            store.append(blamed)
            fit.remove((clip, repeat))
            continue
        errors.append(failure.error)
        if len(errors) == TRIES:
            break
    return errors[0] if errors else None


def _tried(plan: Plan, one: Contestant, clip: Clip, repeat: int) -> tuple[Failure | None, bool]:
    """What went wrong when a method answered briefly, None if nothing did, and whether it would on
    every clip."""
    room = min(WARM_UP_TOKENS, plan.options.max_new_tokens)
    try:
        one.way.answer(plan.engine, clip.prepare(), room)
        return None, False
    except Exception as error:
        failure, anywhere = (
            _failure(error, clip, one.name, repeat),
            isinstance(error, ON_EVERY_CLIP),
        )
    free()  # not before: the exception holds on to what its frames held
    return failure, anywhere


def _failure(error: Exception, clip: Clip, method: str, repeat: int) -> Failure:
    """A clip that cannot be read is no method's fault."""
    return Failure(clip.name, "" if isinstance(error, MediaError) else method, repeat, told(error))


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
