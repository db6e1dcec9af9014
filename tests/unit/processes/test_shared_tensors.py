"""Objects with tensors between processes."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch
from families import FAMILIES, inputs
from torch import Tensor

from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.shared_model import ModelParts, share
from draftlens.processes.shared_tensors import pack, unpack


@dataclass
class Thing:
    name: str
    tensors: list[Tensor]


def sample() -> Thing:
    large = torch.arange(10_000, dtype=torch.float64).view(100, 100)
    return Thing("a", [large, large.t(), torch.ones(3), large, torch.zeros(0), large.bfloat16()])


def test_a_parcel_keeps_values_and_identities() -> None:
    thing = sample()
    parcel = pack(thing)
    assert parcel.file is not None
    assert len(parcel.pickled) < 5_000
    opened = unpack(parcel)
    for tensor, expected in zip(opened.tensors, thing.tensors, strict=True):
        assert tensor.dtype == expected.dtype
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0)
    assert opened.tensors[0] is opened.tensors[3]


def test_small_objects_need_no_file() -> None:
    assert pack({"row": 1, "ids": torch.ones(10)}).file is None


def test_what_cannot_be_pickled_leaves_nothing_open() -> None:
    before = psutil.Process().num_fds()
    with pytest.raises((TypeError, AttributeError)):
        pack([torch.ones(100_000), lambda: None])
    assert psutil.Process().num_fds() == before


def pair() -> tuple[Channel, Channel]:
    """Both ends of a channel."""
    here, there = Channel.pair()
    return here, Channel(there)


def test_messages_arrive_in_order_with_their_tensors() -> None:
    here, there = pair()
    before = psutil.Process().num_fds()
    messages: list[Any] = ["first", sample(), b"x" * 300_000, list(range(50_000)), "last"]
    received = []

    def read() -> None:
        for _ in messages:
            received.append(there.receive(10.0))

    thread = threading.Thread(target=read)
    thread.start()
    for message in messages:
        here.send(message)
    here.flush(None)
    thread.join()
    assert received[0] == "first"
    torch.testing.assert_close(received[1].tensors[1], messages[1].tensors[1], rtol=0, atol=0)
    assert received[2:] == messages[2:]
    received.clear()  # a mapping holds a descriptor of its file
    assert psutil.Process().num_fds() == before
    here.close()
    there.close()


def test_a_long_message_with_tensors_has_two_files() -> None:
    here, there = pair()
    here.send([b"x" * 100_000, torch.ones(10_000)])
    pickled, tensor = there.receive(1.0)
    assert len(pickled) == 100_000
    assert float(tensor.sum()) == 10_000
    here.close()
    there.close()


def test_sending_never_blocks_and_loses_nothing() -> None:
    here, there = pair()
    for number in range(5_000):
        here.send((number, b"y" * 200))
    for number in range(5_000):
        if number % 100 == 0:
            here.flush()
        assert there.receive(1.0)[0] == number
    with pytest.raises(TimeoutError):
        there.receive(0.0)
    here.close()
    there.close()


def test_a_side_that_has_gone() -> None:
    here, there = pair()
    there.close()
    with pytest.raises(ClosedError):
        here.receive(1.0)
    with pytest.raises(ClosedError):
        here.send("nobody")
    here.close()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@torch.inference_mode()
def test_a_shared_model_computes_the_same_with_the_same_memory(family: Any) -> None:
    model = family.build()
    given = inputs(family, family.richest)
    expected = model(**given).logits
    parcel = share(model)
    assert torch.equal(model(**given).logits, expected)
    parts: ModelParts = unpack(parcel)
    other = parts.build()
    assert torch.equal(other(**given).logits, expected)
    weights = dict(other.named_parameters())
    for name, weight in model.named_parameters():
        weights[name].data.view(-1)[0] = 3.0
        assert float(weight.view(-1)[0]) == 3.0


def test_a_changed_model_is_refused() -> None:
    model = FAMILIES[0].build()
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match="builds another structure"):
        share(model)


def test_files_do_not_outlive_their_tensors() -> None:
    before = psutil.Process().num_fds()
    parcel = pack(sample())
    opened = unpack(parcel)
    assert psutil.Process().num_fds() <= before + 1  # the mapping may hold one
    del opened
    assert psutil.Process().num_fds() == before
    assert not [name for name in os.listdir("/dev/shm") if "draftlens" in name]


def test_a_message_that_is_cut_off() -> None:
    """The other side dies in the middle of a message, with a file and without."""
    for message in (sample(), b"x" * 60_000):
        before = psutil.Process().num_fds()
        here, there = Channel.pair()
        whole, theirs = Channel.pair()
        whole.send(message)
        received, files, _, _ = socket.recv_fds(theirs, 1 << 16, 8)
        socket.send_fds(there, [received[:-10]], files)
        for file in files:
            os.close(file)
        with pytest.raises(TimeoutError):
            here.receive(0.01)
        there.close()
        with pytest.raises(ClosedError):
            here.receive(1.0)
        for end in (here, whole, theirs):
            end.close()
        assert psutil.Process().num_fds() == before


def test_messages_that_nobody_takes_leave_nothing_open() -> None:
    before = psutil.Process().num_fds()
    here, there = pair()
    for _ in range(300):  # more than the socket holds
        here.send([sample(), b"y" * 1_000])
    there.close()
    with pytest.raises(ClosedError):
        here.send(sample())
    here.close()
    assert psutil.Process().num_fds() == before
    for use in (lambda: here.send(sample()), lambda: here.receive(0.1), lambda: here.wait(0.1)):
        with pytest.raises(ClosedError):
            use()
    assert psutil.Process().num_fds() == before


def test_what_a_main_script_defines_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(unpack(pack(sample())), Thing)
    monkeypatch.setattr(Thing, "__module__", "__main__")
    for value in (sample(), [Thing]):
        with pytest.raises(pickle.PicklingError, match="Thing is defined in the main script"):
            pack(value)
