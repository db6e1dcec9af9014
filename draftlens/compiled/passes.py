"""Decode forwards by compiled code, as soon as there is some."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.compiled.inputs import inputs_of
from draftlens.compiled.library import Library
from draftlens.compiled.shapes import PassShape
from draftlens.models.cache import KVCache


class CompiledPasses:
    """See `models.passes.Passes`.

    Args:
        library: the code of the model.
        waits: whether a pass waits for its code. Otherwise the model's modules compute it until the
            code is there.
    """

    def __init__(self, library: Library, waits: bool) -> None:
        self.library = library
        self.waits = waits

    @property
    def label(self) -> str:
        """See `Passes.label`."""
        return " ".join(sorted(shape.name for shape in self.library.runners))

    def begin(self) -> None:
        """See `Passes.begin`."""
        self.library.refresh()

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """See `Passes.run`."""
        library = self.library
        shape = PassShape.of(position_ids)
        if shape not in library.runners:
            self._ask_for(shape)
        runner = library.runners.get(shape)
        if runner is None or torch.is_autocast_enabled(tokens.device.type):
            return None
        inputs = inputs_of(tokens, position_ids, cache, mask)
        return None if inputs is None else runner(inputs)

    def _ask_for(self, shape: PassShape) -> None:
        if shape in self.library.failures:
            return
        if self.waits:
            self.library.wait(shape)
        else:
            self.library.wanted(shape)
