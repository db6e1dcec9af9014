"""The run of a benchmark: the order of measurements, failures, and what is stored."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftlens.core.errors import (
    ConfigError,
    IncompatiblePairError,
    MediaError,
    UnsupportedModelError,
)
from draftlens.engine import Engine
from draftlens_lab.bench.clips import Clip, Reader
from draftlens_lab.bench.contestants import Contestant
from draftlens_lab.bench.fingerprints import fingerprint, model_files
from draftlens_lab.bench.memory import Peak
from draftlens_lab.bench.options import BenchOptions
from draftlens_lab.bench.store import Failure, Measurement, Refusal, Store
from draftlens_lab.bench.workloads import clips_of
from draftlens_lab.measure.environment import environment, model_facts, models_by_role
from draftlens_lab.measure.progress import ProgressListener, SilentProgress

WARM_UP_TOKENS = 16

TRIES = 3
"""A method is refused after it failed on this many clips that the reference answers."""

CLIP_INDEPENDENT_ERRORS = (ConfigError, IncompatiblePairError, UnsupportedModelError)
"""Errors that a method raises for every clip."""


@dataclass(frozen=True)
class BenchRun:
    """A run that is ready to begin."""

    engine: Engine
    clips: list[Clip]
    contestants: list[Contestant]
    options: BenchOptions

    def description(self) -> dict[str, Any]:
        """Everything that measurements depend on, as JSON values.

        Only runs with equal descriptions may share a store.
        """
        models = {}
        for role, model in models_by_role(self.engine.target, self.engine.draft).items():
            models[role] = {**model_facts(model), "files": model_files(model.name, role)}
        files = {clip.name: clip.files() for clip in self.clips}
        return {
            "models": models,
            "options": self.options.plain(),
            "methods": {
                contestant.name: contestant.way.settings() for contestant in self.contestants
            },
            "clips": {clip.name: clip.prompt for clip in self.clips},
            "files": {name: fingerprint(paths) for name, paths in files.items() if paths},
            "memory": Peak(self.devices()).kind,
            "environment": environment(self.engine.target.backbone.device),
        }

    def devices(self) -> list[torch.device]:
        """Every device that holds a weight of a model."""
        models = models_by_role(self.engine.target, self.engine.draft).values()
        devices = {weight.device for m in models for weight in m.backbone.model.parameters()}
        return sorted(devices, key=str)


@dataclass(frozen=True)
class Cell:
    """A measurement to make."""

    repeat: int
    clip: Clip
    contestant: Contestant

    @property
    def key(self) -> tuple[str, str, int]:
        """Clip, method and repeat, as in `Measurement`."""
        return self.clip.name, self.contestant.name, self.repeat


@dataclass(frozen=True)
class Block:
    """Measurements of all methods on one clip in one repeat, in their order.

    Args:
        cells: the measurements, at least contestant.
    """

    clip: Clip
    cells: list[Cell]

    @property
    def repeat(self) -> int:
        return self.cells[0].repeat


def prepare(
    engine: Engine, contestants: list[Contestant], options: BenchOptions, out: Path | None = None
) -> BenchRun:
    """Find the clips and plan the run.

    Args:
        out: folder of the run; its files are not used as clips.
    """
    return BenchRun(engine, clips_of(options, engine.target.processor, out), contestants, options)


def schedule(
    clips: Sequence[Clip], contestants: Sequence[Contestant], repeats: int, seed: int
) -> Iterator[Block]:
    """The measurements of a run: repeat by repeat and clip by clip, with all methods in a random
    order that depends on the seed.

    A temporary slowdown of the machine therefore affects all methods alike, and no method always
    follows the same other contestant.
    """
    for repeat in range(repeats):
        for clip in clips:
            order = list(contestants)
            random.Random(f"{seed}/{repeat}/{clip.name}").shuffle(order)
            yield Block(clip, [Cell(repeat, clip, contestant) for contestant in order])


def run(plan: BenchRun, store: Store, listener: ProgressListener | None = None) -> None:
    """Make all measurements that the store does not hold.

    Each measurement is stored before the next one begins.
    """
    listener = listener or SilentProgress()
    blocks = _missing_blocks(plan, store)
    listener.plan(sum(len(block.cells) for block in blocks))
    refused = _warm_up(plan, blocks, store, listener)
    failed_clips = _failed_clips(store)
    peak = Peak(plan.devices())
    with _frozen_garbage():
        for block in blocks:
            cells = [cell for cell in block.cells if cell.contestant.name not in refused]
            listener.done(len(block.cells) - len(cells))
            if block.clip.name in failed_clips:
                listener.done(len(cells))
            elif cells:
                runnable = Block(block.clip, cells)
                if not _measure_block(plan, runnable, store, peak, listener):
                    failed_clips.add(block.clip.name)


def error_message(error: Exception) -> str:
    """The message of an exception on one line, with its type unless it is one of ours."""
    text = " ".join(str(error).split())
    is_ours = type(error).__module__.startswith("draftlens")
    if is_ours and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def free() -> None:
    """Release the memory of a failed answer."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _missing_blocks(plan: BenchRun, store: Store) -> list[Block]:
    """The schedule without stored measurements and failed clips."""
    measured = {(m.clip, m.method, m.repeat) for m in store.of(Measurement)}
    failed_clips = _failed_clips(store)
    clips = [clip for clip in plan.clips if clip.name not in failed_clips]
    blocks = []
    for block in schedule(clips, plan.contestants, plan.options.repeats, plan.options.seed):
        cells = [cell for cell in block.cells if cell.key not in measured]
        if cells:
            blocks.append(Block(block.clip, cells))
    return blocks


def _failed_clips(store: Store) -> set[str]:
    return {failure.clip for failure in store.of(Failure)}


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """Exclude all present objects from garbage collection, which takes up to a second for them."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _measure_block(
    plan: BenchRun, block: Block, store: Store, peak: Peak, listener: ProgressListener
) -> bool:
    """Measure all methods on one clip.

    Returns:
        False if one of them failed; the others are then skipped.
    """
    method = ""
    remaining = len(block.cells)
    try:
        read_clip = block.clip.prepare()
        for cell in block.cells:
            method = cell.contestant.name
            listener.begin(f"{block.clip.name}: {method}")
            store.append(_measure(plan, cell, read_clip, peak))
            remaining -= 1
            listener.done(1)
        return True
    except Exception as error:
        failure = _failure(error, block.clip, method, block.repeat)
    free()  # after the except clause: until then the exception keeps the frames of the call alive
    store.append(failure)
    listener.done(remaining)
    return False


def _measure(plan: BenchRun, cell: Cell, read_clip: Reader, peak: Peak) -> Measurement:
    gc.collect()  # so that garbage of earlier answers is not collected during this one
    peak.start()
    way = cell.contestant.way
    answer = way.answer(plan.engine, read_clip, plan.options.max_new_tokens)
    usage = peak.stop(answer.workers)
    accepted = way.accepted(plan.engine, read_clip, answer.tokens)
    figures = {name: value for name, value in vars(answer).items() if name != "workers"}
    return Measurement(
        clip=cell.clip.name,
        group=cell.clip.group,
        method=cell.contestant.name,
        repeat=cell.repeat,
        peak_bytes=usage.peak,
        start_bytes=usage.start,
        accepted=accepted,
        **figures,
    )


def _warm_up(
    plan: BenchRun, blocks: Sequence[Block], store: Store, listener: ProgressListener
) -> set[str]:
    """Let every method that is still to be measured answer once, without counting it.

    A method with stored measurements is not refused any more: if it fails, the clip has failed.

    Returns:
        Names of the methods that do not run on these models.
    """
    waiting = {cell.contestant.name for block in blocks for cell in block.cells}
    measured = {m.method for m in store.of(Measurement)}
    candidates = _WarmUpClips(plan, blocks, store)
    refused = set()
    for contestant in plan.contestants:
        if contestant.name not in waiting:
            continue
        listener.begin(f"warming up: {contestant.name}")
        error = candidates.refusal(contestant)
        if error is not None and contestant.name not in measured:
            refused.add(contestant.name)
            refusal = Refusal(contestant.name, error)
            if refusal not in store.records:  # a resumed run may hold it already
                store.append(refusal)
    return refused


@dataclass(frozen=True)
class _Trial:
    """A brief answer of a method to a clip.

    Args:
        failure: what went wrong; None if nothing did.
        is_clip_independent: whether the method would fail on every clip.
    """

    failure: Failure | None = None
    is_clip_independent: bool = False


class _WarmUpClips:
    """The clips that methods are tried on, one block for each.

    A clip on which the reference fails is recorded as failed and not used again.
    """

    def __init__(self, plan: BenchRun, blocks: Sequence[Block], store: Store) -> None:
        self.plan = plan
        self.store = store
        self.reference = plan.contestants[0]
        first_blocks: dict[str, Block] = {}
        for block in blocks:
            first_blocks.setdefault(block.clip.name, block)
        self.blocks = list(first_blocks.values())

    def refusal(self, contestant: Contestant) -> str | None:
        """Why a method does not run; None if it runs, or if there is no clip to try it on."""
        errors: list[str] = []
        for block in list(self.blocks):
            trial = self._try(contestant, block)
            if trial.failure is None:
                return None
            if trial.is_clip_independent and contestant is not self.reference:
                return trial.failure.error
            if self._drop_if_reference_fails(contestant, block, trial):
                continue
            errors.append(trial.failure.error)
            if len(errors) == TRIES:
                break
        return errors[0] if errors else None

    def _drop_if_reference_fails(self, contestant: Contestant, block: Block, trial: _Trial) -> bool:
        if contestant is not self.reference:
            trial = self._try(self.reference, block)
        if trial.failure is None:
            return False
        self.store.append(trial.failure)
        self.blocks.remove(block)
        return True

    def _try(self, contestant: Contestant, block: Block) -> _Trial:
        max_new_tokens = min(WARM_UP_TOKENS, self.plan.options.max_new_tokens)
        try:
            contestant.way.answer(self.plan.engine, block.clip.prepare(), max_new_tokens)
            return _Trial()
        except Exception as error:
            failure = _failure(error, block.clip, contestant.name, block.repeat)
            is_clip_independent = isinstance(error, CLIP_INDEPENDENT_ERRORS)
        free()  # after the except clause: until then the exception keeps the frames alive
        return _Trial(failure, is_clip_independent)


def _failure(error: Exception, clip: Clip, method: str, repeat: int) -> Failure:
    """The record of an error; a clip that cannot be read is not attributed to a method."""
    if isinstance(error, MediaError):
        method = ""
    return Failure(clip.name, method, repeat, error_message(error))
