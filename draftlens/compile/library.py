"""The compiled passes of one model: on disk, under way, and in use."""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from pathlib import Path

from torch import Tensor

from draftlens.compile.compiler import Compiler
from draftlens.compile.inputs import check_pass
from draftlens.compile.orders import Built, Order
from draftlens.compile.runner import Runner
from draftlens.compile.shapes import ANY, PassShape
from draftlens.compile.skeleton import Skeleton, named_tensors, pass_of
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.files import check_private
from draftlens.models.adapter import Backbone

MIN_USES = 8
"""Passes of a kind before it is compiled in the background."""

LOOK_SECONDS = 0.1
"""Time between two looks at the compiler."""

_log = logging.getLogger("draftlens")


class Library:
    """Loads the code of passes, and has it compiled where there is none.

    Args:
        backbone: the model, which is not kept alive.
        skeleton: its structure.
        folder: of the files.
        compiler: makes the files that are missing.

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
        self._ordered: set[PassShape] = set()
        self._uses: Counter[PassShape] = Counter()
        self._looked_at = 0.0

    def shape_of(self, position_ids: Tensor) -> PassShape:
        """The kind of a pass, from its positions, int64 ``[..., B, T]``."""
        return PassShape.of(position_ids, self._few_apart)

    def usual_shapes(self, axes: tuple[int, ...]) -> list[PassShape]:
        """The kinds of passes of a request of one row.

        Args:
            axes: leading dimensions of the model's positions.
        """
        shapes = [PassShape(1, 1, axes), PassShape(1, ANY, axes)]
        if self._few_apart:
            shapes.append(PassShape(1, ANY, axes, is_few=True))
        return shapes

    def wanted(self, shape: PassShape) -> None:
        """A pass of this kind is run without compiled code. The code is loaded if it is on disk;
        else it is compiled beside the answer, from the eighth time on."""
        self._uses[shape] += 1
        is_first = self._uses[shape] == 1
        if self._uses[shape] >= MIN_USES or (is_first and self.path_of(shape).exists()):
            self.order(shape)
        now = time.monotonic()
        if now - self._looked_at > LOOK_SECONDS:
            self._looked_at = now
            self.compiler.look()

    def order(self, shape: PassShape) -> None:
        """Load the code of a kind of pass, or have it made if there is none on disk."""
        if self.is_settled(shape) or shape in self._ordered:
            return
        path = self.path_of(shape)
        if path.exists():
            self._load(shape)
            return
        missing = self.compiler.missing
        if missing:
            self._fail(shape, missing)
            return
        self._ordered.add(shape)
        self.compiler.order(
            Order(self.skeleton, shape, path),
            urgency=lambda: self._uses[shape],
            report=lambda built: self._receive(shape, built),
        )

    def wait(self, *shapes: PassShape) -> None:
        """Have passes compiled and wait for them."""
        for shape in shapes:
            self.order(shape)
        for shape in shapes:
            while not self.is_settled(shape):
                missing = self.compiler.missing
                if missing:  # this process is a fork of the one that ordered
                    self._fail(shape, missing)
                else:
                    self.compiler.look(None)

    def is_settled(self, shape: PassShape) -> bool:
        """Whether there is code, or it is known why there is none."""
        return shape in self.runners or shape in self.failures

    def refresh(self) -> None:
        """Load code anew that reads weights which the model does not have any more: they have moved
        to the memory that a lane shares, or were replaced."""
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
        """The file of a kind of pass."""
        return self.folder / f"{shape.name}.pt2"

    def _receive(self, shape: PassShape, built: Built) -> None:
        self._ordered.discard(shape)
        self.seconds[shape] = built.seconds
        if built.failure:
            self._fail(shape, built.failure)
        else:
            self._load(shape)

    def _load(self, shape: PassShape) -> None:
        model = self._model()
        if model is None:
            return
        try:
            check_private(self.folder)
            check_private(self.path_of(shape))
            tensors = named_tensors(self._module)
            self.skeleton.check(model)
            backbone = Backbone.of(model)
            runner = Runner(self.path_of(shape), tensors, backbone.device)
            check_pass(backbone, runner, shape)
        except (OSError, KeyError, RuntimeError, UnsupportedModelError) as error:
            self._fail(shape, f"its compiled code cannot be used: {error}")
            return
        self.runners[shape] = runner

    def _fail(self, shape: PassShape, reason: str) -> None:
        if not self.failures:
            _log.warning("passes of %s are not compiled: %s", self.name, reason)
        self.failures[shape] = reason
