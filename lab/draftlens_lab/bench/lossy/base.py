"""The seam of lossy peers: which visual tokens of the target are dropped, where and by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftlens.core.errors import ConfigError
from draftlens.core.options import Registry
from draftlens.models.prompt import Prompt

DROPPINGS = Registry(
    "peer",
    {
        "fastv": "draftlens_lab.bench.lossy.fastv:FastV",
        "pdrop": "draftlens_lab.bench.lossy.pdrop:PDrop",
        "sparsevlm": "draftlens_lab.bench.lossy.sparsevlm:SparseVLM",
        "dycoke-target": "draftlens_lab.bench.lossy.dycoke:DyCokeTarget",
    },
)
"""Lossy peers by name; the fields of a class are its options."""


@dataclass(frozen=True)
class Recall:
    """Keys and values that decoding reads, chosen again while the answer grows (DyCoke, stage 2).

    Args:
        layer: the layer whose attention chooses, counted from 1; the layers after it read the
            chosen visual tokens only.
        prune_ratio: share of the visual tokens that these layers do not read.
        similarity: the choice is kept as long as the attention of consecutive steps has at least
            this cosine.
    """

    layer: int
    prune_ratio: float
    similarity: float

    def __post_init__(self) -> None:
        check_layer("layer", self.layer)
        check_share("prune_ratio", self.prune_ratio)
        check_share("similarity", self.similarity)


class Dropping(Protocol):
    """A way of dropping visual tokens from a target's prompt of one row.

    Implementations are frozen dataclasses with their options as fields. They inherit from this
    class what they do not change.
    """

    @property
    def recall(self) -> Recall | None:
        """How decoding chooses among the cached visual tokens; None if it reads all."""
        return None

    def shorten(self, prompt: Prompt) -> Prompt:
        """The prompt that enters the first layer: by default unchanged."""
        return prompt

    def layers(self, depth: int) -> tuple[int, ...]:
        """The layers after which tokens are dropped, counted from 1, increasing."""
        return ()

    def readers(self, prompt: Prompt) -> Tensor:
        """The text tokens whose attention ranks visual tokens, as indices into the prompt, int64
        ``[R]``: by default the last token."""
        return torch.tensor([prompt.lengths[0] - 1])

    def keep(self, attention: Tensor) -> Tensor:
        """Indices of the visual tokens that stay, int64 ``[K]``, increasing: by default all.

        Args:
            attention: of the readers to the n visual tokens that are left, in the layer after
                which tokens are dropped, the mean over heads, float32 ``[R, n]``.
        """
        return torch.arange(attention.shape[1], device=attention.device)


def check_share(name: str, value: float) -> None:
    """Refuse a share that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is a share between 0 and 1, not {value!r}")


def check_layer(name: str, value: int) -> None:
    """Refuse what is no number of a layer."""
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is the number of a layer, from 1, not {value!r}")


def check_layers(value: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The numbers of some layers as a tuple; None stays None."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"layers are a list of numbers, not {value!r}")
    layers = tuple(value)
    for layer in layers:
        check_layer("each of layers", layer)
    if list(layers) != sorted(set(layers)):
        raise ConfigError(f"layers must increase, not {list(layers)}")
    return layers


def at_shares(depth: int, shares: tuple[float, ...]) -> tuple[int, ...]:
    """The layers at some shares of the depth, without repetitions and without the last layer.

    A model that is too shallow for all shares has fewer of them.
    """
    layers = {max(1, round(depth * share)) for share in shares}
    return tuple(sorted(layer for layer in layers if layer < depth))
