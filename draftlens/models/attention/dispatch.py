"""An attention function, registered with transformers, that a pass can direct elsewhere.

A forward with an `AttentionPass` under the keyword `ARGUMENT` computes its attention by it; any
other computes transformers' `sdpa`, without copies for grouped queries (`models.attention.gqa`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from draftlens.models.attention import gqa
from draftlens.models.attention.switch import SharedSwitch

NAME = "draftlens"
ARGUMENT = "draftlens_attention"


AttentionPass = Callable[..., Any]
"""Attention of one forward, called once per layer in the order of the layers, with the signature of
transformers' attention: module, query ``[B, H, T, D]``, key and value ``[B, H', K, D]``, H'
dividing H, mask as for `sdpa`, and keywords. Returns output and weights of the layer."""


def _dispatch(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
) -> Any:
    attention: AttentionPass | None = kwargs.pop(ARGUMENT, None)
    if attention is None:
        return gqa.grouped_attention(module, query, key, value, mask, **kwargs)
    return attention(module, query, key, value, mask, **kwargs)


AttentionInterface.register(NAME, _dispatch)
AttentionMaskInterface.register(NAME, sdpa_mask)

_SWITCH = SharedSwitch(NAME)


@contextmanager
def dispatching(decoder: Any) -> Iterator[None]:
    """Let `ARGUMENT` direct a language model's forwards while the context lasts, and read the keys
    of a group of queries once. Several threads may be inside."""
    _SWITCH.enter(decoder.config)
    try:
        yield
    finally:
        _SWITCH.leave(decoder.config)
