"""A package of somebody else: ONNX Runtime as an engine of passes for draftlens."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import torch
from torch import Tensor

from draftlens.models.adapter import Backbone
from draftlens.passes import PassEngine
from draftlens.passes.split_pass import SplitPass, SplitPasses, example_inputs
from draftlens.passes.structure import tracing_refusal


@dataclass(frozen=True)
class OnnxEngine(PassEngine):
    """ONNX Runtime, for float32 models on the CPU."""

    label: ClassVar[str] = "ONNX Runtime"

    @property
    def missing(self) -> str:
        absent = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
        return f"ONNX Runtime: pip install {' '.join(absent)}" if absent else ""

    def refusal(self, backbone: Backbone) -> str | None:
        if backbone.device.type != "cpu" or backbone.dtype != torch.float32:
            return "the model is not in float32 on the CPU"
        return tracing_refusal(backbone)

    def make(self, backbone: Backbone) -> OnnxPasses:
        return OnnxPasses(backbone)


class OnnxPasses(SplitPasses):
    """Passes of a model by ONNX Runtime, which has a copy of the weights."""

    @property
    def label(self) -> str:
        return "onnx"

    def compile(self, backbone: Backbone, axes: tuple[int, ...]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            exported(backbone, axes), options, providers=["CPUExecutionProvider"]
        )
        names = [each.name for each in session.get_inputs()]

        def infer(inputs: Sequence[Tensor]) -> list[Tensor]:
            given = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
            return [torch.from_numpy(output) for output in session.run(None, given)]

        self.start(backbone, axes, infer)


@torch.inference_mode()
def exported(backbone: Backbone, axes: tuple[int, ...]) -> bytes:
    """The model's pass in the format of ONNX, weights included, for any sizes."""
    inputs = example_inputs(backbone, axes)
    num_layers = (len(inputs) - 4) // 2
    sizes = {
        "embeds": {0: "rows", 1: "width"},
        "positions": {len(axes): "rows", len(axes) + 1: "width"},
        "visible": {0: "rows", 2: "width", 3: "reach"},
        "readers": {0: "readers"},
    }
    sizes |= {f"cached{n}": {0: "rows", 2: "capacity"} for n in range(2 * num_layers)}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that traces is deprecated
        torch.onnx.export(
            SplitPass(backbone).eval(),
            inputs,
            file,
            input_names=list(sizes),
            dynamic_axes=sizes,
            dynamo=False,
        )
    return file.getvalue()
