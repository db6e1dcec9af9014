"""Models with recurrent or convolution states: a cache whose rows can be rolled back.

A layer of states keeps one state for all tokens so far, from which no token can be dropped. So the
states before each pass are kept, with what each layer read in a pass over several tokens. A row
that is rolled back takes the states before the pass, and the layers alone read again what stays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode
from transformers.cache_utils import Cache, LinearAttentionCacheLayerMixin

from draftlens.core.sequence import replace_by_last
from draftlens.models.kv_cache import (
    LAYERS_PER_BLOCK,
    KVCache,
    LayerBlock,
    LayerBuffers,
    LayerStates,
)
from draftlens.models.layer_states import StateLayer, Values, index_of, num_bytes, rows_of
from draftlens.models.model_state import PassLock
from draftlens.models.prompt import Prompt
from draftlens.models.prompt_cache import EndStates
from draftlens.models.support import CACHE_ARGUMENTS, cache_in

MOST_PASSES = 16
"""Passes whose states a cache keeps where the most tokens of a rollback are not known."""


Products = dict[int, Tensor | None]
"""Products ``[B, T, D]`` of a layer's inputs with its matrices, by the identity of the matrix; None
for a matrix that the layer uses twice."""

FEW = 3
"""Most tokens that a layer reads again one by one, which takes less time than all at once."""


class StateLayers:
    """The layers of a model that keep states.

    Args:
        decoder: the language model.
        kinds: the cache layer of transformers for each of its layers.

    Attributes:
        missing: why the layers cannot be driven; empty if they can.
    """

    def __init__(self, decoder: Any, kinds: Sequence[Any], lock: PassLock) -> None:
        self.num_states = {
            index: kind.number_of_states
            for index, kind in enumerate(kinds)
            if isinstance(kind, LinearAttentionCacheLayerMixin)
        }
        self.num_layers = len(kinds)
        self._decoder = decoder
        self._lock = lock
        modules = {index: _state_module(decoder, index) for index in self.num_states}
        self._modules = {index: module for index, module in modules.items() if module is not None}
        self._linears = {
            index: [each for each in module.modules() if type(each) is nn.Linear]
            for index, module in self._modules.items()
        }
        self._arguments = {index: _cache_argument(each) for index, each in self._modules.items()}
        self.missing = ""
        if len(modules) == len(kinds):
            self.missing = "none of its layers keeps keys and values, by which tokens are counted"
        if len(self._modules) < len(modules):
            index = next(index for index, module in modules.items() if module is None)
            self.missing = f"its layer {index} shows no module that keeps its states"

    def new_cache(
        self, num_layers: int, rows: int, capacity: int, grows: bool, layers_per_block: int
    ) -> KVCache:
        """Arguments as for `KVCache`."""
        return RecurrentCache(self, rows, capacity, grows, layers_per_block)

    def run(self, prompt: Prompt | None, **arguments: Any) -> Any:
        """Call the language model; arguments as for `Backbone._hidden`."""
        cache = cache_in(arguments)
        width = arguments["inputs_embeds"].shape[1]
        with cache.appending(width, None if prompt is None else prompt.lengths):
            return self._decoder(**arguments)

    @contextmanager
    def noting(self, step: _Pass) -> Iterator[None]:
        """Collect what each layer of this thread's pass reads, and its products with matrices in a
        pass over tokens of an answer."""
        with ExitStack() as hooks:
            for index, module in self._modules.items():
                note = _note(step.inputs, index)
                hooks.enter_context(self._lock.hooked(module, note, after=False))
                step.products[index] = {}
                for linear in () if step.is_reading else self._linears[index]:
                    keep = _keep(step.products[index])
                    hooks.enter_context(self._lock.hooked(linear, keep, after=True))
            yield

    def end(self, cache: RecurrentCache, row: int) -> EndStates:
        """The states after the last token of a row."""
        return cache.end(row)

    def begin(self, cache: RecurrentCache, row: int, end: EndStates) -> None:
        """Set the states of a row of an empty cache, which holds the keys of the same tokens."""
        cache.begin(row, end)

    def read_again(
        self, index: int, values: Values, inputs: Tensor, products: Mapping[int, Tensor]
    ) -> Values:
        """The states of a layer after it has read inputs ``[B, T, D]`` in these states; `products`
        are known ones of these inputs, by the identity of the matrix."""
        layer = StateLayer(self.num_states[index], _no_buffers())
        layer.values = values
        cache = Cache(layers=[layer] * (index + 1))
        # Kernels for several tokens of linear attention compute at least a block of 64.
        width = 1 if inputs.shape[1] <= FEW else inputs.shape[1]
        for start in range(0, inputs.shape[1], width):
            part = slice(start, start + width)
            layer.before_pass(width)
            with _KnownProducts({matrix: each[:, part] for matrix, each in products.items()}):
                self._modules[index](inputs[:, part], **{self._arguments[index]: cache})
        return layer.values


def _no_buffers() -> LayerBuffers:
    return LayerBuffers(LayerBlock(1), 0)


def _state_module(decoder: Any, index: int) -> nn.Module | None:
    """The module of a layer that reads and writes its states."""
    found = [
        module
        for module in decoder.modules()
        if getattr(module, "layer_idx", None) == index and _cache_argument(module)
    ]
    return found[-1] if found else None  # after those that contain it


def _cache_argument(module: nn.Module) -> str:
    """The argument of a module's forward that takes the cache; empty if none does."""
    names = inspect.signature(module.forward).parameters
    return next((name for name in (*CACHE_ARGUMENTS, "cache_params") if name in names), "")


def _note(inputs: dict[int, Tensor], index: int) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs[index] = args[0] if args else kwargs["hidden_states"]

    return hook


def _keep(products: Products) -> Callable[..., None]:
    def hook(module: nn.Linear, args: tuple[Any, ...], output: Tensor) -> None:
        matrix = id(module.weight)
        products[matrix] = None if matrix in products else output

    return hook


class _KnownProducts(TorchFunctionMode):
    """Takes products with matrices that are known, so that a layer that reads tokens again does not
    read its matrices."""

    def __init__(self, products: Products) -> None:
        super().__init__()
        self._products = products

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is linear and (known := self._products.get(id(args[1]))) is not None:
            return known
        return func(*args, **(kwargs or {}))


@dataclass(eq=False)
class _Pass:
    """A pass over some rows, and what was before it.

    Args:
        width: tokens that it has read of each row.
        values: the states before it, by layer.
        inputs: what each layer read, ``[B, T, D]``; empty if it was a single token.
        products: of the layers' matrices in it, by layer; empty for a prompt.
        before: of the cache's rows now, the tokens that the states had read before the pass.
        places: of the same rows, their places in the tensors; None if the row was not in the pass,
            or was rolled back to fewer tokens.
        is_reading: whether it has read a prompt, of which later passes keep all.
    """

    width: int
    values: dict[int, Values]
    before: list[int]
    places: list[int | None]
    is_reading: bool = False
    inputs: dict[int, Tensor] = field(default_factory=dict)
    products: dict[int, Products] = field(default_factory=dict)

    def reaches(self, row: int, length: int) -> int:
        """The most tokens of a row, at most `length`, whose states can be had; -1 for none."""
        before = self.before[row]
        if self.places[row] is None or before > length:
            return -1
        return min(length, before + self.width) if self.inputs else before

    @property
    def nbytes(self) -> int:
        inputs = sum(tensor.nbytes for tensor in self.inputs.values())
        products = sum(num_bytes(tuple(each.values())) for each in self.products.values())
        return inputs + products + sum(map(num_bytes, self.values.values()))


class RecurrentCache(KVCache):
    """A `KVCache` some of whose layers keep states.

    A new length of a row is only noted, but for `keep`; before the next pass its states are made to
    agree. Rows may be rolled back as far as to their last `keep`, or their prompt before the first;
    to any tokens before that where `reach` says so.
    """

    def __init__(
        self,
        states: StateLayers,
        rows: int,
        capacity: int,
        grows: bool = False,
        layers_per_block: int = LAYERS_PER_BLOCK,
    ) -> None:
        num_attention = states.num_layers - len(states.num_states)
        super().__init__(num_attention, rows, capacity, grows, layers_per_block)
        attention: Iterator[Any] = iter(self.layers)
        self.layers: list[Any] = [
            StateLayer(states.num_states[index], _no_buffers())
            if index in states.num_states
            else next(attention)
            for index in range(states.num_layers)
        ]
        self._states = states
        self._read = [0] * rows  # tokens of each row that its states have read
        self._floor = [0] * rows  # no row is rolled back further
        self._passes: list[_Pass] = []

    @property
    def _state_layers(self) -> dict[int, StateLayer]:
        return {index: self.layers[index] for index in self._states.num_states}

    @property
    def _attention_layers(self) -> list[Any]:
        return [layer for layer in self.layers if not isinstance(layer, StateLayer)]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states, those before recent passes included."""
        states = sum(layer.nbytes for layer in self._state_layers.values())
        return super().nbytes + states + sum(each.nbytes for each in self._passes)

    def whole_buffers(self, end: int) -> None:
        """No pass but one of the modules can write states."""

    @contextmanager
    def appending(self, width: int, lengths: Sequence[int] | None) -> Iterator[None]:
        """Entered around a pass over `width` tokens of each row.

        Args:
            lengths: how many of them belong to the row, in a prompt or a part of one, of which
                all stay or none; None for other tokens.
        """
        self._settle(self.lengths)
        if self._passes and self._passes[-1].is_reading:
            self._passes.clear()
            self._floor = list(self.lengths)
        layers = self._state_layers
        values = {index: layer.before_pass(width) for index, layer in layers.items()}
        before = list(self._read)
        places: list[int | None] = list(range(len(before)))
        step = _Pass(width, values, list(before), places, lengths is not None)
        is_padded = lengths is not None and any(length != width for length in lengths)
        noting: AbstractContextManager[None] = nullcontext()
        if is_padded or (lengths is None and width > 1):
            noting = self._states.noting(step)
        try:
            with noting:
                yield
        except BaseException:  # a pass that is cut short has changed some of the layers
            for index, layer in layers.items():
                layer.values = values[index]
            raise
        self._passes.append(step)
        self._read = [length + width for length in before]
        if lengths is not None:
            self._settle([start + count for start, count in zip(before, lengths, strict=True)])
            step.inputs.clear()
        self._forget()

    @torch.inference_mode()  # as the passes
    def _settle(self, lengths: Sequence[int]) -> None:
        """Make the states those after the first `lengths` tokens of each row."""
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (length, read) in enumerate(zip(lengths, self._read, strict=True)):
            if length != read:
                groups.setdefault(self._source(row, length), []).append(row)
        for (number, count), rows in groups.items():
            self._restore(self._passes[number], rows, count)
            for row in rows:
                for step in self._passes:
                    if step.before[row] > lengths[row]:
                        step.places[row] = None
        self._read = list(lengths)

    def _source(self, row: int, length: int) -> tuple[int, int]:
        """The pass in which a row had so many tokens, and how many of its own these include."""
        for number in reversed(range(len(self._passes))):
            if self._passes[number].reaches(row, length) == length:
                return number, length - self._passes[number].before[row]
        raise RuntimeError(
            f"row {row} was rolled back to {length} tokens, whose states are not kept any more"
        )

    def _restore(self, step: _Pass, rows: Sequence[int], count: int) -> None:
        """Set the states of rows to those after `count` tokens of a pass."""
        places = [place for row in rows if (place := step.places[row]) is not None]
        for index, layer in self._state_layers.items():
            values = rows_of(step.values[index], places)
            if count:
                inputs = step.inputs[index]
                chosen = index_of(places, inputs), slice(count)
                products = {
                    matrix: product[chosen]
                    for matrix, product in step.products[index].items()
                    if product is not None and product.shape[:2] == inputs.shape[:2]
                }
                values = self._states.read_again(index, values, inputs[chosen], products)
            layer.put(rows, values, len(self.lengths))

    def _forget(self) -> None:
        """Drop the oldest passes that no row can be rolled back to."""
        while self._passes and all(self._is_passed(row, 1) for row in range(len(self.lengths))):
            self._passes.pop(0)

    def _is_passed(self, row: int, first: int) -> bool:
        """Whether the passes from `first` on, or the states now, suffice for a row."""
        floor = self._floor[row]
        later = (step.before[row] for step in self._passes[first:] if step.places[row] is not None)
        return self._read[row] <= floor or any(before <= floor for before in later)

    def reach(self, row: int, length: int, floor: int | None = None) -> int:
        """See `KVCache.reach`. Without a floor the states of some earlier lengths are dropped."""
        read = self._read[row]
        reached = max((step.reaches(row, length) for step in self._passes), default=-1)
        if read <= length:
            reached = max(reached, read)
        if floor is not None:
            self._floor[row] = max(self._floor[row], min(floor, reached))
            return reached
        while len(self._passes) > MOST_PASSES:
            self._passes.pop(self._dispensable())
        return reached

    def _dispensable(self) -> int:
        """The oldest pass that is not the first one of any row."""
        known: set[int] = set()
        for number, step in enumerate(self._passes):
            rows = {row for row, place in enumerate(step.places) if place is not None}
            if rows <= known:
                return number
            known |= rows
        return len(self._passes) - 1

    def advance(self, counts: int | Sequence[int]) -> None:
        super().advance(counts)
        # Tokens that no pass has read are taken as read.
        self._read = list(map(max, self._read, self.lengths))

    @torch.inference_mode()
    def keep(self, base: Sequence[int], slots: Sequence[Sequence[int]]) -> None:
        """As `KVCache.keep`; the slots must be the first ones. The states are made to agree at
        once: what a rejected draft token costs belongs to its own round, whose time is measured."""
        for row_slots in slots:
            if list(row_slots) != list(range(len(row_slots))):
                raise RuntimeError(f"states follow chains of tokens, not slots {list(row_slots)}")
        super().keep(base, slots)
        self._floor = list(self.lengths)
        self._settle(self.lengths)

    def _empty_rows(self, count: int) -> KVCache:
        return RecurrentCache(self._states, count, self.capacity, self.grows)

    @torch.inference_mode()
    def copied(self, rows: KVCache) -> KVCache:
        assert isinstance(rows, RecurrentCache)
        rows._settle(rows.lengths)  # the copy has no states before passes
        copy = self.new_rows(len(rows.lengths))
        assert isinstance(copy, RecurrentCache)
        for row, length in enumerate(rows.lengths):
            copy.put(row, 0, rows.states(row, 0, length), length)
        for index, layer in rows._state_layers.items():
            copy.layers[index].values = layer.values
        copy.lengths, copy.held = list(rows.lengths), list(rows.held)
        copy._read, copy._floor = list(rows._read), list(rows._floor)
        return copy

    @torch.inference_mode()
    def join(self, rows: KVCache) -> None:
        assert isinstance(rows, RecurrentCache)
        rows._settle(rows.lengths)
        before, count = len(self.lengths), len(rows.lengths)
        super().join(rows)
        for index, layer in self._state_layers.items():
            layer.append(rows.layers[index].values, before, count)
        self._read += rows._read
        self._floor += rows.lengths
        for step in self._passes:
            step.before += [0] * count
            step.places += [None] * count

    @torch.inference_mode()
    def remove(self, row: int) -> None:
        super().remove(row)
        rows = list(range(len(self._read)))
        replace_by_last(rows, row)
        for layer in self._state_layers.values():
            layer.values = rows_of(layer.values, rows)
        for table in (self._read, self._floor):
            replace_by_last(table, row)
        for step in self._passes:
            replace_by_last(step.before, row)
            replace_by_last(step.places, row)

    def end(self, row: int) -> EndStates:
        self._settle(self.lengths)
        return [rows_of(layer.values, [row]) for layer in self._state_layers.values()]

    @torch.inference_mode()
    def begin(self, row: int, end: EndStates) -> None:
        for layer, values in zip(self._state_layers.values(), end, strict=bool(end)):
            layer.put([row], tuple(values), len(self.lengths))
        self._read[row] = self.lengths[row]

    @torch.inference_mode()
    def put(self, row: int, start: int, states: Sequence[LayerStates], count: int) -> None:
        for layer, (keys, values) in zip(self._attention_layers, states, strict=True):
            layer.put(row, start, keys[:, :count], values[:, :count])

    @torch.inference_mode()
    def states(self, row: int, first: int, last: int) -> list[LayerStates]:
        return [layer.copied(row, slice(first, last)) for layer in self._attention_layers]
