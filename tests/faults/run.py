"""Malformed inputs of all kinds, and what becomes of each.

`make faults` gives about 1,400 of them in one process: damaged clips, images and documents, hostile
servers on this machine, wrong arguments and command lines, damaged caches and results. Each must be
answered, or refused in one line, in time and in bounded memory. `test_faults.py` gives some.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from faults.watch import Outcome, Watch
from rich.console import Console
from rich.table import Table

SECONDS = 20.0
"""Limit of an input. A page may take 5 seconds, and a damaged document has three."""

MEMORY = 2048
"""MiB by which the process and its children may grow: `Limits.max_page_bytes`, what a reading takes
between two looks at it, and the libraries of the process that reads."""


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """The figures of each kind of inputs."""
    table = Table(box=None)
    table.add_column("kind")
    for name in ("inputs", "answered", "refused", "faults", "slowest", "most memory"):
        table.add_column(name, justify="right")
    kinds = dict.fromkeys(outcome.given.kind for outcome in outcomes)
    for kind in (*kinds, "all"):
        some = [each for each in outcomes if kind in (each.given.kind, "all")]
        faults = sum(each.fault is not None for each in some)
        refused = sum(each.refusal is not None and each.fault is None for each in some)
        table.add_row(
            kind,
            *map(str, (len(some), len(some) - refused - faults, refused, faults)),
            f"{max(each.seconds for each in some):.1f} s",
            f"{max(each.memory for each in some) >> 20} MiB",
        )
    return table


def run(folder: Path, share: float, seed: int, kinds: Sequence[str] = ()) -> list[Outcome]:
    """Give malformed inputs.

    Args:
        folder: for files.
        share: of the inputs of each kind.
        seed: of all that is drawn.
        kinds: of inputs; empty for all.
    """
    from faults.inputs import Inputs, Replies

    outcomes = []
    with Replies() as replies, Watch(SECONDS, MEMORY << 20) as watch:
        for given in Inputs(folder, replies, seed).all(share, kinds):
            outcomes.append(watch.give(given))
            if outcomes[-1].fault is not None:
                print(f"{given.kind}: {given.what}: {outcomes[-1].fault}", flush=True)
    return outcomes


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description="Give malformed inputs of all kinds.")
    parser.add_argument("--share", type=float, default=1.0, help="Of the inputs of each kind.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=[], help="Only these.")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        outcomes = run(Path(folder), arguments.share, arguments.seed, arguments.kinds)
    Console().print(table_of(outcomes))
    return 1 if any(outcome.fault is not None for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
