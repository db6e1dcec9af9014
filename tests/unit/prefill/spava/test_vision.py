"""Pixels encoded in shares: the features of the model's own encoding, for every family."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import target
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.prompt import Encoded
from draftlens.prefill.spava.hosts import ALONE, Alone, set_hosts
from draftlens.prefill.spava.vision import encode_by_ranks

KINDS = [
    (family, kind, size)
    for family in FAMILIES
    for kind, size in (("images", 2), ("video", 3), ("mixed", 2))
    if kind in family.kinds
]


class Follower(Alone):
    """A rank above 0, whose messages to rank 0 are kept."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.sent: list[Tensor] = []

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Any:
        self.sent.append(local)
        return SimpleNamespace(wait=list)


class InTurn(Alone):
    """Rank 0 of a group whose other ranks run their jobs in this process, one after the other."""

    def __init__(self, model: Any, size: int) -> None:
        super().__init__()
        self.size = size
        self.jobs: list[Any] = []
        self._backbone = SimpleNamespace(model=model, device=torch.device("cpu"))
        self._followers: list[Follower] = []

    def give(self, jobs: Sequence[Any]) -> None:
        self.jobs += jobs
        self._followers = [Follower(rank) for rank in range(1, self.size)]
        for job, follower in zip(jobs, self._followers, strict=True):
            job.run(self._backbone, follower)

    def encode(self, model: Any, inputs: Mapping[str, Any]) -> Encoded:
        return encode_by_ranks(model, self, inputs)

    def gather(self, local: Tensor, sizes: Sequence[int] = ()) -> Any:
        arrived = [local, *(follower.sent.pop(0) for follower in self._followers)]
        assert [len(message) for message in arrived] == list(sizes)
        return SimpleNamespace(wait=lambda: arrived)


@contextmanager
def by_hosts(family: Family, size: int) -> Iterator[tuple[Backbone, InTurn]]:
    backbone = Backbone(target(family))
    hosts = InTurn(backbone.model, size)
    set_hosts(backbone, hosts)
    yield backbone, hosts
    set_hosts(backbone, ALONE)


@pytest.mark.parametrize(
    ("family", "kind", "size"), KINDS, ids=["-".join(map(str, case)) for case in KINDS]
)
def test_the_prompt_is_that_of_one_host(family: Family, kind: str, size: int) -> None:
    """Embeddings, deepstack features, cells: everything that the language model and pruners get."""
    given = inputs(family, kind)
    own = Backbone(target(family))
    expected = own.encode(own.prepare(given, max_new_tokens=1))
    with by_hosts(family, size) as (backbone, hosts):
        prepared = backbone.prepare(given, max_new_tokens=1)
        prompt = backbone.encode(prepared)
    assert prepared.notes == ()
    assert hosts.jobs
    check_close(prompt.embeds, expected.embeds)
    assert torch.equal(prompt.position_ids, expected.position_ids)
    assert torch.equal(prompt.cells, expected.cells)
    assert prompt.layout.num_frames == expected.layout.num_frames
    assert prompt.extra.keys() == expected.extra.keys()
    features = prompt.extra.get("deepstack_visual_embeds") or []
    for ours, theirs in zip(
        features, expected.extra.get("deepstack_visual_embeds") or [], strict=True
    ):
        check_close(ours, theirs)


def test_hosts_encode_equal_shares_of_the_frames() -> None:
    """Host h of H encodes floor(F/H) + [h < F mod H] of F frames (equation 6)."""
    with by_hosts(FAMILIES[2], 3) as (backbone, hosts):
        backbone.prepare(inputs(FAMILIES[2], "video"), max_new_tokens=1)
    frames = [job.arguments["pixel_values_videos"].shape[1] for job in hosts.jobs]
    assert frames == [1, 1]  # and two on rank 0
    assert [job.dropped for job in hosts.jobs] == [1, 0]


def test_what_cannot_be_divided_is_encoded_by_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same features, and a note says so."""
    given = inputs(FAMILIES[0], "image", rows=(0,))
    with by_hosts(FAMILIES[0], 2) as (backbone, hosts):
        alone = backbone.prepare(given, max_new_tokens=1)
        monkeypatch.setattr("draftlens.models.pixel_split.MAKERS", {})
        unknown = backbone.prepare(inputs(FAMILIES[0], "image"), max_new_tokens=1)
    assert hosts.jobs == []
    assert alone.notes == ("pictures were encoded by one host: there is only one to encode",)
    assert unknown.notes == ("pictures were encoded by one host: they cannot be divided exactly",)


def check_close(ours: Tensor, theirs: Tensor) -> None:
    """Equal but for products of matrices of other sizes, which round differently."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 2e-6 * theirs.abs().max()
