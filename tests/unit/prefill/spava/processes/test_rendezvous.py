"""Which processes read prompts together, before any has been started."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from draftlens.core.errors import ConfigError, InputError
from draftlens.prefill.base import make_prefill
from draftlens.prefill.spava.hosts import ALONE, hosts_of
from draftlens.prefill.spava.processes.launch import LocalRanks
from draftlens.prefill.spava.processes.rendezvous import digest_of, meet
from draftlens.prefill.spava.processes.torchrun import check_equal, check_first, own_device
from draftlens.prefill.spava.processes.transport import (
    LinkTransport,
    NcclTransport,
    Operation,
    transport_of,
)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the fourth of eight processes of torchrun."""
    for name, value in (("RANK", "3"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("hosts", "prefill", "why"),
    [
        (0, "ring", "hosts must be a whole number of at least 1, not 0"),
        (True, "spava", "hosts must be a whole number"),
        (2.0, "ring", "hosts must be a whole number"),
        (2, "full", "prefill 'full' has no option 'hosts'"),
    ],
)
def test_numbers_that_make_no_sense(hosts: Any, prefill: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_prefill({"name": prefill, "hosts": hosts})


@pytest.mark.parametrize("hosts", [None, 1, 2])
def test_numbers_that_do(hosts: int | None) -> None:
    make_prefill({"name": "ring", "hosts": hosts})


@pytest.mark.usefixtures("launched")
def test_torchrun_decides_how_many_there_are() -> None:
    make_prefill({"name": "ring", "hosts": 8})
    with pytest.raises(ConfigError, match="torchrun has started 8 processes, and hosts is 2"):
        make_prefill({"name": "ring", "hosts": 2})


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


class Started(LocalRanks):
    """A group of new processes."""

    def __init__(self, size: int, threads: int) -> None:
        self.size = size
        self.threads = threads
        self.lost: str | None = None
        self.ended = False

    @property
    def is_usable(self) -> bool:
        return self.lost is None

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """The groups that `meet` starts, without processes."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    started: list[Started] = []

    def start(backbone: Any, size: int, threads: int) -> Started:
        started.append(Started(size, threads))
        return started[-1]

    monkeypatch.setattr("draftlens.prefill.spava.processes.rendezvous.start", start)
    return started


class Called:
    """A backbone, as far as hosts are concerned."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model


def backbone_of(model: torch.nn.Module) -> Any:
    """What every call with a transformers model makes anew."""
    return Called(model)


def test_calls_with_one_model_share_a_group(starts: list[Started]) -> None:
    model = torch.nn.Identity()
    first, second, third, other = (backbone_of(model) for _ in range(4))
    meet(first, 2)
    meet(second, 2)
    meet(third)
    assert len(starts) == 1
    assert hosts_of(first) is hosts_of(second) is hosts_of(third) is starts[0]
    meet(third)  # it has met them
    with pytest.raises(ConfigError, match="with 2 hosts already, and hosts is 3: leave it out"):
        meet(other, 3)


def test_a_group_that_was_lost_is_started_again(starts: list[Started]) -> None:
    model = torch.nn.Identity()
    meet(backbone_of(model), 2)
    starts[0].lost = "host 1 has ended"
    again = backbone_of(model)
    meet(again, 3)
    assert hosts_of(again) is starts[1]
    assert starts[0].ended


def test_the_same_backbone_meets_others_again(
    starts: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an engine has one; nobody says again how many, and threads are divided once."""
    backbone = backbone_of(torch.nn.Identity())
    meet(backbone, 4)
    assert starts[0].threads == 2
    starts[0].lost = "host 1 has ended"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    meet(backbone)
    assert hosts_of(backbone) is starts[1]
    assert (starts[1].size, starts[1].threads) == (4, 2)


def test_without_hosts_a_model_is_alone(starts: list[Started]) -> None:
    model = torch.nn.Identity()
    for hosts in (None, 1):
        alone = backbone_of(model)
        meet(alone, hosts)
        assert hosts_of(alone) is ALONE
    assert starts == []


def test_equal_inputs_have_equal_digests() -> None:
    ids = torch.arange(6).view(2, 3)
    digest = digest_of({"input_ids": ids, "flag": True})
    assert digest == digest_of({"input_ids": ids.t().contiguous().t()})
    assert digest != digest_of({"input_ids": ids.view(3, 2)})
    assert digest != digest_of({"input_ids": ids + 1})
    assert digest != digest_of({"input_ids": ids.int()})


def test_ranks_that_ask_different_things_are_told_so() -> None:
    """All of them, by the same sentence."""
    store = HashStore()
    with ThreadPoolExecutor(3) as ranks:
        calls = [
            ranks.submit(check_equal, store, rank, 3, digest) for rank, digest in enumerate("aab")
        ]
    for call in calls:
        with pytest.raises(InputError, match="host 2 was given other inputs than host 0"):
            call.result()
    check_equal(HashStore(), 0, 1, "a")


def test_the_ranks_of_torchrun_meet_once() -> None:
    """They follow rank 0 to its end, so a second model would wait for them in vain."""
    store = HashStore()
    for rank in range(2):
        check_first(store, rank)
    with pytest.raises(ConfigError, match="read prompts with one model"):
        check_first(store, 0)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_ranks_without_a_gpu_of_their_own_exchange_over_gloo(device: str) -> None:
    """NCCL refuses two ranks on one GPU."""
    store = HashStore()
    gloo = LinkTransport(None)
    patience = timedelta(seconds=1)
    with ThreadPoolExecutor(2) as ranks:
        calls = [
            ranks.submit(transport_of, torch.device(device), gloo, store, rank, 2, patience)
            for rank in range(2)
        ]
    assert [call.result() for call in calls] == [gloo, gloo]


def test_operations_over_nccl_are_begun_together() -> None:
    """Otherwise two ranks that send to each other would wait for each other."""
    group = Recorded()
    wire = NcclTransport(group, torch.device("cuda:0"))
    tensor = torch.zeros(1)
    operations = [Operation(1, tensor, is_send=False), Operation(2, tensor, is_send=True)]
    assert wire.begin(operations, 7, pytest.fail) == [(1, "end")]  # type: ignore[arg-type]
    assert group.calls == ["start", "recv 1", "send 2", "end"]
    assert wire.carried(tensor) is tensor
    assert wire.begin([], 8, pytest.fail) == []  # type: ignore[arg-type]


class Recorded:
    """A group of NCCL that does nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def send(self, tensors: Any, rank: int, tag: int) -> None:
        self.calls.append(f"send {rank}")

    def recv(self, tensors: Any, rank: int, tag: int) -> None:
        self.calls.append(f"recv {rank}")

    def _start_coalescing(self, device: Any) -> None:
        self.calls.append("start")

    def _end_coalescing(self, device: Any) -> str:
        self.calls.append("end")
        return "end"
