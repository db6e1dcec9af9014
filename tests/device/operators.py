"""What an operator costs on a GPU: kernels, waits of the host, and which devices it may mix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators that only reserve memory."""

KERNELS = {
    "constant_pad_nd": 2,
    "eye": 2,
    "logsumexp": 8,
    "multinomial": 5,
    "nonzero": 3,
    "repeat_interleave": 3,
    "sort": 2,
    "topk": 2,
    "unique_dim": 5,
    "_unique2": 5,
}
"""Operators that start more than one kernel, roughly as PyTorch 2.14 does."""

SYNCHRONIZING = frozenset(
    {"_local_scalar_dense", "equal", "is_nonzero", "masked_select", "nonzero", "unique_dim"}
    | {"_unique2", "bincount", "repeat_interleave"}
)
"""Operators whose result has values, or a shape, that the host waits for."""

COPIES = frozenset({"_to_copy", "copy_"})
"""Operators that may cross devices."""

INDEXED = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put"})
"""Operators that take indices of the CPU, and copy them."""

STRICT = frozenset({"cat", "stack", "mm", "bmm", "addmm", "embedding", "gather", "index_select"})
"""Operators that refuse scalars of the CPU, too."""

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "dot"})
"""Operators that CUDA has for floating-point numbers only."""


WHOLE = frozenset({"scaled_dot_product_attention"})
"""Operators that are one kernel on a GPU, though others could compute them."""


@dataclass(frozen=True)
class Operator:
    """One operator.

    Attributes:
        decomposes: whether others compute it, as they do on a GPU.
        is_view: whether its result is a view of its argument.
        written: which of its positional arguments it writes.
        written_names: which of its named arguments it writes.
    """

    name: str
    decomposes: bool
    is_view: bool
    written: tuple[int, ...]
    written_names: tuple[str, ...]

    @property
    def allocates(self) -> bool:
        return self.name in ALLOCATIONS


@cache
def operator_of(func: Any) -> Operator:
    """What is known of an overload, such as `aten.add.Tensor`."""
    name = func._schema.name.split("::")[-1]
    arguments = func._schema.arguments
    written = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    return Operator(
        name=name,
        decomposes=name not in WHOLE
        and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        ),
        is_view=bool(func.is_view),
        written=tuple(place for place, is_written in enumerate(written) if is_written),
        written_names=tuple(
            argument.name
            for argument, is_written in zip(arguments, written, strict=True)
            if is_written
        ),
    )
