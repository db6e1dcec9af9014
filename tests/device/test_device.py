"""The simulated devices refuse what CUDA refuses, wait where it waits, and keep the order of
streams."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.device import DeviceError, Simulation, StreamError, on_device, simulated

CPU = torch.device("cpu")


@pytest.fixture
def device() -> Iterator[Simulation]:
    with simulated() as simulation:
        yield simulation


def numbers(count: int = 3, device: str = "cuda") -> torch.Tensor:
    return torch.arange(count, device=device)


MISTAKES: dict[str, Callable[[], Any]] = {
    "a sum": lambda: numbers() + numbers(device="cpu"),
    "two devices": lambda: numbers() + numbers(device="cuda:1"),
    "a scalar of another device": lambda: numbers() + numbers(1, "cuda:1")[0],
    "a list": lambda: torch.cat([numbers(device="cpu"), numbers()]),
    "indices of a device": lambda: numbers(device="cpu")[numbers()],
    "values": lambda: numbers().index_put_((numbers(),), numbers(device="cpu")),
    "a mask": lambda: torch.where(numbers(device="cpu") > 1, numbers(), 0),
    "in place": lambda: numbers(device="cpu").add_(numbers()),
    "embeddings": lambda: nn.functional.embedding(
        numbers(device="cpu"), numbers().float()[:, None]
    ),
    "a product of integers": lambda: numbers()[:, None] @ numbers()[None],
    "noise": lambda: torch.ones(2, device="cuda").uniform_(generator=torch.Generator()),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cuda_refuses(device: Simulation, mistake: str) -> None:
    with pytest.raises(DeviceError):
        MISTAKES[mistake]()
    device.errors.clear()


def test_values_are_not_read_in_place(device: Simulation) -> None:
    with pytest.raises(TypeError, match="numpy"):
        numbers().numpy()


ALLOWED: dict[str, tuple[int, Callable[[], Any]]] = {
    "a scalar of the host": (0, lambda: numbers() + torch.tensor(1)),
    "views": (0, lambda: numbers(6).view(2, 3).transpose(0, 1)[0]),
    "a fill": (0, lambda: numbers().__setitem__(slice(1), 7)),
    "a filled mask": (0, lambda: numbers().__setitem__(numbers() > 1, 7)),
    "a copy from the other device": (0, lambda: numbers().to("cuda:1")),
    "an item": (1, lambda: numbers()[0].item()),
    "a truth value": (1, lambda: bool(numbers().any())),
    "a list of numbers": (1, lambda: numbers().tolist()),
    "a copy to the host": (1, lambda: numbers().cpu()),
    "an upload": (1, lambda: torch.tensor([1, 2], device="cuda")),
    "an upload that does not wait": (0, lambda: torch.ones(2).to("cuda", non_blocking=True)),
    "a new tensor": (1, lambda: numbers().new_tensor([1])),
    "indices of the host": (1, lambda: numbers()[torch.tensor([0, 1])]),
    "a mask as indices": (1, lambda: numbers()[numbers() > 1]),
    "places": (1, lambda: (numbers() > 1).nonzero()),
    "equality": (1, lambda: torch.equal(numbers(), numbers())),
    "scalars of a device": (2, lambda: torch.tensor([numbers()[0], 1], device="cuda")),
    "synchronize": (1, lambda: torch.cuda.synchronize()),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_waits(device: Simulation, name: str) -> None:
    """How often the host waits; each wait is named by a line of this file."""
    waits, action = ALLOWED[name]
    before = device.counts.copy()
    action()
    found = device.counts.since(before).waits
    assert found.total() == waits
    assert all("test_device.py" in line for line in found)


def test_launches_and_bytes(device: Simulation) -> None:
    values = torch.zeros(4, 8, device="cuda")
    device.counts.launches.clear()
    before = device.counts.copy()
    weight = values.t()[:, :2]
    values @ weight
    values[:0].clone()  # nothing to do
    with torch.inference_mode():
        nn.functional.linear(values, values)
    since = device.counts.since(before)
    assert since.launches == {"mm": 2}
    assert since.read_bytes == 4 * (4 * 8 + 8 * 2 + 2 * 4 * 8)
    assert since.written_bytes == 4 * (4 * 2 + 4 * 4)
    values.cpu()
    assert device.counts.transfers["cuda:0 to cpu"] == 128


def test_launches_of_modules_are_told_apart(device: Simulation) -> None:
    layer = on_device(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    states = torch.zeros(1, 4, device="cuda")
    before = device.counts.copy()
    layer(states).argmax()
    since = device.counts.since(before)
    assert since.launches == {"addmm": 1, "relu": 1, "argmax": 1}
    assert since.outside == {"argmax": 1}


def test_models_move_with_shared_weights(device: Simulation) -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    second.weight = first.weight
    both = nn.ModuleList([first, second]).to("cuda:1")
    assert first.weight is second.weight
    assert both[0].weight.device == torch.device("cuda:1")
    assert copy.deepcopy(both)[0].bias.device == torch.device("cuda:1")
    assert both[0](torch.ones(1, 2, device="cuda:1")).shape == (1, 2)


def test_memory(device: Simulation) -> None:
    before = torch.cuda.memory_allocated()
    values = torch.zeros(1000, device="cuda")
    view = values[:10]
    assert torch.cuda.memory_allocated() == before + 4000
    del values
    assert torch.cuda.memory_allocated() == before + 4000
    del view
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 4000
    assert torch.cuda.mem_get_info("cuda:1")[1] > 0


def test_pinned_memory(device: Simulation) -> None:
    pinned = torch.ones(2).pin_memory()
    assert pinned.is_pinned()
    assert not torch.ones(2).is_pinned()
    assert pinned.to("cuda", non_blocking=True).tolist() == [1, 1]


def test_a_copy_is_read_when_it_has_arrived(device: Simulation) -> None:
    late = numbers().to("cpu", non_blocking=True)
    with pytest.raises(StreamError, match="arrived"):
        late.tolist()
    with pytest.raises(StreamError, match="arrived"):
        late.sum()
    device.errors.clear()
    torch.cuda.current_stream().synchronize()
    assert late.tolist() == [0, 1, 2]
    assert late.sum() == 3


def test_a_stream_waits_for_what_it_reads(device: Simulation) -> None:
    other = torch.cuda.Stream()
    values = numbers()
    with torch.cuda.stream(other), pytest.raises(StreamError, match="reads what stream"):
        values + 1
    device.errors.clear()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        assert torch.cuda.current_stream() is other
        kept = values + 1
        event = other.record_event()
        more = values + 2
    assert not event.query()
    torch.cuda.current_stream().wait_event(event)
    kept + 1
    with pytest.raises(StreamError, match="reads what stream"):
        more + 1
    with pytest.raises(StreamError, match="writes what stream"):
        values.add_(1)
    device.errors.clear()
    event = torch.cuda.Event()
    event.record(other)
    event.synchronize()
    assert event.query()
    more + 1
    values.add_(1)
    torch.cuda.synchronize()  # before `kept` and `more` are freed


def test_what_is_freed_late_is_of_its_own_simulation() -> None:
    with simulated() as first:
        other = torch.cuda.Stream()
        values = numbers()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            values + 1
    with simulated() as second:
        before = torch.cuda.memory_allocated()
        del values
        assert torch.cuda.memory_allocated() == before
        assert not second.errors
    assert "memory of stream" in first.errors[0]


def test_memory_that_another_stream_still_uses(device: Simulation) -> None:
    other = torch.cuda.Stream()
    values = numbers()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        values + 1
    del values
    assert [error for error in device.errors if "is free while" in error]
    device.errors.clear()
    values = numbers()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        values + 1
    values.record_stream(other)
    del values
    assert not device.errors


def test_streams_of_two_devices_wait_for_a_copy(device: Simulation) -> None:
    there = numbers().to("cuda:1")
    assert (there + 1).tolist() == [1, 2, 3]
    assert device.counts.transfers["cuda:0 to cuda:1"] == 24


def test_a_thread_has_its_own_stream(device: Simulation) -> None:
    found: list[Any] = []
    stream = torch.cuda.Stream("cuda:1")

    def work() -> None:
        with torch.cuda.stream(stream):
            found.append(torch.cuda.current_stream("cuda:1"))
            found.append(torch.ones(2, device="cuda").device)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [stream, torch.device("cuda:1")]
    assert torch.cuda.current_stream("cuda:1") is not stream


def test_what_was_refused_is_reported_at_the_end() -> None:
    """Threads may swallow an exception."""
    with pytest.raises(AssertionError, match="two devices"), simulated():  # noqa: PT012
        thread = threading.Thread(target=_mistaken)
        thread.start()
        thread.join()


def _mistaken() -> None:
    with pytest.raises(DeviceError):
        MISTAKES["a sum"]()


def test_nothing_is_left_after_the_end() -> None:
    before = torch.cuda.Stream, nn.Module.__call__, torch.tensor, threading.Thread.run
    with simulated():
        assert torch.cuda.Stream is not before[0]
    assert before == (torch.cuda.Stream, nn.Module.__call__, torch.tensor, threading.Thread.run)
    assert torch.ones(2).device == CPU
