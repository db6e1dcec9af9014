"""Which processes read prompts together, before any has been started."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftlens.core.errors import ConfigError
from draftlens.distributed import check_hosts, own_device


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the fourth of eight processes of torchrun."""
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("hosts", "prefill", "why"),
    [
        (0, "ring", "hosts must be a whole number of at least 1, not 0"),
        (True, "ring", "hosts must be a whole number"),
        (2.0, "ring", "hosts must be a whole number"),
        (2, None, "several hosts read prompts by prefill 'ring' or 'spava': name one"),
    ],
)
def test_numbers_that_make_no_sense(hosts: Any, prefill: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check_hosts(hosts, prefill)


def test_numbers_that_do() -> None:
    check_hosts(None, None)
    check_hosts(1, None)
    check_hosts(2, "ring")


@pytest.mark.usefixtures("launched")
def test_torchrun_decides_how_many_there_are() -> None:
    check_hosts(8, "ring")
    with pytest.raises(ConfigError, match="torchrun has started 8 processes, and hosts is 2"):
        check_hosts(2, "ring")


@pytest.mark.usefixtures("launched")
def test_each_rank_of_a_machine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device(None) == own_device("cuda") == "cuda:1"
    assert own_device("cpu") == "cpu"
    assert own_device("cuda:5") == "cuda:5"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert own_device(None) is None


def test_alone_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert own_device("cuda") == "cuda"
