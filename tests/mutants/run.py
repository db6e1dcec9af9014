"""Apply each fault of `faults.py` to a copy of the checkout and see that tests notice it.

python -m tests.mutants.run --jobs 2
python -m tests.mutants.run --only "p is not normalised"
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
COPIED = ("draftlens", "recipes", "tests", "pyproject.toml")
IGNORED = shutil.ignore_patterns("__pycache__", ".*_cache")
LIMIT = 300
"""Seconds after which tests count as failed: a fault may make a loop endless."""

TESTS_FAILED = 1  # exit statuses of pytest
TESTS_PASSED = 0


@dataclass(frozen=True)
class Outcome:
    """The result of one fault.

    Attributes:
        fault: the change.
        verdict: `killed`, `SURVIVED`, or what hindered the tests.
        seconds: that the tests took.
    """

    fault: Fault
    verdict: str
    seconds: float


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="Part of the names of the faults to run.")
    parser.add_argument("--jobs", type=int, default=1, help="Faults that run at the same time.")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.only in fault.name]
    if not faults:
        parser.error(f"no fault has {arguments.only!r} in its name")
    width = max(len(fault.name) for fault in faults)
    outcomes = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for outcome in pool.map(run, faults):
            name = outcome.fault.name.ljust(width)
            print(f"{name}  {outcome.verdict:9} {outcome.seconds:5.0f} s", flush=True)
            outcomes.append(outcome)
    print(summary(outcomes))
    return 0 if all(outcome.verdict == "killed" for outcome in outcomes) else 1


def run(fault: Fault) -> Outcome:
    """Run the tests of a fault on a copy that has it."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="draftlens-mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            copy_of(ROOT / name, copy / name)
        problem = apply(fault, copy)
        verdict = problem if problem is not None else verdict_of(fault, copy)
    return Outcome(fault, verdict, time.perf_counter() - began)


def copy_of(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=IGNORED)
    else:
        shutil.copy(source, target)


def apply(fault: Fault, root: Path) -> str | None:
    """Change the file below `root`; returns why this is not possible, else None."""
    path = root / "draftlens" / fault.file
    text = path.read_text()
    count = text.count(fault.old)
    if count != 1:
        return f"text occurs {count} times"
    path.write_text(text.replace(fault.old, fault.new))
    return None


def verdict_of(fault: Fault, root: Path) -> str:
    """Whether the tests notice the fault."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *fault.tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(root),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "DRAFTLENS_FUZZ_PROFILE": "first failure",
    }
    try:
        done = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return "killed"
    if done.returncode == TESTS_FAILED:
        return "killed"
    if done.returncode == TESTS_PASSED:
        return "SURVIVED"
    return f"pytest exits with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"


def summary(outcomes: Iterable[Outcome]) -> str:
    """One line about all faults."""
    verdicts = [outcome.verdict for outcome in outcomes]
    return f"{verdicts.count('killed')} of {len(verdicts)} faults are killed"


if __name__ == "__main__":
    sys.exit(main())
