"""Tensors over inherited sockets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch

from draftlens.prefill.spava.processes.sockets import SocketLinks, mesh

LONG = timedelta(seconds=60)
LARGE = 3 << 20
"""Elements of a tensor that no buffer of a socket takes."""


def exchange(links: SocketLinks, rank: int, size: int) -> list[torch.Tensor]:
    """Three exchanges of large tensors with all others, all begun before any is waited for."""
    works = []
    arrived = []
    for tag in range(3):
        own = torch.full((LARGE,), 10.0 * rank + tag)
        for other in range(size):
            if other != rank:
                arrived.append(torch.empty(LARGE))
                works.append(links.recv([arrived[-1]], other, tag))
                works.append(links.send([own], other, tag))
    for work in works:
        work.wait(LONG)
    return arrived


def test_large_tensors_cross_without_waiting_for_each_other() -> None:
    sockets = mesh(3)
    with ThreadPoolExecutor(3) as ranks:
        calls = [
            ranks.submit(exchange, SocketLinks(own), rank, 3) for rank, own in enumerate(sockets)
        ]
        for rank, call in enumerate(calls):
            others = [other for other in range(3) if other != rank]
            expected = [10.0 * other + tag for tag in range(3) for other in others]
            arrived = call.result(LONG.total_seconds())
            assert [float(tensor[0]) for tensor in arrived] == expected
            assert all((tensor == tensor[0]).all() for tensor in arrived)
    for own in sockets:
        SocketLinks(own).close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64, torch.bool])
def test_dtypes_that_numpy_does_not_know_travel_too(dtype: torch.dtype) -> None:
    here, there = (SocketLinks(own) for own in mesh(2))
    sent = torch.arange(6).to(dtype)
    with torch.inference_mode():
        here.send([sent.clone()], 1, 5).wait(LONG)
    arrived = torch.empty(6, dtype=dtype)
    there.recv([arrived], 0, 5).wait(LONG)
    assert torch.equal(arrived, sent)
    here.close()
    there.close()


def test_what_cannot_arrive_is_an_error() -> None:
    """Another rank that is late, that makes other exchanges, and one that has gone."""
    here, there = (SocketLinks(own) for own in mesh(2))
    late = there.recv([torch.empty(2)], 0, 1)
    with pytest.raises(RuntimeError, match="in time"):
        late.wait(timedelta(seconds=0.05))
    here.send([torch.ones(2)], 1, 2)
    with pytest.raises(RuntimeError, match="makes other exchanges"):
        late.wait(LONG)
    here.close()
    with pytest.raises(RuntimeError, match="has ended"):
        there.recv([torch.empty(2)], 0, 3).wait(LONG)
    with pytest.raises(RuntimeError, match="has ended"):
        there.send([torch.ones(2)], 0, 3)
    assert set(there.closed) == {0}
    there.close()
