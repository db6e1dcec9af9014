"""The benchmark that is to run where a device is at hand mixes no devices either. Stock assisted
generation calls the driver."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import pytest

import draftlens
from tests.device import on_device, simulated


@pytest.mark.slow
def test_the_benchmark_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import gpu

    pair = draftlens.load("embedded", device="cpu", calibrate=False)

    def load(name: str, device: str, **options: Any) -> draftlens.Engine:
        assert (name, device) == ("embedded", "cuda")
        assert pair.draft is not None
        models = [on_device(each.backbone.model) for each in (pair.target, pair.draft)]
        return draftlens.Engine(*models, processor=pair.target.processor)

    monkeypatch.setattr(gpu, "draftlens", SimpleNamespace(load=load, generate=draftlens.generate))
    monkeypatch.setattr(gpu, "RECORDED", gpu.RECORDED[:1])
    with simulated():
        found = gpu.rows_of(argparse.Namespace(device="cuda", tiny=True, minutes=5, repeats=1))
    answers = [row for row in found.rows if row["way"] not in ("loading", "stock assisted")]
    assert len(answers) == 16
    assert all(row.get("equal") for row in answers), answers
    assert all(row["peak_bytes"] > 0 for row in answers)
