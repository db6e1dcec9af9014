"""Passes over static buffers without a compiler: the same code, run as it stands."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor

from draftlens.core.names import AUTO
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.passes.inductor.engine import CompiledPasses
from draftlens.passes.inductor.static_pass import PassShape, pass_of


class UncompiledLibrary:
    """Stands in for `inductor.library.Library`; every kind of pass is there when it is asked for.

    Attributes:
        calls: how often each kind of pass was run.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.runners: dict[PassShape, Callable[[list[Tensor]], Tensor]] = {}
        self.failures: dict[PassShape, str] = {}
        self.calls: Counter[PassShape] = Counter()
        self._module = pass_of(backbone.model, backbone.divisor)

    def shape_of(self, position_ids: Tensor) -> PassShape:
        """See `Library.shape_of`."""
        return PassShape.of(position_ids)

    def wait(self, *shapes: PassShape) -> None:
        """Compiling takes no time."""
        for shape in shapes:
            self.runners[shape] = lambda inputs, shape=shape: self._run(shape, inputs)

    def refresh(self) -> None:
        """The modules are those of the model."""

    def _run(self, shape: PassShape, inputs: list[Tensor]) -> Tensor:
        assert all(tensor.is_contiguous() for tensor in inputs[:4])
        assert PassShape.of(inputs[1]) == shape
        self.calls[shape] += 1
        num_layers = (len(inputs) - 4) // 2
        keys = inputs[4 : 4 + num_layers]
        logits: Tensor = self._module(*inputs[:4], keys, inputs[4 + num_layers :])
        return logits


_LIBRARIES: weakref.WeakKeyDictionary[Any, UncompiledLibrary] = weakref.WeakKeyDictionary()


def attach_static(backbones: list[Backbone], compile: object = True) -> None:
    """Stands in for `passes.attach`."""
    for backbone in backbones:
        backbone.passes = EAGER
        if not compile or compile == AUTO:
            continue
        library = _LIBRARIES.get(backbone.model)
        if library is None:
            library = _LIBRARIES.setdefault(backbone.model, UncompiledLibrary(backbone))
        backbone.passes = CompiledPasses(library)  # type: ignore[arg-type]


def library_of(model: Any) -> UncompiledLibrary:
    """The library of a model that `attach_static` has seen."""
    return _LIBRARIES[model]
