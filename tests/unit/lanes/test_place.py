"""Which lane a draft has, and how many cores are left to the target."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, inputs
from stock import NEW, draft, reference, target

import draftlens
from draftlens.lanes import cores, place
from draftlens.lanes.cores import TargetShare, usable_cores
from draftlens.lanes.link import LaneLostError
from draftlens.lanes.messages import Close, Open
from draftlens.lanes.thread import DraftThread, thread_of
from draftlens.models import Backbone

FAMILY = FAMILIES[0]


@pytest.fixture
def no_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of eight cores; returns the folder for files of quotas, of which there are none."""
    for name in ("_QUOTA", "_QUOTA_V1", "_PERIOD_V1"):
        monkeypatch.setattr(cores, name, tmp_path / name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    return tmp_path


def test_cores_of_the_affinity(no_quota: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert usable_cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert usable_cores() == 3


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 8),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
        ("nonsense", 8),
    ],
)
def test_cores_of_the_quota(no_quota: Path, quota: str, expected: int) -> None:
    (no_quota / "_QUOTA").write_text(quota + "\n")
    assert usable_cores() == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("300000", 3)])
def test_cores_of_an_old_quota(no_quota: Path, quota: str, expected: int) -> None:
    (no_quota / "_QUOTA_V1").write_text(quota)
    (no_quota / "_PERIOD_V1").write_text("100000")
    assert usable_cores() == expected


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that torch was given; the last one is in force."""
    given = [4]
    monkeypatch.setattr(torch, "get_num_threads", lambda: given[-1])
    monkeypatch.setattr(torch, "set_num_threads", given.append)
    return given


@pytest.mark.usefixtures("no_quota")
def test_threads_are_lowered_and_restored(
    threads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    share = TargetShare()
    first = share.held(1)
    second = share.held(1)
    first.__enter__()
    assert threads[-1] == 3
    second.__enter__()
    assert threads[-1] == 3
    first.__exit__(None, None, None)
    assert threads[-1] == 3  # the second one goes on
    second.__exit__(None, None, None)
    assert threads[-1] == 4
    with share.held(9):
        assert threads[-1] == 1
    assert threads[-1] == 4


def backbone(**changed: Any) -> Any:
    """As much of a backbone as its place depends on."""
    facts = {"device": torch.device("cpu"), "is_spread": False, **changed}
    return SimpleNamespace(**facts)


@pytest.mark.parametrize(
    ("drafting", "num_cores", "why"),
    [
        (backbone(), 1, "one core only"),
        (backbone(is_spread=True), 8, "spread over several devices or offloaded"),
        (backbone(device=torch.device("meta")), 8, "a draft on meta cannot run beside"),
    ],
)
def test_where_no_lane_is_possible_the_log_says_why(
    drafting: Any,
    num_cores: int,
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(place, "usable_cores", lambda: num_cores)
    with caplog.at_level(logging.WARNING, logger="draftlens"):
        assert place.link_of(drafting) is None
    assert why in caplog.text
    assert "the schedule is serial" in caplog.text


def test_a_model_that_cannot_be_sent_has_no_lane(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = FAMILY.build()
    model.extra = torch.nn.Linear(2, 2)
    monkeypatch.setattr(place, "usable_cores", lambda: 2)
    with caplog.at_level(logging.WARNING, logger="draftlens"):
        assert place.link_of(Backbone.of(model)) is None
    assert "builds another structure" in caplog.text


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts on the CPU have a thread, as those on a GPU do."""
    monkeypatch.setattr("draftlens.methods.parts.link_of", thread_of)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize(
    "method",
    [
        {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 4},
        {"method": "speculative", "schedule": "lockstep", "num_speculative_tokens": 3},
        {"method": "parallelvlm", "prune_ratio": 0.5},
    ],
    ids=["eager", "lockstep", "uv"],
)
def test_a_thread_drafts(method: dict[str, Any]) -> None:
    for _ in range(3):
        result = draftlens.generate(
            target(FAMILY),
            inputs(FAMILY, FAMILY.richest),
            draft=draft(FAMILY),
            method=method,
            max_new_tokens=NEW,
        )
        assert result.tokens == reference(FAMILY, FAMILY.richest)
        assert result.stats.lane_lost is None
    assert threading.active_count() < 6


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", ["parallel", "lockstep"])
def test_a_thread_drafts_on_a_gpu(schedule: str) -> None:
    device = torch.device("cuda")
    given = {name: tensor.to(device) for name, tensor in inputs(FAMILY, FAMILY.richest).items()}
    deciding = FAMILY.build().to(device)
    method = {"method": "speculative", "schedule": schedule, "num_speculative_tokens": 3}
    plain = draftlens.generate(deciding, given, method="plain", max_new_tokens=NEW)
    for _ in range(3):
        result = draftlens.generate(
            deciding, given, draft=deciding, method=method, max_new_tokens=NEW
        )
        assert result.tokens == plain.tokens
        assert result.stats.lane_lost is None


def test_a_thread_is_kept_and_its_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = Backbone.of(draft(FAMILY))
    assert thread_of(drafting) is thread_of(Backbone.of(draft(FAMILY)))
    thread = DraftThread(drafting)

    def fail(message: Any) -> None:
        raise SystemError("out of luck")

    monkeypatch.setattr(thread._worker, "handle", fail)
    answer = thread.new_answer()
    thread.send(Open(answer, 10, None, shows_choices=False))
    thread._thread.join()
    with pytest.raises(LaneLostError, match="SystemError: out of luck"):
        thread.receive(answer, 0.05)
    with pytest.raises(LaneLostError):
        thread.send(Close(answer))
    thread.close()
