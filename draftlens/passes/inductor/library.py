"""The compiled passes of one model: on disk and in use."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlens.core.errors import UnsupportedModelError
from draftlens.core.files import check_private
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.model_state import lock_of
from draftlens.passes.inductor.compiler import Built, Compiler, Order
from draftlens.passes.inductor.static_pass import ANY, PassShape, pass_of
from draftlens.passes.structure import Skeleton, check_pass, named_tensors, slots_of

_log = logging.getLogger("draftlens")


class Library:
    """Loads the code of passes, and has missing code compiled. The model is not kept alive.

    Attributes:
        runners: the code that can be called, by kind of pass.
        failures: why other kinds are not compiled.
        seconds: that compiling each kind took in this process.
    """

    def __init__(
        self, backbone: Backbone, skeleton: Skeleton, folder: Path, compiler: Compiler
    ) -> None:
        self.name = backbone.name
        self.skeleton = skeleton
        self.folder = folder
        self.compiler = compiler
        self.runners: dict[PassShape, Runner] = {}
        self.failures: dict[PassShape, str] = {}
        self.seconds: dict[PassShape, float] = {}
        self._model = weakref.ref(backbone.model)
        self._module = pass_of(backbone.model, backbone.divisor)
        self._few_apart = skeleton.has_large_matrices
        self._compiling = threading.Lock()

    def shape_of(self, position_ids: Tensor) -> PassShape:
        """The kind of a pass, from its positions, int64 ``[..., B, T]``."""
        return PassShape.of(position_ids, self._few_apart)

    def usual_shapes(self, axes: tuple[int, ...]) -> list[PassShape]:
        """The kinds of passes of a request of one row; `axes` lead the model's positions."""
        shapes = [PassShape(1, 1, axes), PassShape(1, ANY, axes)]
        if self._few_apart:
            shapes.append(PassShape(1, ANY, axes, is_few=True))
        return shapes

    def wait(self, *shapes: PassShape) -> None:
        """Load the code of passes; what is not on disk is compiled first."""
        self.load(*shapes)
        left = self._unsettled(shapes)
        if left:
            self._compile(left)

    def load(self, *shapes: PassShape) -> bool:
        """Load what is on disk; whether the code of all these passes can be called now."""
        for shape in self._unsettled(shapes):
            if self.path_of(shape).exists():
                self._load(shape)
        return all(shape in self.runners for shape in shapes)

    def _compile(self, shapes: Sequence[PassShape]) -> None:
        missing = self.compiler.missing
        if missing:
            for shape in shapes:
                self._fail(shape, missing)
            return
        with self._compiling:
            # Another thread may have had some of them compiled meanwhile.
            left = [s for s in self._unsettled(shapes) if not self.path_of(s).exists()]
            orders = [Order(self.skeleton, shape, self.path_of(shape)) for shape in left]
            if orders:
                names = ", ".join(shape.name for shape in left)
                _log.info(
                    "compiling passes %s of %s, once on this machine: about a minute for each",
                    names,
                    self.name,
                )
            for shape, built in zip(left, self.compiler.build(orders), strict=True):
                self._receive(shape, built)
        self.load(*shapes)  # whose lock may be held by a thread that waits for `_compiling`

    def _unsettled(self, shapes: Sequence[PassShape]) -> list[PassShape]:
        """Those with neither code nor a recorded failure."""
        return [s for s in shapes if s not in self.runners and s not in self.failures]

    def refresh(self) -> None:
        """Reload code with weights that the model no longer has: they have moved to the memory that
        a draft worker shares, or were replaced."""
        tensors = named_tensors(self._module)
        is_current = all(runner.reads(tensors) for runner in self.runners.values())
        model = self._model()
        if model is None or (is_current and self.skeleton.has_small_tensors_of(model)):
            return
        shapes = list(self.runners)
        self.runners.clear()
        for shape in shapes:
            self._load(shape)

    def path_of(self, shape: PassShape) -> Path:
        return self.folder / f"{shape.name}.pt2"

    def _receive(self, shape: PassShape, built: Built) -> None:
        self.seconds[shape] = built.seconds
        if built.failure:
            self._fail(shape, built.failure)
        else:
            _log.info("pass %s of %s compiled in %.1f s", shape.name, self.name, built.seconds)

    def _load(self, shape: PassShape) -> None:
        model = self._model()
        if model is None:
            return
        with lock_of(model).between_passes():  # the pass of this thread waits for the code
            if self._unsettled([shape]):
                self._load_alone(shape, model)

    def _load_alone(self, shape: PassShape, model: Any) -> None:
        try:
            # Code that another user could have written is not loaded.
            check_private(self.folder)
            check_private(self.path_of(shape))
            tensors = named_tensors(self._module)
            self.skeleton.check(model)
            backbone = Backbone.of(model)
            runner = Runner(self.path_of(shape), tensors, backbone.device)
            rows = 1 if shape.rows == 1 else 2
            width = 1 if shape.width == 1 else 3
            check_pass(backbone, partial(_run, runner), rows, width, shape.axes)
        except (OSError, KeyError, RuntimeError, UnsupportedModelError) as error:
            self._fail(shape, f"its compiled code cannot be used: {error}")
            return
        self.runners[shape] = runner

    def _fail(self, shape: PassShape, reason: str) -> None:
        if not self.failures:
            _log.warning("passes of %s are not compiled: %s", self.name, reason)
        self.failures[shape] = reason


class Runner:
    """Calls compiled code. Several threads may call it; it runs one call at a time.

    Args:
        path: of the package that `compiler.compile_to_file` has written.
        tensors: parameters and buffers by name. The code reads their memory; nothing is copied.
        device: of the model.

    Raises:
        KeyError: the code needs a tensor that is not there.
        RuntimeError: the file cannot be loaded.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        index = -1 if device.index is None else device.index
        # Up to torch 2.14 these arguments have no defaults: name, single-threaded, runners, device.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, index)
        names = self._loader.get_constant_fqns()
        self._constants = {name: tensors[name].detach() for name in names}
        self._loader.load_constants(
            self._constants, use_inactive=False, check_full_update=True, user_managed=True
        )

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        """Logits ``[B, T, V]`` from the inputs of `StaticPass.forward` in their order, lists
        unpacked, all contiguous."""
        return self._loader.boxed_run(inputs)[0]

    def reads(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the code reads the memory of these tensors."""
        return all(
            tensors[name].data_ptr() == constant.data_ptr()
            for name, constant in self._constants.items()
        )


def inputs_of(
    tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
) -> list[Tensor] | None:
    """The inputs of `StaticPass.forward`, lists unpacked, of a forward over a cache, which gets
    room for the tokens. None if it has no buffers yet, or has no room and must not grow."""
    width = tokens.shape[1]
    reach = max(cache.lengths) + width
    buffers = cache.whole_buffers(reach)
    if buffers is None:
        return None
    keys, values = buffers
    if mask is None:
        mask = tokens.new_ones((len(tokens), 1, width, reach), dtype=torch.bool)
    leading = (tokens, position_ids, slots_of(cache.lengths, width, tokens.device), mask)
    return [*(tensor.contiguous() for tensor in leading), *keys, *values]


def _run(
    runner: Runner, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
) -> Tensor | None:
    inputs = inputs_of(tokens, position_ids, cache, mask)
    return None if inputs is None else runner(inputs)
