"""The work of a round on a GPU may only fall: launches outside the models' forwards, waits of the
host, and waits for a prompt, by method.

`PYTHONPATH=.:tests:tests/exact python tests/device/test_ratchet.py` writes the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import make_costs_steady
from tests.device import simulated
from tests.device.answers import COUNTED, counted, make_tables, steady

NUMBERS = Path(__file__).with_name("counts.json")
"""By rows and method. A number may fall; one that rises says in its commit what it buys."""

Numbers = dict[str, dict[str, int]]


def numbers(rows: int, sampled: bool) -> Numbers:
    """The numbers of all methods for so many rows."""
    make_tables()
    counted("chain", 1)  # moves the models, and looks at them
    found = {}
    for name in COUNTED[rows, sampled]:
        rounds, _ = counted(name, rows, sampled)
        found[name] = steady(rounds, rows)
    return found


def title(rows: int, sampled: bool) -> str:
    return f"{'sampled' if sampled else 'greedy'}, {rows} row{'s' * (rows > 1)}"


@pytest.mark.parametrize(("rows", "sampled"), COUNTED)
def test_launches_and_waits(rows: int, sampled: bool, steady_costs: None) -> None:
    with simulated():
        found = numbers(rows, sampled)
    bounds: Numbers = json.loads(NUMBERS.read_text())[title(rows, sampled)]
    more = {
        (name, kind): f"{count}, not {bounds[name][kind]}"
        for name, counts in found.items()
        for kind, count in counts.items()
        if count > bounds[name][kind]
    }
    assert not more
    assert found.keys() == bounds.keys()


def test_aims() -> None:
    """One wait a round for plain decoding, chains and trees, and few for a prompt."""
    kept = json.loads(NUMBERS.read_text())
    most = {"plain": 10, "chain": 25, "tree": 55}
    for name, launches in most.items():
        counts = kept["greedy, 1 row"][name]
        assert counts["outside"] <= launches
        assert counts["prompt waits"] <= 4
        for of_rows in kept.values():
            assert of_rows.get(name, counts)["waits"] == 1


def main() -> None:
    with simulated(), pytest.MonkeyPatch.context() as patch:
        make_costs_steady(patch)
        made = {title(*case): numbers(*case) for case in COUNTED}
    NUMBERS.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
