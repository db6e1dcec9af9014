"""The seam between decode forwards and compiled passes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftlens.models.kv_cache import KVCache


class Passes(Protocol):
    """Computes decode forwards of a model in another way than by calling its modules.

    Attributes:
        label: names what computes the forwards, for the conditions under which costs were measured;
            empty if the modules do.
    """

    @property
    def label(self) -> str:
        """See the class."""
        ...

    def begin(self) -> None:
        """A call begins: the model may have changed since the last one."""
        ...

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """Logits of a forward, ``[B, T, V]``, or None if the modules are to compute it.

        Args:
            tokens, position_ids, mask: as for `Backbone.forward`.
            cache: receives keys and values of the tokens behind each row's length. Its lengths stay
                as they are.
        """
        ...

    def run_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        """See `Backbone.greedy_chain`.

        Args:
            tokens, position_ids, cache, count, vocab_size: as for `Backbone.greedy_chain`. The
                lengths of the cache stay as they are.
        """
        ...


class EagerPasses:
    """Leaves every forward to the model's modules."""

    label = ""

    def begin(self) -> None:
        """See `Passes.begin`."""

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        return None

    def run_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        return None


EAGER = EagerPasses()
