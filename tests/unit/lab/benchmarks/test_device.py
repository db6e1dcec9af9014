"""The arithmetic of the prediction for a GPU."""

from __future__ import annotations

import pytest

from benchmarks.device import BANDWIDTH, LAUNCH, SIZES, WAIT, Work, predicted, tokens_of

WORK = Work(outside=20, waits=1, fixed=100, of_target_layer=40, of_draft_layer=200)
PAIR = ("7B", "0.5B")


def test_a_pass_takes_the_longer_of_launches_and_bytes() -> None:
    target, draft = (SIZES[name] for name in PAIR)
    found = predicted(WORK, 5, 4.0, PAIR, graphs=False, parallel=False)
    of_target = max(LAUNCH * (120 + 40 * target.layers), target.bytes_of_pass / BANDWIDTH)
    of_draft = max(LAUNCH * 200 * draft.layers, 5 * draft.bytes_of_pass / BANDWIDTH)
    assert found["ms"] == pytest.approx(1000 * (of_target + of_draft + WAIT) / 4)
    assert found["launches"] == 120 + 40 * target.layers + 200 * draft.layers
    assert found["bound"] == "launches"


def test_graphs_leave_bytes() -> None:
    found = predicted(WORK, 5, 4.0, PAIR, graphs=True, parallel=False)
    assert found["launches"] == 5 + 1 + 20
    assert found["bound"] == "bytes"


def test_parallel_passes_share_launches_and_bandwidth() -> None:
    serial, parallel = (predicted(WORK, 5, 4.0, ("32B", "3B"), False, way) for way in (False, True))
    assert parallel["ms"] <= serial["ms"]
    assert parallel["ms"] >= max(parallel["launch_ms"], parallel["bytes_ms"]) / 4


def test_recorded_tokens_of_a_round() -> None:
    assert tokens_of("plain") == 1
    assert 2 < tokens_of("chain of 5") < tokens_of("EAGLE's tree") < 6
