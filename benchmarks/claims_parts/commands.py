"""Runs the commands of claims, and what they cost."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .claim import RESULTS

MINUTES = RESULTS / "claims_minutes.json"
"""Minutes of the processor by command, of the last time that each was run."""


@dataclass(frozen=True)
class Cost:
    """What a command took.

    Args:
        wall: seconds.
        processor: seconds of the processor, of all its processes.
    """

    wall: float
    processor: float


def execute(command: str) -> tuple[int, Cost]:
    """Run a command of the page in the root of the repository, one thread a process.

    Returns:
        The exit status, and the cost.
    """
    paths = [".", "lab", os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    words = shlex.split(command)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words[1:]], stdout=subprocess.DEVNULL, env=environment
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime)
    print(f"$ {command}", flush=True)
    print(
        f"  {cost.wall:.0f} s, {cost.processor:.0f} s of the processor, "
        f"exit status {process.returncode}",
        flush=True,
    )
    return process.returncode, cost


def out_of(command: str) -> str:
    """The file that a command writes, without a suffix; empty if it names none."""
    words = shlex.split(command)
    return words[words.index("--out") + 1] if "--out" in words else ""


def name_of(file: str) -> str:
    """The report that a result file belongs to: prompts of a report lie beside it, one a line."""
    return Path(file).name.removesuffix("_rows.jsonl")


def recorded() -> dict[str, float]:
    """Minutes by command."""
    found: dict[str, float] = json.loads(MINUTES.read_text()) if MINUTES.exists() else {}
    return found
