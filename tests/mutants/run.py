"""Apply each fault of `faults.py` to a copy of the checkout and see that tests notice it.

Each fault is tested in a process of its own, which is forked from this one when torch and
transformers are loaded: that takes longer than most of the tests. The same tests also run on the
code without a fault, where they must pass.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["DRAFTLENS_FUZZ_PROFILE"] = "first failure"

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS, Fault

FORK = multiprocessing.get_context("fork")
ROOT = Path(__file__).parents[2]
COPIED = ("draftlens", "lab", "recipes", "tests", "pyproject.toml")
IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")
LIMIT = 600
"""Seconds after which tests count as failed: a fault may make a loop endless."""

OFFSET = 100
"""Added to the exit status of pytest: a process that fails before pytest runs exits with 1, as
pytest does when a test fails."""

TESTS_PASSED = OFFSET
TESTS_FAILED = OFFSET + 1


@dataclass(frozen=True)
class Outcome:
    """The result of one fault.

    Attributes:
        fault: the change.
        verdict: `killed`, `passed` (no fault), `SURVIVED`, `FAILED` (no fault), or what kept the
            tests from running.
        seconds: that it took.
    """

    fault: Fault
    verdict: str
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether the tests do what they should."""
        return self.verdict in ("killed", "passed")


@dataclass
class Trial:
    """A fault in a copy of the checkout, and the process that tests it.

    Args:
        fault: the change.
    """

    fault: Fault
    folder: Path = field(init=False)
    process: multiprocessing.process.BaseProcess = field(init=False)
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = time.perf_counter()
        self.folder = Path(tempfile.mkdtemp(prefix="draftlens-mutant-"))
        for name in COPIED:
            _copy(ROOT / name, self.folder / name)
        if self.fault.old:
            path = self.folder / self.fault.file
            path.write_text(path.read_text().replace(self.fault.old, self.fault.new))
        self.process = FORK.Process(target=_test, args=(self.fault, self.folder))
        self.process.start()

    @property
    def seconds(self) -> float:
        """Time since the trial began."""
        return time.perf_counter() - self.began

    @property
    def has_ended(self) -> bool:
        """Whether the tests have ended or taken too long."""
        return not self.process.is_alive() or self.seconds > LIMIT

    def end(self) -> Outcome:
        """Remove the copy and return the result."""
        is_endless = self.process.is_alive()
        self.process.kill()
        self.process.join()
        status = self.process.exitcode
        verdict = "killed" if self.fault.old else "FAILED"
        if status == TESTS_PASSED:
            verdict = "SURVIVED" if self.fault.old else "passed"
        elif status != TESTS_FAILED and not is_endless:
            log = (self.folder / "log").read_text()
            verdict = f"ended with {status}: {log[-400:]}"
        shutil.rmtree(self.folder)
        return Outcome(self.fault, verdict, self.seconds)


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Check that tests notice deliberate faults.")
    parser.add_argument("--only", default="", help="Part of the names of the faults to run.")
    parser.add_argument("--jobs", type=int, default=1, help="Faults that run at the same time.")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    if not faults:
        parser.error(f"no fault has {arguments.only!r} in its name")
    load_libraries()
    trials = [*faults, *controls_of(faults)]
    width = max(len(fault.name) for fault in trials)
    outcomes = []
    for outcome in outcomes_of(trials, arguments.jobs):
        name = outcome.fault.name.ljust(width)
        print(f"{name}  {outcome.verdict:8} {outcome.seconds:4.0f} s", flush=True)
        outcomes.append(outcome)
    num_killed = sum(outcome.verdict == "killed" for outcome in outcomes)
    print(f"{num_killed} of {len(faults)} faults are killed")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def controls_of(faults: Sequence[Fault]) -> list[Fault]:
    """The tests of these faults, each selection once, without a fault."""
    selections = sorted({fault.tests for fault in faults})
    return [Fault(f"no fault: {' '.join(tests)}", "", "", "", tests) for tests in selections]


def outcomes_of(faults: Sequence[Fault], jobs: int) -> Iterator[Outcome]:
    """Test faults, `jobs` at a time; yields each result when it is there."""
    waiting = list(reversed(faults))
    running: list[Trial] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            fault = waiting.pop()
            problem = problem_of(fault)
            if problem is None:
                running.append(Trial(fault))
            else:
                yield Outcome(fault, problem, 0.0)
        wait([trial.process.sentinel for trial in running], timeout=5)
        for trial in [trial for trial in running if trial.has_ended]:
            running.remove(trial)
            yield trial.end()


def problem_of(fault: Fault) -> str | None:
    """Why a fault does not fit the code; None if it does."""
    if not fault.old:
        return None
    count = (ROOT / fault.file).read_text().count(fault.old)
    return None if count == 1 else f"the text occurs {count} times in {fault.file}"


def load_libraries() -> None:
    """Import what the tests need besides the library itself, once for all children."""
    importlib.import_module("scipy.stats")
    runpy.run_path(str(ROOT / "tests" / "families.py"))
    if "draftlens" in sys.modules:
        raise RuntimeError("children would test the library as it is, not as it is changed")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=IGNORED)
    else:
        shutil.copy(source, target)


def _test(fault: Fault, folder: Path) -> None:
    """Run pytest on a copy, in a child process; the exit status is `OFFSET` plus pytest's."""
    with (folder / "log").open("w") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    # Libraries that are loaded already are also plugins of pytest, which it cannot rewrite.
    warnings = "ignore::pytest.PytestAssertRewriteWarning"
    options = ["-x", "--all-combinations", "-p", "no:cacheprovider", "-W", warnings]
    status = pytest.main([*options, *fault.tests])
    sys.exit(OFFSET + int(status))


if __name__ == "__main__":
    sys.exit(main())
