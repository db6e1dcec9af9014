"""Plain decoding by the steps of stock `generate`, for models that draft tokens cannot use
(`Backbone.plain_only`).

Each call keeps the arguments and the cache that `generate` has prepared, and its passes are those
of the loop of `generate`: they go through the whole model, so that windows, recurrent states, masks
and what follows the output head are the model's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftlens.core.sequence import replace_by_last
from draftlens.models.forward_backend import Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt
from draftlens.models.support import cache_in, with_cache, without_cache


@dataclass(frozen=True)
class StockPrompt(Prompt):
    """A call of `generate` that has not been read; it has no embeddings."""

    prepared: Prepared | None = None


def stock_prompt(prepared: Prepared, visual: Tensor) -> StockPrompt:
    """`visual` as in `Prompt`, but padded on the left as the call is."""
    ids = prepared.input_ids
    mask = prepared.model_kwargs.get("attention_mask")
    lengths = torch.full((len(ids),), ids.shape[1]) if mask is None else (mask != 0).sum(-1)
    return StockPrompt(
        embeds=torch.empty(*ids.shape, 0, device=ids.device),
        position_ids=torch.arange(ids.shape[1], device=ids.device).expand(*ids.shape),
        lengths=lengths.tolist(),
        next_position=lengths[:, None].to(ids.device),
        visual=visual,
        extra={},
        prepared=prepared,
    )


class StockRows(KVCache):
    """The rows of several calls, each of which has its own cache of transformers.

    The rows of a call advance together, so a row that has left is forwarded until its whole call
    has, as `generate` does. Nothing can be removed but whole rows.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(0, rows, 0)
        self.rows: list[tuple[Loop, int]] = []

    @property
    def nbytes(self) -> int:
        loops = {id(loop): loop for loop, _ in self.rows}
        return sum(_num_bytes(cache_in(loop.arguments)) for loop in loops.values())

    def _empty_rows(self, count: int) -> StockRows:
        return StockRows(count)

    def shares(self, other: KVCache) -> bool:
        return True

    def join(self, rows: KVCache) -> None:
        assert isinstance(rows, StockRows)
        super().join(rows)
        self.rows += rows.rows

    def remove(self, row: int) -> None:
        super().remove(row)
        replace_by_last(self.rows, row)


class StockPasses(Passes):
    """The passes of a model as the loop of stock `generate` runs them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @torch.no_grad()
    def read(self, prompt: Prompt, cache: KVCache, num_logits: int) -> Tensor:
        assert isinstance(prompt, StockPrompt)
        assert isinstance(cache, StockRows)
        assert prompt.prepared is not None
        logits = []
        for ids, arguments in _parts(prompt.prepared):
            loop = Loop(prompt.prepared.model, ids, arguments)
            logits.append(loop.read().to(self._device))
            cache.rows += [(loop, row) for row in range(len(ids))]
        return torch.cat(logits)

    @torch.no_grad()
    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        assert isinstance(cache, StockRows)
        places: dict[int, list[int]] = {}
        for place, (loop, _) in enumerate(cache.rows):
            places.setdefault(id(loop), []).append(place)
        logits: list[Tensor] = [tokens] * len(tokens)
        for of_loop in places.values():
            loop = cache.rows[of_loop[0]][0]
            rows = [cache.rows[place][1] for place in of_loop]
            found = loop.advance(rows, tokens[of_loop]).to(self._device)
            for place, row in zip(of_loop, rows, strict=True):
                logits[place] = found[row]
        return torch.stack(logits)


class Loop:
    """What the loop of `generate` keeps of some rows from pass to pass."""

    def __init__(self, model: Any, ids: Tensor, arguments: dict[str, Any]) -> None:
        self._model = model
        self._ids = ids
        self.arguments = arguments

    def read(self) -> Tensor:
        """Read the prompt; logits ``[B, 1, V]`` after its last token."""
        return self._pass(is_first_iteration=True)

    def advance(self, rows: Sequence[int], tokens: Tensor) -> Tensor:
        """Append the tokens ``[n, 1]`` of `rows`, and to other rows their last token again; logits
        ``[B, 1, V]``."""
        last = self._ids[:, -1:].clone()
        last[list(rows)] = tokens.to(last.device)
        self._ids = torch.cat([self._ids, last], 1)
        one = {"next_sequence_length": 1} if self.arguments.get("use_cache", True) else {}
        return self._pass(**one)

    def _pass(self, **kind: Any) -> Tensor:
        model = self._model
        inputs = model.prepare_inputs_for_generation(self._ids, **kind, **self.arguments)
        output = model(**inputs, return_dict=True)
        # Families override this method for what they carry from pass to pass.
        self.arguments = model._update_model_kwargs_for_generation(
            output, self.arguments, is_encoder_decoder=False
        )
        return output.logits[:, -1:].clone()  # type: ignore[no-any-return]


def _parts(prepared: Prepared) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    """The token ids and arguments of the passes of a call: the rows of a padded text without their
    padding, else all rows together, since it is not known which pixels belong to which row."""
    ids, arguments = prepared.input_ids, without_cache(prepared.model_kwargs)
    cache = cache_in(prepared.model_kwargs)
    mask = arguments.get("attention_mask")
    lengths = [] if mask is None else (mask != 0).sum(-1).tolist()
    is_text = all(_is_per_token(value, ids) for value in arguments.values())
    if not is_text or all(length == ids.shape[1] for length in lengths):
        yield ids, {**arguments, **_empty(cache)}
        return
    for row, length in enumerate(lengths):
        own = {name: _of_row(value, row, length) for name, value in arguments.items()}
        yield _of_row(ids, row, length), {**own, **_empty(cache)}


def _empty(cache: Any) -> dict[str, Any]:
    """The argument of a cache like this one, which several samples of a call must not share."""
    return {} if cache is None else with_cache(deepcopy(cache))


def _is_per_token(value: Any, ids: Tensor) -> bool:
    """Whether a value has one entry per token ``[..., B, L]``, or is the same for all."""
    if isinstance(value, Tensor):
        return value.shape[-2:] == ids.shape
    return not isinstance(value, (list, tuple, Mapping)) or not value


def _of_row(value: Any, row: int, length: int) -> Any:
    return value[..., row : row + 1, -length:] if isinstance(value, Tensor) else value


def _num_bytes(cache: Any) -> int:
    return sum(_tensor_bytes(vars(layer).values()) for layer in getattr(cache, "layers", ()))


def _tensor_bytes(values: Iterable[Any]) -> int:
    num_bytes = 0
    for value in values:
        if isinstance(value, Tensor):
            num_bytes += value.nbytes
        elif isinstance(value, Mapping):
            num_bytes += _tensor_bytes(value.values())
    return num_bytes
