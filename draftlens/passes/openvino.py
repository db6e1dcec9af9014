"""Passes by OpenVINO, which reads the weights once for up to about eight tokens."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import psutil
import torch
from torch import Tensor

from draftlens.core import tree as trees
from draftlens.core.errors import UnsupportedModelError
from draftlens.core.files import check_private, private_folder
from draftlens.models.adapter import Backbone
from draftlens.models.kv_cache import KVCache
from draftlens.models.rounded_weights import (
    GROUPS,
    RoundedMatrix,
    RoundedWeights,
    group_of,
    layer_bits,
    pixel_layers,
    release,
    rounded_layer,
    rounding_layers,
    with_rounded_weights,
    without_values,
)
from draftlens.passes.base import PassEngine
from draftlens.passes.ordered_attention import BLOCK
from draftlens.passes.split_pass import Function, SplitPass, SplitPasses, example_inputs
from draftlens.passes.structure import (
    SMALL,
    Forward,
    Skeleton,
    check_pass,
    folder_of,
    named_tensors,
    tracing_refusal,
    weight_bytes,
)


@dataclass(frozen=True)
class Rounding:
    """How passes round.

    Args:
        bits: of the weights (`RoundedMatrix`); some have 8 in any case (`layer_bits`).
        has_activations: whether activations are rounded to 8 bits when a pass runs, with one scale
            for a group of them. Sums of their products are sums of integers. Else weights are
            multiplied as float32.
    """

    bits: int
    has_activations: bool

    def __str__(self) -> str:
        """In words for the user."""
        if not self.has_activations:
            return f"{self.bits}-bit weights of the language model"
        if self.bits == 8:
            return "8-bit weights and activations of the language model"
        return f"{self.bits}-bit weights and 8-bit activations of the language model"


INT8 = "int8"

PIXELS_ROUNDED = "8-bit weights and activations of the vision tower"

ROUNDINGS = {
    INT8: Rounding(8, has_activations=True),
    "int8-weights": Rounding(8, has_activations=False),
    "int4": Rounding(4, has_activations=True),
    "int4-weights": Rounding(4, has_activations=False),
}
"""By the values of `quantization`."""

CHECKED = 20
"""Tokens that are read in several ways to see that their logits have the same bits."""

ACTIVATIONS_BOUND = 0.5
"""Largest difference that rounded activations make to logits, relative to the largest: more is a
mistake."""

LEAST = 64 * 2**20
"""Fewest bytes of weights with which `"auto"` takes OpenVINO: else a pass is mostly its call."""

MEMORY = 1.2
"""Free memory that the copy of the weights needs, in sizes of the weights."""

FORMAT = 6
"""Version of the graphs; those of another version are traced again."""

WEIGHT = "weight:"
"""Prefix of the inputs that stand for the model's tensors in a graph on disk."""

SMALL_MODEL = 64 * 2**20
"""Most bytes of weights with which the compiled form is kept on disk, too: it contains them."""

MOST_BLOBS = 4
"""Compiled forms that are kept of one graph: of other weights of the model, and in int8."""

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class OpenVinoEngine(PassEngine):
    """OpenVINO, for float32 models on the CPU.

    Args:
        quantization: one of `ROUNDINGS`, which change logits; else empty.
        is_target: whether the tokens of an answer are chosen by these passes. With rounded
            activations, they are then those of `OrderedAttention`.
    """

    quantizations: ClassVar[tuple[str, ...]] = tuple(ROUNDINGS)
    label: ClassVar[str] = "OpenVINO"
    knows_kinds: ClassVar[bool] = True

    quantization: str = ""
    is_target: bool = False

    @property
    def missing(self) -> str:
        if find_spec("openvino") is None:
            return "OpenVINO: pip install openvino"
        return ""

    def refusal(self, backbone: Backbone) -> str | None:
        if reason := tracing_refusal(backbone):
            return reason
        if backbone.device.type != "cpu":
            return f"the model is on {backbone.device}, and OpenVINO runs on the CPU here"
        if backbone.dtype != torch.float32:
            name = str(backbone.dtype).removeprefix("torch.")
            return f"the model is {name}, and OpenVINO's passes are checked in float32 only"
        if self.is_target and rounds_activations(self.quantization) and backbone.kinds is not None:
            return "attention of one order knows neither sliding windows nor shared keys"
        return None

    def unsuited(self, backbone: Backbone) -> str | None:
        size = weight_bytes(backbone)
        if size < LEAST:
            return f"it gains nothing with weights of less than {LEAST >> 20} MiB"
        free = psutil.virtual_memory().available
        if free >= MEMORY * size:
            return None
        return f"its copy of the weights takes {size / 2**30:.1f} GiB, {free / 2**30:.1f} are free"

    def draft_quantization(self) -> str:
        return INT8 if multiplies_int8() else ""

    def loading(self) -> Any:
        rounding = ROUNDINGS[self.quantization]
        return RoundedWeights(rounding.bits, has_pixels=rounding.has_activations)

    def make(self, backbone: Backbone) -> OpenVinoPasses:
        _log.info("preparing passes of %s by OpenVINO", backbone.name)
        passes = OpenVinoPasses(backbone, self.quantization, self.is_target)
        _log.info(
            "passes of %s run by OpenVINO%s (%s, compiled and checked in %.1f s)",
            backbone.name,
            f" with {self.quantization} weights" if self.quantization else "",
            "graph read from disk" if passes.is_stored else "traced",
            passes.seconds,
        )
        return passes


class OpenVinoPasses(SplitPasses):
    """Runs passes of a model by OpenVINO, which keeps a copy of the weights in its own layout.

    Args:
        backbone: the model, in float32 on the CPU, which is not kept alive.
        quantization, is_target: as for `OpenVinoEngine`.

    Attributes:
        is_stored: whether the graph was on disk.

    Raises:
        UnsupportedModelError: as for `SplitPasses`, or rounded activations would make an answer
            depend on the sizes of the passes.
    """

    def __init__(self, backbone: Backbone, quantization: str = "", is_target: bool = False) -> None:
        self.quantization = quantization
        self.is_ordered = is_target and rounds_activations(quantization)
        self._pixel_products: Any = None
        self.most_nodes = BLOCK - 1 if self.is_ordered else None
        self.is_stored = False
        self._constants: list[Tensor] = []  # OpenVINO reads constants from this memory
        if is_target and quantization:
            self.rounding = (str(ROUNDINGS[quantization]),)
            if rounds_activations(quantization) and pixel_layers(backbone.model):
                self.rounding = (*self.rounding, PIXELS_ROUNDED)
        super().__init__(backbone, ACTIVATIONS_BOUND if rounds_activations(quantization) else None)

    @property
    def label(self) -> str:
        return f"openvino {self.quantization}".strip()

    def compile(self, backbone: Backbone, axes: tuple[int, ...]) -> None:
        """Read the graph from disk, or trace it."""
        with without_values(backbone.model):
            file = GraphFile.of(backbone, axes, self.is_ordered)
        graph = None if file is None else file.read(backbone)
        self.is_stored = graph is not None
        if graph is not None:
            try:
                self._start_graph(backbone, axes, graph, file)
            except Exception as error:  # of any kind: it is traced again
                _log.info("the graph of %s on disk is not used: %s", backbone.name, error)
                graph = None
        if graph is None:
            self.is_stored = False
            self._start_graph(backbone, axes, *_new_graph(backbone, axes, file, self.is_ordered))
        if self.is_ordered:
            self._constants = release(backbone.model)
            self.accept_weights(backbone.model)

    def check(self, backbone: Backbone, axes: tuple[int, ...], run: Forward) -> None:
        """See `SplitPasses.check`. The modules compute with rounded weights, too."""
        bits = ROUNDINGS[self.quantization].bits if self.quantization else None
        with rounding_layers(backbone.model, bits):
            if not self.is_ordered:
                super().check(backbone, axes, run)
                return
            check_pass(backbone, run, 2, 3, axes, self._bound)
        check_order(backbone, self, axes)

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """See `Passes.run`. A chain of more than `BLOCK` tokens is read in parts."""
        width = tokens.shape[1]
        if not self.is_ordered or width <= BLOCK:
            return super().run(tokens, position_ids, cache, mask)
        if mask is not None and not _is_causal(mask, cache.lengths, width):
            raise UnsupportedModelError(
                f"passes with {self.rounding[0]} read trees of at most {BLOCK} tokens"
            )
        logits = []
        lengths = cache.lengths
        try:
            for start in range(0, width, BLOCK):
                end = min(start + BLOCK, width)
                part, places = tokens[:, start:end], position_ids[..., start:end]
                causal = torch.ones(end - start, end - start, dtype=torch.bool).tril()
                seen = trees.attention_mask(cache.lengths, causal)
                found = super().run(part, places, cache, seen)
                if found is None:
                    return None
                logits.append(found)
                cache.lengths = [length + end for length in lengths]
        finally:
            cache.lengths = lengths
        return torch.cat(logits, 1)

    def check_modules(self, name: str) -> None:
        """See `Passes.check_modules`."""
        if self.rounding:
            raise UnsupportedModelError(
                f"{name} runs with {self.rounding[0]}, and this pass would run by its modules, "
                "which round nothing: its attention or hidden states are read, or its prompt has "
                "features between layers; take another method, or no quantization"
            )

    def of_pixels(self, model: Any) -> Any:
        """See `Passes.of_pixels`. The vision tower has 8 bits where activations are rounded."""
        if not rounds_activations(self.quantization):
            return None
        if self._pixel_products is None:
            from draftlens.passes.pixel_products import PixelProducts

            self._pixel_products = PixelProducts(model, integer_product)
        return self._pixel_products.computing()

    def rounded_model(self, model: Any) -> Any:
        """See `Passes.rounded_model`."""
        if not self.quantization:
            return model
        rounding = ROUNDINGS[self.quantization]
        return None if rounding.has_activations else with_rounded_weights(model, rounding.bits)

    def _start_graph(
        self, backbone: Backbone, axes: tuple[int, ...], graph: Any, file: GraphFile | None
    ) -> None:
        options = _options()
        if file is not None and not self.has_changed:
            options |= file.blob_options(backbone)
        if self.quantization:
            rounding = ROUNDINGS[self.quantization]
            layers = layer_bits(backbone.model, rounding.bits)
            group = round_products(graph, rounding.bits, layers)
            if not rounding.has_activations:
                group = 0
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
        self.start(backbone, axes, _function_of(core().compile_model(graph, "CPU", options)))


def rounds_activations(quantization: str) -> bool:
    return bool(quantization) and ROUNDINGS[quantization].has_activations


def _function_of(compiled: Any) -> Function:
    """Calls a compiled graph. Inputs that lie where those of the last call did are not given
    again: most are the buffers of a cache."""
    import openvino

    request = compiled.create_infer_request()
    outputs = range(len(compiled.outputs))
    places: dict[int, Any] = {}

    def infer(inputs: Sequence[Tensor]) -> list[Tensor]:
        for index, tensor in enumerate(inputs):
            place = (tensor.data_ptr(), tensor.shape)
            if places.get(index) != place:
                given = openvino.Tensor(tensor.numpy(), shared_memory=True)
                request.set_input_tensor(index, given)
                places[index] = place
        request.infer({}, share_outputs=True)
        return [torch.from_numpy(request.get_output_tensor(index).data) for index in outputs]

    return infer


def integer_product(matrix: RoundedMatrix, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    """The product of rows ``[n, in]`` with a matrix of 8 bits, plus a bias: float32 ``[n, out]``.
    Activations are rounded in groups, the last of which may be smaller."""
    import openvino
    from openvino import opset13

    width, inputs = matrix.shape
    states = opset13.parameter([-1, inputs], openvino.Type.f32)
    outputs = opset13.matmul(states, constant_of(matrix), False, True)
    if bias is not None:
        outputs = opset13.add(outputs, opset13.constant(bias.detach().float().numpy()[None]))
    options = {
        **_options(),
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": next(size for size in GROUPS if size <= inputs),
    }
    graph = openvino.Model([outputs], [states])
    request = core().compile_model(graph, "CPU", options).create_infer_request()

    def product(rows: Tensor) -> Tensor:
        found = torch.empty(len(rows), width)
        request.set_input_tensor(openvino.Tensor(rows.detach().numpy(), shared_memory=True))
        request.set_output_tensor(openvino.Tensor(found.numpy(), shared_memory=True))
        request.infer()
        return found

    return product


def _options() -> dict[str, Any]:
    return {
        # Float32 models run in bfloat16 on processors that have it unless this is said.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }


@cache
def multiplies_int8() -> bool:
    """Whether the processor has instructions that multiply and add integers of 8 bits (VNNI).
    Without them 8-bit passes over six and more tokens are slower than those in float32."""
    if not hasattr(torch.cpu, "get_capabilities"):  # before torch 2.12
        return torch.cpu._is_vnni_supported()
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni"))


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
    """The graph of a model's passes on disk, for positions with leading sizes `axes`, with
    `OrderedAttention` or without.

    Weights are not in it: each start binds the memory of the loaded model. Folders and files that
    another user owns or may write are refused, as with compiled code.
    """

    def __init__(self, folder: Path, axes: tuple[int, ...], is_ordered: bool) -> None:
        form = "x".join(map(str, axes))
        stem = f"openvino-{version('openvino')}-{FORMAT}{'-axes' if axes else ''}{form}"
        if is_ordered:
            stem += "-ordered"
        self.path = folder / f"{stem}.xml"
        self.blobs = folder / stem

    @classmethod
    def of(cls, backbone: Backbone, axes: tuple[int, ...], is_ordered: bool) -> GraphFile | None:
        """None where no private folder can be had."""
        try:
            return cls(folder_of(backbone, Skeleton.of(backbone)), axes, is_ordered)
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
        if weight_bytes(backbone) > SMALL_MODEL:
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
def traced_graph(backbone: Backbone, axes: tuple[int, ...], is_ordered: bool = False) -> Any:
    """The model's pass as a graph of OpenVINO, whose constants are the memory of its weights, with
    `OrderedAttention` or without.

    Raises:
        UnsupportedModelError: a loop of the model depends on values of a pass.
        Exception: whatever tracing and conversion raise on code that they do not support.
    """
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    inputs = example_inputs(backbone, axes, is_ordered)
    module = SplitPass(backbone, is_ordered).eval()
    # Tracing is deprecated in favour of torch.export, which takes minutes here.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        # A loop over experts would have only those that the tokens of the example choose.
        warnings.filterwarnings("always", "Iterating over a tensor")
        traced = torch.jit.trace(module, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        if caught:
            raise UnsupportedModelError(
                "its layers run over experts that tokens choose, which a trace cannot follow"
            )
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
        layer = rounded_layer(backbone.model, name)
        if layer is None:
            values = op.Constant(tensors[name].detach().numpy(), shared_memory=True)
        else:
            values = constant_of(layer.matrix, is_kept=True)
        values.set_friendly_name(name)
        _replace(weight, values)
        graph.remove_parameter(weight)
    graph.validate_nodes_and_infer_types()


def round_products(graph: Any, bits: int, layers: Mapping[str, int] | None = None) -> int:
    """Round the matrices of products, in place: OpenVINO keeps them so, and a pass reads a quarter
    or an eighth of the bytes. Returns the size of groups of activations that suits all.

    Args:
        graph: of a pass.
        bits: of the weights.
        layers: bits of layers by name (`layer_bits`), where they have others.
    """
    used = {f"{name}.weight": each for name, each in (layers or {}).items()}
    head = _product_of_logits(graph)
    widths = set()
    for product in list(_of_type(graph, "MatMul")):
        matrix = product.input_value(1).get_node()
        if not product.get_attributes()["transpose_b"] or len(matrix.output(0).partial_shape) != 2:
            continue
        widths.add(matrix.shape[1])
        if matrix.get_type_name() != "Constant":  # it is rounded already
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the array is read-only, and it is only read
            values = torch.from_numpy(matrix.data)
        is_head = product.get_friendly_name() == head
        own = 8 if is_head else used.get(matrix.get_friendly_name(), bits)
        rounded = RoundedMatrix.of(values, own)
        product.input(1).replace_source_output(constant_of(rounded).output(0))
    return group_of(widths)


def _product_of_logits(graph: Any) -> str:
    """The name of the output head's product."""
    node = graph.get_results()[0].input_value(0).get_node()
    while node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node()
    return str(node.get_friendly_name())


def constant_of(matrix: RoundedMatrix, is_kept: bool = False) -> Any:
    """The node that computes a matrix ``[out, in]`` from its integers and scales, which OpenVINO
    makes a part of the product.

    Args:
        matrix: of a product.
        is_kept: whether its tensors live as long as the node; arrays of 8 bits do so in any case.
    """
    import openvino
    from openvino import op, opset13

    scales = op.Constant(matrix.scales.numpy(), shared_memory=True)
    if matrix.zeros is None:
        integers = op.Constant(matrix.integers.numpy(), shared_memory=True)
        return opset13.multiply(opset13.convert(integers, "f32"), scales)
    shape = openvino.Shape([*matrix.scales.shape[:2], matrix.shape[1] // matrix.scales.shape[1]])
    packed = openvino.Tensor(matrix.integers.numpy(), shape, openvino.Type.u4)
    integers = op.Constant(packed, shared_memory=is_kept)
    zeros = op.Constant(matrix.zeros.numpy(), shared_memory=True)
    distances = opset13.subtract(opset13.convert(integers, "f32"), opset13.convert(zeros, "f32"))
    wide = opset13.multiply(distances, scales)
    return opset13.reshape(wide, opset13.constant(list(matrix.shape)), False)


def _is_causal(mask: Tensor, lengths: Sequence[int], width: int) -> bool:
    """Whether each new token of a pass attends to all that precede it."""
    new = [row[0, :, end : end + width] for row, end in zip(mask, lengths, strict=True)]
    return all(torch.equal(each, torch.ones_like(each).tril()) for each in new)


@torch.inference_mode()
def check_order(backbone: Backbone, passes: SplitPasses, axes: tuple[int, ...]) -> None:
    """Compare passes of different sizes, which read the same tokens, bit by bit.

    Raises:
        UnsupportedModelError: logits depend on the size.
    """
    ids = torch.arange(1, 1 + 2 * (2 + CHECKED)).reshape(2, -1) % backbone.vocab_size
    alone = _read_by_parts(backbone, passes, ids[:1], axes, 1)
    for rows, size in ((1, 3), (1, CHECKED), (2, CHECKED)):
        found = _read_by_parts(backbone, passes, ids[:rows], axes, size)
        if not torch.equal(found[:1], alone):
            raise UnsupportedModelError(
                "its logits depend on the number of tokens in a pass, as products of rounded "
                "activations are no sums of integers on this processor (it needs VNNI) or in "
                f"matrices with fewer than {GROUPS[-1]} inputs"
            )


def _read_by_parts(
    backbone: Backbone, passes: SplitPasses, ids: Tensor, axes: tuple[int, ...], size: int
) -> Tensor:
    """Logits of tokens after a prompt of two, in passes over `size` of each row."""
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=CHECKED)
    rows = len(ids)
    positions = prompt.position_ids.expand(*axes, rows, -1)
    passes.read(replace(prompt, position_ids=positions), cache, 1)
    cache.advance(prompt.lengths)
    logits = []
    for start in range(0, CHECKED, size):
        part = ids[:, 2 + start : 2 + start + size]
        width = part.shape[1]
        steps = torch.arange(start, start + width).expand(rows, -1)
        positions = prompt.positions(steps).expand(*axes, rows, width)
        causal = torch.ones(width, width, dtype=torch.bool).tril()
        found = passes.run(part, positions, cache, trees.attention_mask(cache.lengths, causal))
        assert found is not None
        logits.append(found)
        cache.advance(width)
    return torch.cat(logits, 1)


def _of_type(graph: Any, name: str) -> Iterator[Any]:
    return (node for node in graph.get_ops() if node.get_type_name() == name)


def _replace(old: Any, new: Any) -> None:
    for reader in old.output(0).get_target_inputs():
        reader.replace_source_output(new.output(0))


def _new_graph(
    backbone: Backbone, axes: tuple[int, ...], file: GraphFile | None, is_ordered: bool
) -> tuple[Any, GraphFile | None]:
    """A graph that is traced and, where its weights can be left out, kept in the file; else None in
    place of the file."""
    with without_values(backbone.model):
        graph = traced_graph(backbone, axes, is_ordered)
        is_free = unbind(graph, backbone)
    if is_free and file is not None:
        try:
            file.write(graph)
        except (OSError, RuntimeError) as error:
            _log.info("the graph of %s is not kept: %s", backbone.name, error)
        else:
            # As later starts read it, so that the compiled form has the same hash.
            stored = file.read(backbone)
            if stored is not None:
                return stored, file
    bind(graph, backbone)
    return graph, None
