"""The part `robustness`: a drafting process that is lost at any moment, and what answers leave.

    python benchmarks/parallel.py robustness [--kills 100] [--stops 20] [--answers 200]

Short captions of the embedded pair with the real process lane. Every answer is compared with stock
`generate`. Processes that are to be lost are forked from one that has loaded its libraries, since
a hundred starts would take ten minutes; those that are lost while they load, and those of the
search for leaks, are started as always. Writes OUT.json and OUT.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
from shared import (
    Benchmark,
    Report,
    backbones,
    caption_sample,
    grid,
    sample_inputs,
    stock_answerer,
    table,
)

import draftlens
from draftlens.core.errors import ConfigError
from draftlens.engine import Engine
from draftlens.methods.parallelvlm import draft_process as process_lane
from draftlens.methods.parallelvlm.draft_process import DraftProcess, process_of
from draftlens.methods.parallelvlm.drafters import link_of

from .forked import Fault, ForkedProcess
from .own_time import Run, timed_answer

BOUND = 1.0
"""Seconds that an answer whose draft is lost may take over plain decoding."""

BETWEEN, PREFILL, WINDOW, MESSAGE, LOADING = (
    "between answers",
    "in the prefill",
    "in a window",
    "in a message",
    "while it loads",
)
MOMENTS = (BETWEEN, PREFILL, WINDOW, MESSAGE, LOADING)

METHODS: Mapping[str, Mapping[str, Any]] = {
    "uv, parallel": {"method": "parallelvlm", "pruner": "uv"},
    "uv, lock-step": {
        "method": "parallelvlm",
        "pruner": "uv",
        "schedule": "parallel",
        "num_speculative_tokens": 5,
    },
    "unpruned, parallel": {"method": "speculative", "schedule": "parallel"},
}

CLIPS = 3
LONGEST_PAUSE = 0.03
"""Seconds between a loss and the next answer, at most."""
MOST_MESSAGES = 30
"""Messages that a process sends before it is lost within one, at most."""
SETTLING = 0.5
"""Seconds after which a process has followed the last messages of an answer."""


@dataclass(frozen=True)
class Plain:
    """What plain decoding of a clip takes, in seconds; medians.

    Args:
        own: see `Run.own`.
        wall: see `Run.wall`.
        per_token: see `Run.per_token`.
    """

    own: float
    wall: float
    per_token: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Plain:
        """The medians of some answers."""
        return cls(
            statistics.median(run.own for run in runs),
            statistics.median(run.wall for run in runs),
            statistics.median(run.per_token for run in runs),
        )

    def rest(self, elapsed: float, num_tokens: int, num_left: int) -> float:
        """Seconds from a moment of an answer to its end.

        Args:
            elapsed: seconds since the request.
            num_tokens: tokens that had come by then.
            num_left: tokens that had not.
        """
        decoding = num_left * self.per_token
        if num_tokens:
            return decoding
        return max(self.own - elapsed, decoding)


@dataclass(frozen=True)
class Loss:
    """An answer whose drafting process was lost. Seconds are those of `Moment.own`.

    Args:
        how: the signal.
        moment: one of `MOMENTS`.
        method: one of `METHODS`.
        elapsed: seconds from the request to the signal; 0 if that was before.
        num_tokens: tokens that had come by then.
        over_rest: seconds from the signal to the end of the answer, over what plain decoding needs
            for the rest.
        over_whole: seconds of the whole answer over those of plain decoding.
        wall_over_whole: the same with all the time that passed.
        lost: as `Stats.worker_lost`.
        ended: how the process was lost, seen after the answer; None if it was not.
        equal: whether the tokens are those of stock `generate`.
    """

    how: str
    moment: str
    method: str
    elapsed: float
    num_tokens: int
    over_rest: float
    over_whole: float
    wall_over_whole: float
    lost: str | None
    ended: str | None
    equal: bool


@dataclass(frozen=True)
class Struck:
    """An answer during which a signal came.

    Args:
        moment: when it came, in seconds of `time.perf_counter`.
        run: the answer.
        process: the one that received it.
    """

    moment: float
    run: Run
    process: DraftProcess

    @property
    def ended(self) -> str | None:
        """How the process was lost; None while it is not."""
        return None if self.process.is_alive else self.process.lost


@dataclass(frozen=True)
class Holdings:
    """What this process and its drafting process hold.

    Args:
        processes: processes that this one has started.
        descriptors: of this process.
        memory_descriptors: those of files in memory.
        memory_files: files in memory that this process maps, the draft's weights among them.
        shared_files: files of ``/dev/shm`` that this process or one that it started maps or holds.
        lane_descriptors, lane_memory_files: of the drafting process; 0 without one.
    """

    processes: int
    descriptors: int
    memory_descriptors: int
    memory_files: int
    shared_files: int
    lane_descriptors: int
    lane_memory_files: int

    @classmethod
    def now(cls, lane: int | None) -> Holdings:
        """Count.

        Args:
            lane: id of the drafting process.
        """
        here = os.getpid()
        started = [child.pid for child in psutil.Process().children(recursive=True)]
        held = {pid: _held(pid) for pid in (here, *started)}
        mapped = {pid: _mapped(pid) for pid in (here, *started)}
        shared = set()
        for pid in held:
            shared |= {path for path in held[pid] + mapped[pid] if path.startswith("/dev/shm")}
        return cls(
            processes=len(started),
            descriptors=len(held[here]),
            memory_descriptors=len([path for path in held[here] if path.startswith("/memfd:")]),
            memory_files=len(_memory_files(here)),
            shared_files=len(shared),
            lane_descriptors=0 if lane is None else len(held[lane]),
            lane_memory_files=0 if lane is None else len(_memory_files(lane)),
        )


def _held(pid: int) -> list[str]:
    """The files of a process' descriptors, without the one that reads them."""
    folder = Path(f"/proc/{pid}/fd")
    paths = []
    for name in os.listdir(folder):
        try:
            paths.append(os.readlink(folder / name))
        except FileNotFoundError:
            continue
    return paths


def _mapped(pid: int) -> list[str]:
    """The paths of a process' mappings."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line.split(maxsplit=5)[5] for line in lines if line.count("/")]


def _memory_files(pid: int) -> set[str]:
    """The numbers of the files in memory of draftlens that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/memfd:draftlens" in line}


@dataclass
class Trials:
    """Answers of one engine whose drafting process is lost.

    Args:
        engine: the pair.
        prompts: the clips.
        expected: stock's answers to them.
        options: of `generate`.
        rng: draws the moments.
        folder: for notes of processes that strike themselves.
        plain: runs of plain decoding by clip.
        usual: median seconds of answers whose process is not lost.
    """

    engine: Engine
    prompts: Sequence[Any]
    expected: Sequence[list[int]]
    options: dict[str, Any]
    rng: random.Random
    folder: Path
    plain: dict[int, list[Run]] = field(default_factory=dict)
    usual: float = 0.0

    def run(self, clip: int, method: Mapping[str, Any]) -> Run:
        """Answer."""
        return timed_answer(self.engine, self.prompts[clip], method, self.options)

    def run_plain(self, clip: int) -> None:
        """Answer by plain decoding, for comparison."""
        run = self.run(clip, {"method": "plain"})
        assert run.tokens == self.expected[clip]
        self.plain.setdefault(clip, []).append(run)

    def lose(self, number: int, how: signal.Signals) -> Callable[[Sequence[Plain]], Loss]:
        """One answer whose process is lost; a function of the medians of plain decoding by clip."""
        clip = number % len(self.prompts)
        moment = MOMENTS[number % len(MOMENTS)]
        name = self.rng.choice(list(METHODS))
        if number % 4 == 0:
            self.run_plain(clip)
        struck = self._struck(moment, how, clip, METHODS[name])
        ended = struck.ended
        process_of(self.draft.model).close()
        expected = self.expected[clip]
        return lambda plain: _loss(how.name, plain[clip], expected, moment, name, struck, ended)

    @property
    def draft(self) -> Any:
        """The backbone that drafts."""
        return backbones(self.engine)[1]

    def _struck(
        self, moment: str, how: signal.Signals, clip: int, method: Mapping[str, Any]
    ) -> Struck:
        if moment == LOADING:
            process = process_of(self.draft.model)
            strike = Strike(process.pid, how, self.rng.uniform(0.0, self.usual))
            run = self.run(clip, method)
            return Struck(strike.moment(), run, process)
        with forked(self._fault(how) if moment == MESSAGE else None):
            process = ready(self.draft)
            if moment == MESSAGE:
                run = self.run(clip, method)
                return Struck(self._noted(run), run, process)
            if moment == BETWEEN:
                os.kill(process.pid, how)
                struck = time.perf_counter()
                time.sleep(self.rng.uniform(0.0, LONGEST_PAUSE))
                return Struck(struck, self.run(clip, method), process)
            starts = [run.moments[1].wall - run.moments[0].wall for run in self.plain[clip]]
            first = statistics.median(starts)
            span = (0.0, first) if moment == PREFILL else (first, max(self.usual, first))
            strike = Strike(process.pid, how, self.rng.uniform(*span))
            run = self.run(clip, method)
            return Struck(strike.moment(), run, process)

    def _fault(self, how: signal.Signals) -> Fault:
        # The first message says that the process is ready.
        messages = self.rng.randint(1, MOST_MESSAGES)
        note = self.folder / "note"
        note.unlink(missing_ok=True)
        return Fault(messages, self.rng.random(), how, note)

    def _noted(self, run: Run) -> float:
        """When a process struck itself; the answer's end if it sent fewer messages."""
        note = self.folder / "note"
        return float(note.read_text()) if note.exists() else run.moments[-1].wall


class Strike:
    """A signal that comes later.

    Args:
        pid: of the process that receives it.
        how: the signal.
        delay: seconds until then.
    """

    def __init__(self, pid: int, how: signal.Signals, delay: float) -> None:
        self._moment = 0.0
        self._thread = threading.Thread(target=self._strike, args=(pid, how, delay))
        self._thread.start()

    def _strike(self, pid: int, how: signal.Signals, delay: float) -> None:
        time.sleep(delay)
        self._moment = time.perf_counter()
        os.kill(pid, how)
        wait_until_lost(pid)

    def moment(self) -> float:
        """When it came, in seconds of `time.perf_counter`."""
        self._thread.join()
        return self._moment


def wait_until_lost(pid: int) -> None:
    """Returns once a signal has ended or stopped a process, some time after it was sent."""
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED)
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() not in ended:
            time.sleep(0.001)


@contextmanager
def forked(fault: Fault | None = None) -> Iterator[None]:
    """Drafting processes start in a moment.

    Args:
        fault: what goes wrong in the next one; None for nothing.
    """
    faults = [fault]

    def start(descriptor: int) -> ForkedProcess:
        return ForkedProcess(descriptor, faults.pop() if faults else None)

    with patch.object(process_lane, "_start", start):
        yield


def ready(drafting: Any) -> DraftProcess:
    """The process of a model, once it is ready."""
    process = process_of(drafting.model)
    process.wait_until_ready()
    return process


def losses(engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    """Kill and stop the process at many moments."""
    prompts = [sample_inputs(engine, caption_sample(70 + c), args.frames) for c in range(CLIPS)]
    options = {"max_new_tokens": args.max_new_tokens}
    stock = stock_answerer(engine.target.backbone)
    expected = [stock(inputs, dict(options))["tokens"][0] for inputs in prompts]
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(engine, prompts, expected, options, random.Random(args.seed), Path(folder))
        with forked():
            ready(trials.draft)
            usual = []
            for clip in range(CLIPS):
                trials.run_plain(clip)
                for method in METHODS.values():
                    usual.append(trials.run(clip, method))
        trials.usual = statistics.median(run.wall for run in usual)
        process_of(trials.draft.model).close()
        found = []
        for how, count in ((signal.SIGKILL, args.kills), (signal.SIGSTOP, args.stops)):
            for number in range(count):
                found.append(trials.lose(number, how))
            print(f"{count} times {how.name} done", flush=True)
    plain = [Plain.of(trials.plain[clip]) for clip in range(CLIPS)]
    return {
        "plain": [asdict(one) for one in plain],
        "usual": trials.usual,
        "load": os.getloadavg(),
        "losses": [asdict(loss(plain)) for loss in found],
    }


def _loss(
    how: str,
    plain: Plain,
    expected: Sequence[int],
    moment: str,
    method: str,
    struck: Struck,
    ended: str | None,
) -> Loss:
    run = struck.run
    num_tokens, elapsed = run.at(struck.moment)
    rest = plain.rest(elapsed, num_tokens, len(run.tokens) - num_tokens)
    return Loss(
        how=how,
        moment=moment,
        method=method,
        elapsed=elapsed,
        num_tokens=num_tokens,
        over_rest=max(run.own - elapsed, 0.0) - rest,
        over_whole=run.own - plain.own,
        wall_over_whole=run.wall - plain.wall,
        lost=run.lost,
        ended=ended,
        equal=run.tokens == list(expected),
    )


def leaks(args: argparse.Namespace) -> dict[str, Any]:
    """What many answers leave, and what is left when the engine is dropped."""
    begun = Holdings.now(None)
    engine = load()
    drafting = backbones(engine)[1]
    process = ready(drafting)
    prompts = [sample_inputs(engine, caption_sample(70 + c), args.frames) for c in range(CLIPS)]
    serve = partial(_serve, engine, prompts, args.max_new_tokens)
    serve(2 * len(METHODS))
    before = Holdings.now(process.pid)
    lost = serve(args.answers)
    after = Holdings.now(process.pid)
    same = process_of(drafting.model) is process
    del engine, drafting, process, serve
    gc.collect()
    dropped = Holdings.now(None)
    return {
        "answers": args.answers,
        "lost": lost,
        "one process": same,
        "begun": asdict(begun),
        "before": asdict(before),
        "after": asdict(after),
        "dropped": asdict(dropped),
    }


def _serve(engine: Engine, prompts: Sequence[Any], max_new_tokens: int, count: int) -> int:
    """Give this number of answers; how many of them lost their lane."""
    methods = list(METHODS.values())
    lost = 0
    for number in range(count):
        method = dict(methods[number % len(methods)])
        inputs = prompts[number % len(prompts)]
        result = engine.answer(inputs, method=method, max_new_tokens=max_new_tokens).run()
        lost += result.stats.worker_lost is not None
    time.sleep(SETTLING)
    gc.collect()
    return lost


def load() -> Engine:
    """The embedded pair on the CPU."""
    return draftlens.load("embedded", device="cpu", calibrate=False)


def measure(args: argparse.Namespace) -> Report:
    """Leaks, and answers whose process is lost."""
    began = time.perf_counter()
    left = leaks(args)
    print(f"{args.answers} answers done", flush=True)
    engine = load()
    if link_of(backbones(engine)[1]) is None:
        raise ConfigError("no process can draft here, so none can be lost")
    found = losses(engine, args)
    return {"leaks": left, **found, "seconds": time.perf_counter() - began}


def page(report: Report) -> list[str]:
    """Losses by signal and moment, and what answers leave."""
    rows = []
    for how in dict.fromkeys(loss["how"] for loss in report["losses"]):
        of_signal = [loss for loss in report["losses"] if loss["how"] == how]
        for moment in (*MOMENTS, "all"):
            chosen = [loss for loss in of_signal if moment in (loss["moment"], "all")]
            if chosen:
                rows.append((how, moment, chosen))

    def middle_and_largest(figure: str, row: tuple[str, str, list[Mapping[str, Any]]]) -> str:
        values = [loss[figure] for loss in row[2]]
        return f"{statistics.median(values):.2f}, {max(values):.2f}"

    columns: dict[str, Any] = {
        "signal": lambda row: row[0],
        "moment": lambda row: row[1],
        "answers": lambda row: len(row[2]),
        "tokens equal": lambda row: sum(loss["equal"] for loss in row[2]),
        "noticed": lambda row: sum(loss["lost"] is not None for loss in row[2]),
        "from the signal, over plain: median, largest s": partial(middle_and_largest, "over_rest"),
        "whole answer, over plain: median, largest s": partial(middle_and_largest, "over_whole"),
        "with waits for a core": partial(middle_and_largest, "wall_over_whole"),
    }
    left = report["leaks"]
    moments = {
        "before the engine": "begun",
        f"before {left['answers']} answers": "before",
        "after them": "after",
        "engine dropped": "dropped",
    }
    held = [name.replace("_", " ") for name in left["before"]]
    plain = statistics.median(one["wall"] for one in report["plain"])
    load = ", ".join(f"{value:.1f}" for value in report["load"])
    return [
        "## Lost processes",
        table(rows, columns),
        f"An answer takes {plain:.2f} s by plain decoding, and {report['usual']:.2f} s with a "
        f"process that is not lost. The bound is {BOUND:.0f} s over plain decoding. Seconds are "
        "those in which the target's thread ran or slept; in the last column also those in which "
        f"it waited for a core. Load of the machine in the last 1, 5 and 15 minutes: {load}.",
        "## Leaks",
        grid("", held, moments, lambda name, m: str(left[moments[m]][name.replace(" ", "_")])),
    ]


BENCHMARK = Benchmark(
    "parallel_robustness",
    __doc__,
    "A drafting process that is lost",
    measure,
    page,
    {
        "--kills": 100,
        "--stops": 20,
        "--answers": 200,
        "--frames": 8,
        "--seed": 0,
        "--max-new-tokens": 32,
    },
)
