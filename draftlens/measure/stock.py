"""Stock `generate` beside ours: the reference of every claim, timed and compared token by token."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from draftlens.models.backbone import Backbone
from draftlens.models.prompt import left_padded


@dataclass(frozen=True)
class StockRun:
    """One call of stock `generate`.

    Args:
        tokens: per row the new token ids, trimmed as `Result.tokens` are.
        e2e: seconds of the call.
        ttft: seconds to the first token; with several rows, which stock `generate` does not stream,
            those of the call.
        logits: raw logits of each step, float ``[steps, B, V]``, if they were asked for.
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
    """Where two answers first differ.

    Args:
        row, index: which token.
        stock, ours: the ids; None where an answer had already ended.
        margin: stock's logit of its own token minus that of ours: how near the tie was.
    """

    row: int
    index: int
    stock: int | None
    ours: int | None
    margin: float | None


class _Watch(BaseStreamer):  # type: ignore[misc]
    """Notes when the first token came and hands all of them on."""

    def __init__(self, on_token: Callable[[int], None] | None) -> None:
        self.on_token, self.times, self.prompt_seen = on_token, list[float](), False

    def put(self, value: Tensor) -> None:
        if not self.prompt_seen:
            self.prompt_seen = True
            return
        self.times.append(time.perf_counter())
        if self.on_token:
            for token in value.flatten().tolist():
                self.on_token(token)

    def end(self) -> None:
        """Nothing to flush."""


def run_stock(
    target: Backbone,
    inputs: Mapping[str, Any],
    *,
    on_token: Callable[[int], None] | None = None,
    keep_logits: bool = False,
    assistant: Any = None,
    **options: Any,
) -> StockRun:
    """Call the unmodified library's ``model.generate``.

    Args:
        target: the model; its `generate` is called as any user would.
        inputs: the processor's.
        on_token: told every new id (with one row).
        keep_logits: whether `StockRun.logits` is wanted.
        assistant: a draft model for stock assisted generation.
        options: as for `draftlens.generate`.
    """
    moved = {
        key: value.to(target.device) if isinstance(value, Tensor) else value
        for key, value in inputs.items()
    }
    given = {name: value for name, value in options.items() if value is not None}
    if assistant is not None:
        given["assistant_model"] = assistant
    if keep_logits:
        given |= {"return_dict_in_generate": True, "output_logits": True}
    watch = _Watch(on_token)
    start = time.perf_counter()
    single = moved["input_ids"].shape[0] == 1  # stock generate streams one row only
    output = target.model.generate(
        **left_padded(moved), **given, streamer=watch if single else None
    )
    end = time.perf_counter()
    sequences = output.sequences if keep_logits else output
    length = moved["input_ids"].shape[1]
    tokens = [trim(row, _eos(target.model, options)) for row in sequences[:, length:].tolist()]
    logits = torch.stack(output.logits) if keep_logits else None
    return StockRun(tokens, end - start, (watch.times or [end])[0] - start, logits)


def trim(row: list[int], eos: frozenset[int]) -> list[int]:
    """A row of `generate`'s output up to and including its first end-of-sequence id."""
    end = next((index for index, token in enumerate(row) if token in eos), len(row) - 1)
    return row[: end + 1]


def first_divergence(stock: StockRun, ours: list[list[int]]) -> Divergence | None:
    """The first token that differs, or None if the answers are identical."""
    for row, (a, b) in enumerate(zip(stock.tokens, ours, strict=True)):
        if a == b:
            continue
        index = next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )
        theirs = a[index] if index < len(a) else None
        mine = b[index] if index < len(b) else None
        margin = None
        if stock.logits is not None and theirs is not None and mine is not None:
            step = stock.logits[index, row]
            margin = float(step[theirs] - step[mine])
        return Divergence(row, index, theirs, mine, margin)
    return None


def _eos(model: Any, options: Mapping[str, Any]) -> frozenset[int]:
    ids = options.get("eos_token_id")
    config = options.get("generation_config") or model.generation_config
    ids = config.eos_token_id if ids is None else ids
    return frozenset([] if ids is None else [ids] if isinstance(ids, int) else ids)
