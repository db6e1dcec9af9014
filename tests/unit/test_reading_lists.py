"""The way of a request through the package does not become longer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BOUNDS = json.loads((TESTS / "reading_lists.json").read_text())


@pytest.fixture(scope="module")
def files() -> dict[str, list[str]]:
    """The files of each request, in a process of its own, since a trace slows all calls down."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TESTS / "reading_lists.py"), "--files"],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lists: dict[str, list[str]] = json.loads(done.stdout)
    return lists


@pytest.mark.parametrize("request_name", BOUNDS)
def test_a_request_runs_through_no_more_files(
    request_name: str, files: dict[str, list[str]]
) -> None:
    """A lower number belongs into `reading_lists.json`: `tests/reading_lists.py --write`."""
    from reading_lists import sizes_of

    size, bound = sizes_of(files)[request_name], BOUNDS[request_name]
    assert size["files"] <= bound["files"], files[request_name]
    assert size["code"] <= bound["code"]


def test_every_request_has_a_bound(files: dict[str, list[str]]) -> None:
    assert files.keys() == BOUNDS.keys()
