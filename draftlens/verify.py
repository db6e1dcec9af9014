"""Stock `generate`, the reference of every measurement: run, timed and compared token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from draftlens.core.forms import FormProcessor
from draftlens.models.adapter import Backbone
from draftlens.models.prompt import left_padded


@dataclass(frozen=True)
class StockRun:
    """One call of stock `generate`.

    Args:
        tokens: per row the new token ids, trimmed as `Result.tokens` are.
        e2e: seconds of the call.
        ttft: seconds to the first token; with several rows, which stock `generate` does not stream,
            those of the whole call.
        logits: raw logits of each step, float ``[steps, B, V]``, if requested.
    """

    tokens: list[list[int]]
    e2e: float
    ttft: float
    logits: Tensor | None = None

    @property
    def decode(self) -> float:
        """Seconds from the first token to the last."""
        return self.e2e - self.ttft


@dataclass(frozen=True)
class Divergence:
    """The first token in which two answers differ.

    Args:
        row, index: position of the token.
        stock, ours: the ids; None where an answer had already ended.
        margin: stock's logit of its own token minus its logit of ours, small for a near tie; None
            without logits or where an answer had already ended.
    """

    row: int
    index: int
    stock: int | None
    ours: int | None
    margin: float | None


class _TokenTimer(BaseStreamer):  # type: ignore[misc]
    """A streamer that records the time of each new token and calls `on_token` with its id."""

    def __init__(self, on_token: Callable[[int], None] | None) -> None:
        self.on_token = on_token
        self.times: list[float] = []
        self.has_prompt = False

    def put(self, value: Tensor) -> None:
        if not self.has_prompt:  # `generate` sends the prompt first
            self.has_prompt = True
            return
        self.times.append(time.perf_counter())
        if self.on_token is not None:
            for token in value.flatten().tolist():
                self.on_token(token)

    def end(self) -> None:
        """Nothing to flush: no token is held back."""


def run_stock(
    target: Backbone,
    inputs: Mapping[str, Any],
    *,
    on_token: Callable[[int], None] | None = None,
    keep_logits: bool = False,
    assistant: Any = None,
    **options: Any,
) -> StockRun:
    """Call and time the unmodified library's ``model.generate``.

    Args:
        on_token: called with every new id; only with a single row.
        keep_logits: whether to return `StockRun.logits`.
        assistant: a draft model for stock assisted generation.
        options: as for `draftlens.generate`.
    """
    prompt = left_padded(_moved(inputs, target.device))
    rows, length = inputs["input_ids"].shape
    timer = _TokenTimer(on_token)
    settings = dict(options)  # None is a value: it overrides the model's generation config
    if assistant is not None:
        settings["assistant_model"] = assistant
    if keep_logits:
        settings |= {"return_dict_in_generate": True, "output_logits": True}
    if rows == 1:  # stock `generate` streams one row only
        settings["streamer"] = timer
    eos_ids = _eos_ids(target.model, options)
    if processors := settings.get("logits_processor"):
        settings["logits_processor"] = [
            each.bound(length, eos_ids) if isinstance(each, FormProcessor) else each
            for each in processors
        ]
    start = time.perf_counter()
    output = target.model.generate(**prompt, **settings)
    end = time.perf_counter()
    ttft = (timer.times[0] if timer.times else end) - start
    sequences = output.sequences if keep_logits else output
    logits = torch.stack(output.logits) if keep_logits else None
    tokens = [trim(row, eos_ids) for row in sequences[:, length:].tolist()]
    return StockRun(tokens, end - start, ttft, logits)


@contextmanager
def assistant_settings(model: Any, settings: Mapping[str, Any]) -> Iterator[None]:
    """Set fields of a draft model's generation config inside the block; stock assisted generation
    reads them there."""
    config = model.generation_config
    previous = {name: getattr(config, name) for name in settings}
    config.update(**settings)
    try:
        yield
    finally:
        config.update(**previous)


def trim(row: list[int], eos: frozenset[int]) -> list[int]:
    """A row of `generate`'s output up to and including its first end-of-sequence id."""
    for index, token in enumerate(row):
        if token in eos:
            return row[: index + 1]
    return row


def first_divergence(stock: StockRun, ours: list[list[int]]) -> Divergence | None:
    """The first token that differs, or None if the answers are identical."""
    for row, (stock_ids, our_ids) in enumerate(zip(stock.tokens, ours, strict=True)):
        if stock_ids != our_ids:
            return _divergence(stock, row, stock_ids, our_ids)
    return None


def _moved(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    moved = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            moved[name] = value.to(device)
    return moved


def _divergence(
    stock: StockRun, row: int, stock_ids: Sequence[int], our_ids: Sequence[int]
) -> Divergence:
    shared = min(len(stock_ids), len(our_ids))
    index = 0
    while index < shared and stock_ids[index] == our_ids[index]:
        index += 1
    if index == shared:  # one of the answers ended
        stock_id = stock_ids[index] if index < len(stock_ids) else None
        our_id = our_ids[index] if index < len(our_ids) else None
        return Divergence(row, index, stock_id, our_id, None)
    margin = None
    if stock.logits is not None:
        step = stock.logits[index, row]
        margin = float(step[stock_ids[index]] - step[our_ids[index]])
    return Divergence(row, index, stock_ids[index], our_ids[index], margin)


def _eos_ids(model: Any, options: Mapping[str, Any]) -> frozenset[int]:
    if "eos_token_id" in options:
        ids = options["eos_token_id"]
    else:
        ids = getattr(options.get("generation_config"), "eos_token_id", None)
        if ids is None:
            ids = model.generation_config.eos_token_id
    if ids is None:
        return frozenset()
    return frozenset([ids]) if isinstance(ids, int) else frozenset(ids)
