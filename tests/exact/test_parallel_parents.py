"""What becomes of a drafting process when the one that started it is killed, interrupted or forks.

One script without a main guard, read from standard input, forks a child for each case.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.dist]

TESTS = Path(__file__).parents[1]
PATIENCE = 240
"""Seconds until a case has begun, when five processes load their libraries at once on a slow
machine, or until a process has ended."""

SCRIPT = """
import json, multiprocessing, os, pathlib, signal, sys, time
import torch
torch.set_num_threads(1)
import draftlens
from draftlens.methods.parallelvlm.draft_process import process_of
from families import FAMILIES, inputs
from stock import NEW, draft, reference, target
import draftlens.methods.parallelvlm.drafters

draftlens.methods.parallelvlm.drafters.usable_cores = lambda: 2
folder = pathlib.Path(sys.argv[1])
family = FAMILIES[0]
model = draft(family)
expected = reference(family, family.richest)

def report(case, **facts):
    unfinished = folder / (case + ".unfinished")
    unfinished.write_text(json.dumps({"parent": os.getpid(), **facts}))
    unfinished.rename(folder / case)

def answer():
    given = inputs(family, family.richest)
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3}
    result = draftlens.generate(
        target(family), given, draft=model, method=method, max_new_tokens=NEW
    )
    assert result.tokens == expected
    assert result.stats.worker_lost is None
    return result

def loading():
    report("loading", draft=process_of(model).pid)
    time.sleep(600)

def answering():
    answer()
    report("answering", draft=process_of(model).pid)
    while True:
        answer()

def idle():
    answer()
    process = process_of(model)
    fork = os.fork()
    if not fork:
        assert process_of(model).pid != process.pid
        sys.exit(7)  # an orderly end
    _, status = os.waitpid(fork, 0)
    answer()
    same = process_of(model) is process and process.lost is None
    # This fork lives on.
    if not os.fork():
        time.sleep(600)
    report("idle", draft=process.pid, same=same, status=os.waitstatus_to_exitcode(status))
    time.sleep(600)

def interrupted():
    # A shell lets what it runs in the background ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = process_of(model)
    report("interrupted", draft=process.pid)
    try:
        time.sleep(600)
        os._exit(0)  # nobody has interrupted it
    except KeyboardInterrupt:
        pass
    answer()
    report("interrupted again", draft=process.pid, same=process_of(model) is process)
    while True:
        answer()

def daemonic():
    result = answer()
    report("daemonic", draft=process_of(model).pid, lanes=result.stats.lanes)

for case in (loading, answering, idle, interrupted):
    if not os.fork():
        os.setpgid(0, 0)
        with open(folder / (case.__name__ + ".err"), "w") as errors:
            os.dup2(errors.fileno(), 2)
        case()
        os._exit(0)  # nobody has killed it
child = multiprocessing.get_context("fork").Process(target=daemonic, daemon=True)
child.start()
child.join()
report("main", status=child.exitcode)
time.sleep(600)
"""


class Cases:
    """The running script.

    Args:
        folder: for its reports.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = os.pathsep.join([str(TESTS.parent), str(TESTS), str(TESTS / "exact")])
        self.main = subprocess.Popen(
            [sys.executable, "-", str(folder)],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self.main.stdin is not None
        with self.main.stdin as script:
            script.write(SCRIPT.encode())

    def report(self, case: str) -> dict[str, Any]:
        """What a case reports, once it is that far."""
        path = self.folder / case
        end = time.monotonic() + PATIENCE
        while not path.exists():
            assert time.monotonic() < end, f"{case} has not begun"
            assert self.main.poll() is None
            time.sleep(0.05)
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def close(self) -> None:
        """End everything that is left."""
        started = psutil.Process(self.main.pid).children(recursive=True)
        self.main.kill()
        self.main.wait()
        for process in started:
            if process.is_running():
                process.kill()
        # A fork whose parent was killed is nobody's child, but still in the group of its case.
        for file in self.folder.glob("idle"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(json.loads(file.read_text())["parent"], signal.SIGKILL)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    cases = Cases(tmp_path_factory.mktemp("cases"))
    yield cases
    cases.close()


def has_ended(pid: int) -> bool:
    """Whether a process ends at all."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def shared_files() -> list[str]:
    """Files of draftlens in the folder for shared memory."""
    return [name for name in os.listdir("/dev/shm") if "draftlens" in name]


@pytest.mark.parametrize("case", ["loading", "answering", "idle"])
def test_a_killed_parent_leaves_no_process(cases: Cases, case: str) -> None:
    facts = cases.report(case)
    assert psutil.pid_exists(facts["draft"])
    os.kill(facts["parent"], signal.SIGKILL)
    assert has_ended(facts["draft"])
    assert not shared_files()


def test_ctrl_c_ends_a_parent_but_does_not_reach_its_process(cases: Cases) -> None:
    facts = cases.report("interrupted")
    os.killpg(facts["parent"], signal.SIGINT)  # while the process loads its libraries
    again = cases.report("interrupted again")
    assert again["draft"] == facts["draft"]
    assert again["same"]
    assert psutil.pid_exists(facts["draft"])
    os.killpg(facts["parent"], signal.SIGINT)
    assert has_ended(facts["parent"])
    assert has_ended(facts["draft"])
    errors = (cases.folder / "interrupted.err").read_text()
    # The interrupt may arrive while another exception is handled; both are then in one report.
    assert errors.count("Traceback") == 1 + errors.count("During handling of the above exception")
    assert errors.rstrip().endswith("KeyboardInterrupt")


def test_a_fork_leaves_the_process_to_its_parent(cases: Cases) -> None:
    facts = cases.report("idle")
    assert facts["same"]
    assert facts["status"] == 7


def test_a_daemonic_parent_drafts_in_a_process(cases: Cases) -> None:
    facts = cases.report("daemonic")
    assert facts["lanes"]["draft"]["draft"] > 0
    assert cases.report("main")["status"] == 0
    assert has_ended(facts["draft"])
