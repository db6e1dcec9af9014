"""One attention function, registered with transformers, that a pass can direct elsewhere.

A forward that is given an `AttentionPass` under the keyword `ARGUMENT` computes its attention by
it in every layer; any other forward computes transformers' `sdpa`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "draftlens"
ARGUMENT = "draftlens_attention"
"""The keyword argument of a decoder's forward that carries the `AttentionPass`."""


class AttentionPass(Protocol):
    """Attention of one forward, called once per layer in the order of the layers."""

    def attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """The output and weights of one layer, with the signature of transformers' attention.

        Args:
            module: the layer's attention module.
            query: ``[B, H, T, D]``.
            key, value: ``[B, H', K, D]`` with H' dividing H (grouped queries).
            mask: as transformers prepares it for `sdpa`.
            kwargs: such as `scaling`, `dropout` and `is_causal`.
        """
        ...


def _dispatch(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Any:
    attention: AttentionPass | None = kwargs.pop(ARGUMENT, None)
    if attention is None:
        return sdpa_attention_forward(module, query, key, value, mask, **kwargs)
    return attention.attend(module, query, key, value, mask, **kwargs)


AttentionInterface.register(NAME, _dispatch)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def dispatching(decoder: Any) -> Iterator[None]:
    """Let a language model's forwards be directed by `ARGUMENT` while the context lasts."""
    before = decoder.config._attn_implementation
    decoder.config._attn_implementation = NAME
    try:
        yield
    finally:
        decoder.config._attn_implementation = before
