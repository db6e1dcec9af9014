"""Passes as code that torch's inductor compiles once on a machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EndsChain, Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.model_state import Slot
from draftlens.passes.base import PassEngine
from draftlens.passes.inductor.compiler import Compiler
from draftlens.passes.inductor.library import Library, Runner, inputs_of
from draftlens.passes.structure import (
    Skeleton,
    folder_of,
    is_any_on_disk,
    position_axes,
    tracing_refusal,
    weight_bytes,
)

LARGEST = 64 * 2**20
"""Most bytes of weights with which `"auto"` takes compiled code: reading more is most of a pass."""

CODE = "*.pt2"
"""Names of files of compiled code."""

_LIBRARY = Slot[Library]("compiled passes")


@dataclass(frozen=True)
class InductorEngine(PassEngine):
    """Code that inductor compiles, for models of any dtype and device.

    Args:
        compiles: whether code that is not on disk is compiled; else the modules compute those
            passes.
    """

    label: ClassVar[str] = "inductor"

    compiles: bool = True

    def refusal(self, backbone: Backbone) -> str | None:
        return tracing_refusal(backbone)

    def unsuited(self, backbone: Backbone) -> str | None:
        if weight_bytes(backbone) > LARGEST:
            return f"it gains little with weights of more than {LARGEST >> 20} MiB"
        if not is_any_on_disk(CODE):
            return "there is no code on disk"
        library = _library_of(backbone)
        usual = library.usual_shapes(position_axes(backbone))
        return None if library.load(*usual) else "there is no code on disk"

    def make(self, backbone: Backbone) -> CompiledPasses:
        return CompiledPasses(_library_of(backbone), self.compiles, position_axes(backbone))

    def without_compiling(self) -> InductorEngine:
        return replace(self, compiles=False)

    def ready(self, backbone: Backbone) -> str:
        missing = Compiler().missing
        if missing:
            return f"never: {missing}"
        names = sorted(path.stem for path in folder_of(backbone, Skeleton.of(backbone)).glob(CODE))
        return ", ".join(names) or "none yet"


def library_of(backbone: Backbone) -> Library | None:
    """The compiled passes of a model; None if they were never requested or are refused."""
    return _LIBRARY.get(backbone.model)


def _library_of(backbone: Backbone) -> Library:
    """The library of a model, made if there is none. Raises `OSError` without a private folder."""
    library = _LIBRARY.get(backbone.model)
    if library is None:
        skeleton = Skeleton.of(backbone)
        library = Library(backbone, skeleton, folder_of(backbone, skeleton), Compiler())
        _LIBRARY.set(backbone.model, library)
    return library


class CompiledPasses(Passes):
    """Decode forwards by compiled code. A pass waits until its code is there, or runs by the
    modules if `compiles` is false and it is not on disk."""

    def __init__(self, library: Library, compiles: bool = True, axes: tuple[int, ...] = ()) -> None:
        self.library = library
        self.compiles = compiles
        self._axes = axes

    @property
    def label(self) -> str:
        return " ".join(sorted(shape.name for shape in self.library.runners))

    def prepare(self) -> None:
        """Load or compile the passes of a request of one row."""
        if self.compiles:
            self.library.wait(*self.library.usual_shapes(self._axes))

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
