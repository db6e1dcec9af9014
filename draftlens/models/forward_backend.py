"""The base class of compiled passes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

EndsChain = Callable[[Tensor, Tensor], bool]
"""Whether a chain ends with the tokens ``[B, 1]`` that were chosen from logits ``[B, 1, V]``."""


class Passes:
    """Computes passes of a model other than by calling its modules. This base class leaves every
    pass to the modules.

    Attributes:
        engine: what made it (`passes.base.PassEngine`); None if nothing did.
        quantization: of its weights, which the model does not have; empty for the model's own.
        rounding: what of a target these passes round, in words for `Result.approximate`; the answer
            is that of the rounded model.
        most_nodes: draft tokens of a tree that a pass can verify in a row; None for any number.
        cache_step: by how many slots a row caches grow, where passes read empty slots, too; 0 for
            `kv_cache.GROWTH`.
    """

    engine: Any = None
    most_nodes: int | None = None
    cache_step: int = 0
    quantization: str = ""
    rounding: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Names the backend in measured costs; empty for the modules."""
        return ""

    def check_modules(self, name: str) -> None:
        """The modules are about to compute a pass of the model of this name. Passes that round
        raise `UnsupportedModelError`, since modules round nothing."""

    def rounded_model(self, model: Any) -> Any:
        """A model whose stock `generate` has the answers of these passes: `model`, or a copy with
        rounded weights; None if there is none."""
        return model

    def of_pixels(self, model: Any) -> AbstractContextManager[Any] | None:
        """A context in which the model's vision tower runs; None for that of `models.products`."""
        return None

    def prepare(self) -> None:
        """Prepare what a request of one row needs, though it may take minutes."""

    def begin(self) -> None:
        """A call begins: the model may have changed since the last one."""

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """Logits of a forward, ``[B, T, V]``, or None to let the modules compute it, as
        `Backbone.forward`. Writes keys and values after each row's length; keeps the lengths."""
        return None

    def read(self, prompt: Prompt, cache: KVCache, num_logits: int) -> Tensor | None:
        """Append a prompt, or a part of one, to the cache: logits ``[B, K, V]`` after each row's
        last K tokens, or None, with nothing read, to let the modules compute them, as for prompts
        with tensors that it does not know (`Prompt.further`, `Prompt.ahead`). Keys and values are
        written after each row's length; the lengths stay as they are."""
        return None

    def run_chain(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        count: int,
        vocab_size: int,
        ends: EndsChain | None = None,
    ) -> Tensor | None:
        """As `Backbone.greedy_chain`; the lengths of the cache stay as they are."""
        return None


EAGER = Passes()
