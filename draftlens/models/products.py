"""Which library multiplies matrices in the passes of a model.

`torch.nn.functional.linear` calls MKL for float32 on x86, which reads a matrix once for every three
rows, up to fifteen of them; oneDNN reads it once, in place. With the two factors exchanged oneDNN
takes the matrix for the rows, and on many processors up to eight rows then cost little more than
one. MKL's code for many rows does not use all that processors of other makers have: with AVX-512 on
AMD's it takes twice the time of oneDNN. A call of oneDNN costs tens of microseconds more, which
matters for small matrices.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad
from torch.overrides import TorchFunctionMode

from draftlens.models.model_state import Slot
from draftlens.models.pixel_split import PIXELS
from draftlens.models.prompt import Prompt

LARGE = 4_000_000
"""Least number of elements of a matrix for which oneDNN is faster."""

FEW = 3
"""Most rows for which MKL is faster than oneDNN with the factors as they are."""

MANY = 64
"""Most rows that oneDNN computes here."""

LANES = 8
"""Exchanged products are padded to a multiple of so many rows, a vector of most processors."""

TIMINGS = 4
"""Products of each kind that are timed before one kind is chosen; the fastest of them counts."""

GAIN = 0.9
"""Largest share of the usual kernel's time for which the other one is chosen."""


def is_large(size: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether oneDNN computes products of a few rows with such a matrix faster."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and len(size) == 2
        and math.prod(size) >= LARGE
        and is_available()
    )


def is_available() -> bool:
    """Whether torch has both libraries, may use oneDNN, and keeps float32 precision."""
    return bool(
        torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.mkldnn.enabled
        and torch.get_float32_matmul_precision() == "highest"
    )


def has_large(modules: Sequence[nn.Module]) -> bool:
    return any(
        is_large(weight.shape, weight.dtype, weight.device)
        for module in modules
        for weight in module.parameters()
    )


class FasterKernel:
    """Computes products by the faster of two kernels.

    The first products of each kind are computed by both in turn and timed, each with another
    layer's matrix, and the faster kernel computes all later ones. So the choice needs no
    computation of its own, and its timings are those of matrices that are in no cache.
    """

    def __init__(self) -> None:
        # By kind, whether the other kernel is taken, and seconds by the usual and the other one.
        self._takes_other: dict[Hashable, bool] = {}
        self._timings: dict[Hashable, tuple[list[float], list[float]]] = defaultdict(
            lambda: ([], [])
        )

    def compute(
        self, kind: Hashable, work: int, usual: Callable[[], Tensor], other: Callable[[], Tensor]
    ) -> Tensor:
        """A product by one of two kernels; times of a kind are compared for a unit of `work`."""
        takes_other = self._takes_other.get(kind)
        if takes_other is not None:
            return other() if takes_other else usual()
        by_usual, by_other = self._timings[kind]
        is_usual = len(by_usual) <= len(by_other)
        began = time.thread_time()
        output = usual() if is_usual else other()
        seconds = (time.thread_time() - began) / work
        (by_usual if is_usual else by_other).append(seconds)
        if min(len(by_usual), len(by_other)) >= TIMINGS:  # threads may add more
            self._takes_other[kind] = min(by_other) <= GAIN * min(by_usual)
        return output


class LargeProducts(FasterKernel):
    """Products with the large matrices of one model, with exchanged factors where that is faster.
    Numbers of rows, widths of matrices and numbers of threads are chosen for apart; matrices of a
    kind differ in their height."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = states.numel() // states.shape[-1]
        usual = partial(usual_product, rows, states, weight, bias)
        if not weight.is_contiguous():
            return usual()
        kind = (kind_of(rows), weight.shape[1], torch.get_num_threads())
        exchanged = partial(exchanged_product, states, weight, bias)
        return self.compute(kind, len(weight), usual, exchanged)


def kind_of(rows: int) -> int:
    """Numbers of rows of one kind are computed alike: 2, 3, and those of equal padding."""
    return rows if rows <= FEW else -(-rows // LANES) * LANES


def few_rows(tokens: Tensor, products: LargeProducts) -> AbstractContextManager[Any]:
    """A context for a forward over `tokens` ``[B, T]``, in which `products` computes those with
    large matrices if there are more than one and at most `MANY` rows."""
    if 1 < tokens.numel() <= MANY and not torch.is_autocast_enabled("cpu"):
        return LinearBy(products, _has_large_matrix)
    return nullcontext()


def _has_large_matrix(states: Tensor, weight: Tensor) -> bool:
    return type(weight) in (Tensor, nn.Parameter) and is_large(
        weight.shape, weight.dtype, weight.device
    )


class LinearBy(TorchFunctionMode):
    """While it is entered, another function computes some of the calls of
    `torch.nn.functional.linear`.

    Args:
        products: computes them from the input, the weight, and the bias or None.
        fits: whether it computes the product of an input and a weight.
    """

    def __init__(
        self,
        products: Callable[[Tensor, Tensor, Tensor | None], Tensor],
        fits: Callable[[Tensor, Tensor], bool],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._products = products
        self._fits = fits

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is linear and not kwargs and self._fits(args[0], args[1]):
            states, weight, *bias = args
            return self._products(states, weight, bias[0] if bias else None)
        return func(*args, **(kwargs or {}))


def usual_product(rows: int, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` by MKL for up to `FEW` rows, else by oneDNN."""
    return linear(states, weight, bias) if rows <= FEW else product(states, weight, bias)


def product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` by oneDNN."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return output


def exchanged_product(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`linear` by oneDNN as the transpose of ``weight @ states.T``, padded to full vectors."""
    rows = states.reshape(-1, states.shape[-1])
    padded = pad(rows, (0, 0, 0, -len(rows) % LANES))
    output = product(weight, padded, None)[:, : len(rows)].t()
    output = output.contiguous().reshape(*states.shape[:-1], len(weight))
    return output if bias is None else output + bias


WORK = 20_000_000
"""Least number of multiplications of a product that is computed here: 0.2 ms of one core. A call of
oneDNN costs tens of microseconds."""

PASS_WORK = 3_000_000_000
"""Least number of multiplications of a pass in which products are watched for: 30 ms of one core.
Watching costs microseconds for every function of torch that the pass calls."""


class ManyRows(FasterKernel):
    """Products of many rows of one model, by MKL or by oneDNN. The choice is one for all of them,
    since either library's time for a multiplication hardly depends on the size."""

    def __call__(self, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        by_mkl = partial(linear, states, weight, bias)
        by_onednn = partial(product, states, weight, bias)
        return self.compute(torch.get_num_threads(), _work(states, weight), by_mkl, by_onednn)


def many_rows(work: int, products: Callable[[], ManyRows]) -> AbstractContextManager[Any]:
    """A context for a pass of so many multiplications, in which those with many rows are computed
    by the faster library. Weights must be on the CPU."""
    if work >= PASS_WORK and is_available() and not torch.is_autocast_enabled("cpu"):
        return LinearBy(products(), _fits)
    return nullcontext()


def _fits(states: Tensor, weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.dtype == torch.float32
        and states.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.dim() == 2
        and weight.is_contiguous()
        and not torch.is_grad_enabled()
        and _work(states, weight) >= WORK
    )


def _work(states: Tensor, weight: Tensor) -> int:
    """Multiplications of a product."""
    return states.numel() * len(weight)


_LARGE_PRODUCTS = Slot[LargeProducts]("products with large matrices")
_MANY_ROWS = Slot[ManyRows]("products of many rows")

PATCH = 3 * 14 * 14
"""Values of a patch of a picture in most vision towers."""


class ModelProducts:
    """The contexts in which the modules of a model run, by the number of rows that they read
    (`models.products`, `models.products`).

    Attributes:
        has_large: whether the decoder or the head has matrices that are multiplied apart where
            there are few rows.
        num_pixel_weights: weights that read pixels; with 0 their products are the same however many
            pixels there are.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, head: nn.Module, device: torch.device):
        self._model = model
        self._is_on_cpu = device.type == "cpu"
        self.has_large = has_large([decoder, head])
        self._num_text_weights = _num_weights(decoder)
        self.num_pixel_weights = _num_weights(model) - self._num_text_weights

    def of_tokens(self, tokens: Tensor) -> AbstractContextManager[Any]:
        """Where the decoder reads `tokens` ``[B, T]``."""
        if tokens.numel() > MANY:
            return self._many_rows(tokens.numel(), self._num_text_weights)
        if not self.has_large:
            return nullcontext()
        return few_rows(tokens, _LARGE_PRODUCTS.get_or_make(self._model, LargeProducts))

    def of_prompt(self, prompt: Prompt) -> AbstractContextManager[Any]:
        """Where the decoder reads a prompt or a part of one."""
        batch, length = prompt.embeds.shape[:2]
        return self._many_rows(batch * length, self._num_text_weights)

    def of_pixels(self, inputs: Mapping[str, Any]) -> AbstractContextManager[Any]:
        """Where the vision tower reads the pixels of a processor's output."""
        return self._many_rows(_num_patches(inputs), self.num_pixel_weights)

    def _many_rows(self, rows: int, num_weights: int) -> AbstractContextManager[Any]:
        if not self._is_on_cpu:
            return nullcontext()
        return many_rows(rows * num_weights, lambda: _MANY_ROWS.get_or_make(self._model, ManyRows))


def _num_weights(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _num_patches(inputs: Mapping[str, Any]) -> int:
    """About how many patches of pictures and clips there are."""
    pixels = (inputs[name] for name in PIXELS if isinstance(inputs.get(name), Tensor))
    return sum(map(Tensor.numel, pixels)) // PATCH
