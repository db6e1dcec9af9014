"""The protocol between decode forwards and compiled passes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftlens.models.kv_cache import KVCache


class Passes(Protocol):
    """Computes decode forwards of a model other than by calling its modules. `label` names the
    backend in measured costs; empty for the modules."""

    @property
    def label(self) -> str: ...

    def begin(self) -> None:
        """A call begins: the model may have changed since the last one."""
        ...

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """Logits of a forward, ``[B, T, V]``, or None to let the modules compute it, as
        `Backbone.forward`. Writes keys and values after each row's length; keeps the lengths."""
        ...

    def run_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        """As `Backbone.greedy_chain`; the lengths of the cache stay as they are."""
        ...


class EagerPasses:
    """Leaves every forward to the model's modules."""

    label = ""

    def begin(self) -> None: ...

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        return None

    def run_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        return None


EAGER = EagerPasses()
