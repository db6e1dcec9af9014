"""Decode forwards by compiled code."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlens.compile.inputs import inputs_of
from draftlens.compile.library import Library
from draftlens.compile.runner import Runner
from draftlens.models.forward_backend import EndsChain, Passes
from draftlens.models.kv_cache import KVCache


class CompiledPasses(Passes):
    """Decode forwards by compiled code. A pass waits until its code is there, or runs by the
    modules if `compiles` is false and it is not on disk."""

    def __init__(self, library: Library, compiles: bool = True) -> None:
        self.library = library
        self.compiles = compiles

    @property
    def label(self) -> str:
        return " ".join(sorted(shape.name for shape in self.library.runners))

    def begin(self) -> None:
        self.library.refresh()

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        runner = self._runner(position_ids)
        if runner is None:
            return None
        inputs = inputs_of(tokens, position_ids, cache, mask)
        return None if inputs is None else runner(inputs)

    def run_chain(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        count: int,
        vocab_size: int,
        ends: EndsChain | None = None,
    ) -> Tensor | None:
        """What the passes have in common is prepared once."""
        runner = self._runner(position_ids)
        if runner is None:
            return None
        length = cache.lengths[0]
        buffers = cache.whole_buffers(length + count)
        if buffers is None:
            return None
        keys, values = buffers
        slots = tokens.new_full(tokens.shape, length)
        visible = tokens.new_ones((len(tokens), 1, 1, length + count), dtype=torch.bool)
        chosen = []
        for step in range(count):
            seen = visible[..., : length + step + 1]
            leading = (tokens, position_ids + step, slots + step, seen)
            logits = runner([*(tensor.contiguous() for tensor in leading), *keys, *values])
            logits = logits[..., :vocab_size]
            tokens = logits.argmax(-1)
            chosen.append(tokens)
            if ends is not None and ends(logits, tokens):
                break
        return torch.cat(chosen, 1)

    def _runner(self, position_ids: Tensor) -> Runner | None:
        """The code of a pass, if it exists and may be used."""
        shape = self.library.shape_of(position_ids)
        if shape not in self.library.runners and shape not in self.library.failures:
            if self.compiles:
                self.library.wait(shape)
            else:
                self.library.load(shape)
        if torch.is_autocast_enabled(position_ids.device.type):
            return None
        return self.library.runners.get(shape)
