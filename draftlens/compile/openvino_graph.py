"""The graph that OpenVINO compiles: traced from a model once and kept on disk without weights."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftlens.compile.skeleton import SMALL, Skeleton, named_tensors
from draftlens.compile.split_pass import SplitPass
from draftlens.compile.store import folder_of
from draftlens.core.files import check_private, private_folder
from draftlens.models.adapter import Backbone

ROWS, WIDTH, CAPACITY = 2, 3, 96
"""Sizes of the tensors that a pass is traced with. Their dimensions are variables afterwards."""

FORMAT = 2
"""Version of the graphs; those of another version are traced again."""

WEIGHT = "weight:"
"""Prefix of the inputs that stand for the model's tensors in a graph on disk."""

SMALL_MODEL = 64 * 2**20
"""Most bytes of weights with which the compiled form is kept on disk, too: it contains them."""

MOST_BLOBS = 4
"""Compiled forms that are kept of one graph: of other weights of the model, and in int8."""

_log = logging.getLogger("draftlens")


@cache
def core() -> Any:
    """OpenVINO's core, one for the life of the process.

    Its CPU plug-in gives the thread that loads it an alternate stack for signals. A plug-in that is
    unloaded in another thread frees that stack and leaves it set, so that the next signal, such as
    that of Ctrl-C, ends the process with a segmentation fault (OpenVINO 2026.4).
    """
    import openvino

    return openvino.Core()


class GraphFile:
    """The graph of a model's passes on disk, for positions with leading sizes `axes`.

    Weights are not in it: each start binds the memory of the loaded model. Folders and files that
    another user owns or may write are refused, as with compiled code.
    """

    def __init__(self, folder: Path, axes: tuple[int, ...]) -> None:
        form = "x".join(map(str, axes))
        stem = f"openvino-{version('openvino')}-{FORMAT}{'-axes' if axes else ''}{form}"
        self.path = folder / f"{stem}.xml"
        self.blobs = folder / stem

    @classmethod
    def of(cls, backbone: Backbone, axes: tuple[int, ...]) -> GraphFile | None:
        """None where no private folder can be had."""
        try:
            return cls(folder_of(backbone, Skeleton.of(backbone)), axes)
        except OSError as error:
            _log.info("the graph of %s is not kept: %s", backbone.name, error)
            return None

    def read(self, backbone: Backbone) -> Any:
        """The graph with the weights of a model; None if there is none that may be used."""
        if not self.path.exists():
            return None
        try:
            for path in (self.path, self.path.with_suffix(".bin")):
                check_private(path)
            graph = core().read_model(self.path)
            bind(graph, backbone)
        except (OSError, RuntimeError, KeyError) as error:
            _log.info("the graph %s is not used: %s", self.path, error)
            return None
        return graph

    def write(self, graph: Any) -> None:
        """Keep a graph whose weights are inputs (`unbind`)."""
        import openvino

        partial = self.path.with_suffix(f".{os.getpid()}.xml")
        files = (partial.with_suffix(".bin"), partial)  # a complete graph has its .xml
        try:
            openvino.save_model(graph, partial, compress_to_fp16=False)
            for path in files:
                path.chmod(0o600)
                path.replace(self.path.with_suffix(path.suffix))
        finally:
            for path in files:
                path.unlink(missing_ok=True)

    def blob_options(self, backbone: Backbone) -> dict[str, Any]:
        """Options with which OpenVINO keeps the compiled form of a small model, weights included,
        and finds it again by a hash of graph and weights."""
        size = sum(tensor.nbytes for tensor in backbone.model.parameters())
        if size > SMALL_MODEL:
            return {}
        blobs = sorted(private_folder(self.blobs).glob("*.blob"), key=lambda p: p.stat().st_mtime)
        for path in blobs:
            check_private(path)
        for path in blobs[: max(0, len(blobs) - MOST_BLOBS + 1)]:
            path.unlink(missing_ok=True)
        return {"CACHE_DIR": str(self.blobs)}

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)


@torch.inference_mode()
def traced_graph(backbone: Backbone, axes: tuple[int, ...]) -> Any:
    """The model's pass as a graph of OpenVINO, whose constants are the memory of its weights.

    Raises:
        Exception: whatever tracing and conversion raise on code that they do not support.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    keys, values = _example(backbone)
    embeds = backbone.embed(torch.zeros(ROWS, WIDTH, dtype=torch.long))
    positions = torch.zeros(*axes, ROWS, WIDTH, dtype=torch.long)
    visible = torch.ones(ROWS, 1, WIDTH, CAPACITY + WIDTH, dtype=torch.bool)
    readers = torch.arange(ROWS * WIDTH - 1)
    inputs = (embeds, positions, visible, readers, *keys, *values)
    module = SplitPass(backbone.model, len(keys), backbone.divisor).eval()
    with warnings.catch_warnings():
        # Tracing is deprecated in favour of torch.export, which takes minutes here.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        # `openvino.convert_model` does the same and reports to its makers over the network.
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced, example_input=inputs)
        return frontend.convert(frontend.load(decoder))


def unbind(graph: Any, backbone: Backbone) -> bool:
    """Replace constants that are tensors of the model by inputs, in place. False if other large
    constants are left: they were computed from weights, so the graph fits no other weights."""
    from openvino import opset13

    names = {
        (tensor.data_ptr(), tuple(tensor.shape)): name
        for name, tensor in named_tensors(backbone.model).items()
    }
    inputs = []
    is_free = True
    for constant in _of_type(graph, "Constant"):
        pointer = constant.data.__array_interface__["data"][0]
        name = names.get((pointer, tuple(constant.shape)))
        if name is None:
            is_free &= constant.data.size <= SMALL or constant.data.dtype.kind != "f"
            continue
        kind = constant.get_element_type()
        weight = opset13.parameter(constant.shape, kind, name=WEIGHT + name)
        _replace(constant, weight)
        inputs.append(weight)
    graph.add_parameters(inputs)
    return is_free


def bind(graph: Any, backbone: Backbone) -> None:
    """Replace the inputs that `unbind` has made by the memory of a model's tensors, in place.

    Raises:
        KeyError: the model has no such tensor.
        RuntimeError: it has another shape or type.
    """
    from openvino import op

    tensors = named_tensors(backbone.model)
    for weight in graph.get_parameters():
        prefix, found, name = weight.get_friendly_name().partition(WEIGHT)
        if prefix or not found:
            continue
        constant = op.Constant(tensors[name].detach().numpy(), shared_memory=True)
        constant.set_friendly_name(name)
        _replace(weight, constant)
        graph.remove_parameter(weight)
    graph.validate_nodes_and_infer_types()


def quantize(graph: Any) -> None:
    """Give matrices of products 8-bit weights with one scale for each output, in place. OpenVINO
    keeps them in 8 bits and multiplies in float32: a pass reads a quarter of the bytes."""
    from openvino import opset13

    for product in list(_of_type(graph, "MatMul")):
        matrix = product.input_value(1).get_node()
        is_weight = matrix.get_type_name() == "Constant" and len(matrix.shape) == 2
        if not is_weight or not product.get_attributes()["transpose_b"]:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the array is read-only, and it is only read
            integers, scales = int8_weights(torch.from_numpy(matrix.data))
        wide = opset13.convert(opset13.constant(integers.numpy()), "f32")
        scaled = opset13.multiply(wide, opset13.constant(scales.numpy()))
        product.input(1).replace_source_output(scaled.output(0))


def int8_weights(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix ``[out, in]`` as int8 and float32 scales ``[out, 1]``, rounded to nearest."""
    scales = matrix.abs().amax(1, keepdim=True).div(127).clamp_min(1e-12)
    return (matrix / scales).round_().to(torch.int8), scales


def _of_type(graph: Any, name: str) -> Iterator[Any]:
    return (node for node in graph.get_ops() if node.get_type_name() == name)


def _replace(old: Any, new: Any) -> None:
    for reader in old.output(0).get_target_inputs():
        reader.replace_source_output(new.output(0))


def _example(backbone: Backbone) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of each layer to trace with."""
    prompt = backbone.text_prompt(torch.ones(ROWS, 2, dtype=torch.long))
    cache = backbone.new_cache(prompt, room=CAPACITY)
    backbone.prefill(prompt, cache)
    buffers = cache.whole_buffers(CAPACITY)
    assert buffers is not None
    keys, values = ([states[:, :, :CAPACITY].contiguous() for states in part] for part in buffers)
    return keys, values
