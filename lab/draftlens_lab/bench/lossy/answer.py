"""One greedy answer of a target after dropping visual tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.stats import Clock, Stats
from draftlens.models.adapter import Backbone
from draftlens.models.attention.dispatch import ARGUMENT, dispatching
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.support import with_cache
from draftlens_lab.bench.lossy.base import Dropping
from draftlens_lab.bench.lossy.greedy import greedy_choice, has_ended
from draftlens_lab.bench.lossy.prefill import Prefilled, prefill
from draftlens_lab.bench.lossy.recall import RecallingPass


@dataclass(frozen=True)
class LossyAnswer:
    """An answer that may differ from that of the model.

    Args:
        visual: visual tokens of the whole prompt, counted once for each layer.
        kept: visual tokens that the last step reads, over all layers. kept / visual is the average
            retention of ParallelVLM's Table 2.
        cache_bytes: bytes of keys and values, tokens that are kept aside included.
    """

    tokens: list[int]
    visual: int
    kept: int
    cache_bytes: int


def answer_lossily(
    backbone: Backbone,
    prepared: Prepared,
    prompt: Prompt,
    dropping: Dropping,
    clock: Clock | None = None,
    on_prefilled: Callable[[Prefilled], None] | None = None,
) -> LossyAnswer:
    """Answer greedily, as `generate` would if the dropped tokens did not exist.

    Args:
        clock: receives the times of prefill and decoding; a new one by default.
        on_prefilled: called with the prompt in its cache before decoding begins.
    """
    clock = clock or Clock(Stats())
    with clock.phase("target_prefill"):
        prefilled = prefill(backbone, prompt, dropping)
        if on_prefilled is not None:
            on_prefilled(prefilled)
        recaller = None
        if dropping.recall is not None:
            recaller = RecallingPass(dropping.recall, prefilled)
        history = prepared.input_ids
        logits = prefilled.logits
        token = greedy_choice(prepared, history, logits)
    clock.mark_first()
    tokens = [token]
    history = _longer(history, token)
    with clock.phase("verify"):
        while not has_ended(prepared, history, logits):
            logits = decode_step(backbone, prefilled, recaller, token, len(tokens) - 1)
            token = greedy_choice(prepared, history, logits)
            tokens.append(token)
            history = _longer(history, token)
    clock.mark_last()
    return _result(tokens, prompt, prefilled, recaller)


@torch.inference_mode()
def decode_step(
    backbone: Backbone,
    prefilled: Prefilled,
    recaller: RecallingPass | None,
    token: int,
    index: int,
) -> Tensor:
    """Logits after a token of the answer, ``[1, V]``.

    Args:
        recaller: chooses what is read; None if everything is.
    """
    device = backbone.device
    positions = prefilled.prompt.positions(torch.tensor([[index]], device=device))
    extra: dict[str, Any] = {}
    with ExitStack() as contexts:
        contexts.enter_context(backbone.alone())
        if recaller is not None:
            contexts.enter_context(dispatching(backbone.decoder))
            recaller.begin_step()
            extra[ARGUMENT] = recaller
        output = backbone.decoder(
            inputs_embeds=backbone.embed(torch.tensor([[token]], device=device)),
            attention_mask=None,  # one new token attends to all that a layer holds
            position_ids=positions,
            use_cache=True,
            **with_cache(prefilled.cache),
            **extra,
        )
        logits: Tensor = backbone.head(output.last_hidden_state[:, -1])
    return logits.to(device)


def _longer(history: Tensor, token: int) -> Tensor:
    return torch.cat([history, history.new_tensor([[token]])], 1)


def _result(
    tokens: list[int], prompt: Prompt, prefilled: Prefilled, recaller: RecallingPass | None
) -> LossyAnswer:
    is_visual = prefilled.prompt.visual[0]
    kept = sum(int(is_visual[layer.to(is_visual.device)].sum()) for layer in prefilled.kept)
    cache_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in prefilled.cache.layers)
    if recaller is not None:
        kept -= recaller.num_aside
        cache_bytes += recaller.nbytes_aside
    return LossyAnswer(
        tokens=tokens,
        visual=int(prompt.visual.sum()) * len(prefilled.kept),
        kept=kept,
        cache_bytes=cache_bytes,
    )
