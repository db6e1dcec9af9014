"""Decode forwards by OpenVINO, which reads the weights once for up to about eight tokens."""

from __future__ import annotations

import logging
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.compile.inputs import check_pass, slots_of
from draftlens.compile.skeleton import named_tensors
from draftlens.compile.split_pass import SplitPass
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import Passes
from draftlens.models.kv_cache import KVCache

_log = logging.getLogger("draftlens")

ROWS, WIDTH, CAPACITY = 2, 3, 96
"""Sizes of the tensors that a pass is traced with. Their dimensions are variables afterwards."""

SAMPLES = 8
"""Elements of each weight that are compared to notice that a model has changed."""


def openvino_refusal(backbone: Backbone) -> str:
    """Why OpenVINO does not run the passes of a model; empty if it does."""
    if find_spec("openvino") is None:
        return 'it needs OpenVINO: pip install "draftlens[openvino]"'
    if backbone.device.type != "cpu":
        return f"the model is on {backbone.device}, and OpenVINO runs on the CPU here"
    if backbone.dtype != torch.float32:
        name = str(backbone.dtype).removeprefix("torch.")
        return f"the model is {name}, and OpenVINO's passes are checked in float32 only"
    return ""


class OpenVinoPasses(Passes):
    """Runs passes of a model by OpenVINO.

    Keys and values stay in the buffers of the cache: OpenVINO reads them in place and returns those
    of the new tokens. It keeps a copy of the weights in its own layout.

    Args:
        backbone: the model, in float32 on the CPU, which is not kept alive.

    Attributes:
        seconds: that tracing and compiling took.

    Raises:
        UnsupportedModelError: its logits differ from those of the modules.
        Exception: whatever tracing and conversion raise on code that they do not support.
    """

    label = "openvino"

    def __init__(self, backbone: Backbone) -> None:
        self._model = weakref.ref(backbone.model)
        self.seconds = 0.0
        self._requests: dict[tuple[int, ...], Any] = {}
        self._weights = _fingerprint(backbone.model)
        self._one_at_a_time = threading.RLock()
        self._compile(())

    def begin(self) -> None:
        """Compile anew if the weights have changed, since the engine has a copy of them."""
        model = self._model()
        weights = self._weights if model is None else _fingerprint(model)
        with self._one_at_a_time:
            if weights != self._weights:
                self._weights = weights
                self._requests.clear()

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        """See `Passes.run`."""
        width = tokens.shape[1]
        if torch.is_autocast_enabled("cpu") or not self._is_ready(position_ids.shape[:-2]):
            return None
        buffers = cache.whole_buffers(max(cache.lengths) + width)
        if buffers is None:
            return None
        keys, values = buffers
        slots = slots_of(cache.lengths, width, tokens.device)
        visible = _visible(mask, cache.lengths, slots, keys[0].shape[2])
        inputs = (tokens.contiguous(), position_ids.contiguous(), visible, *keys, *values)
        with self._one_at_a_time:
            logits, *states = self._infer(inputs)
            rows = torch.arange(len(slots))[:, None]
            for buffer, new in zip([*keys, *values], states, strict=True):
                buffer[rows, :, slots] = new.transpose(1, 2)
            return logits.clone()

    def run_chain(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, count: int, vocab_size: int
    ) -> Tensor | None:
        """See `Passes.run_chain`."""
        lengths = cache.lengths
        chosen = []
        try:
            for step in range(count):
                logits = self.run(tokens, position_ids + step, cache, None)
                if logits is None:
                    return None
                tokens = logits[..., :vocab_size].argmax(-1)
                chosen.append(tokens)
                cache.lengths = [length + 1 for length in cache.lengths]
        finally:
            cache.lengths = lengths
        return torch.cat(chosen, 1)

    def _infer(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        import openvino

        shared = [openvino.Tensor(tensor.numpy(), shared_memory=True) for tensor in inputs]
        outputs = self._requests[tuple(inputs[1].shape[:-2])].infer(shared, share_outputs=True)
        return [torch.from_numpy(outputs[index]) for index in range(len(outputs))]

    def _is_ready(self, axes: tuple[int, ...]) -> bool:
        """Whether passes whose positions have these leading sizes can run, compiled if need be.
        Where that fails in an answer, the modules go on."""
        axes = tuple(axes)
        with self._one_at_a_time:
            if axes not in self._requests:
                try:
                    self._compile(axes)
                except Exception as error:  # conversion raises whatever its parts raise
                    _log.warning("passes do not run by OpenVINO: %s", error)
            return self._requests[axes] is not None

    def _compile(self, axes: tuple[int, ...]) -> None:
        """Compile the passes whose positions have these leading sizes."""
        began = time.perf_counter()
        model = self._model()
        assert model is not None
        backbone = Backbone.of(model)
        self._requests[axes] = None
        request = _compiled(backbone, axes).create_infer_request()
        try:
            self._requests[axes] = request
            check_pass(backbone, self.run, 2, 3, axes)
            check_pass(backbone, self.run, 1, 1, axes)
        except Exception:
            self._requests[axes] = None  # never run what differs from the modules
            raise
        self.seconds += time.perf_counter() - began


@torch.inference_mode()
def _compiled(backbone: Backbone, axes: tuple[int, ...]) -> Any:
    """The model's pass as a compiled model of OpenVINO."""
    import openvino
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    keys, values = _example(backbone)
    tokens = torch.zeros(ROWS, WIDTH, dtype=torch.long)
    positions = torch.zeros(*axes, ROWS, WIDTH, dtype=torch.long)
    visible = torch.ones(ROWS, 1, WIDTH, CAPACITY + WIDTH, dtype=torch.bool)
    inputs = (tokens, positions, visible, *keys, *values)
    module = SplitPass(backbone.model, len(keys), backbone.divisor).eval()
    with warnings.catch_warnings():
        # Tracing is deprecated in favour of torch.export, which takes minutes here.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(module, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        # `openvino.convert_model` does the same and reports to its makers over the network.
        frontend = FrontEndManager().load_by_framework("pytorch")
        decoder = TorchScriptPythonDecoder(traced, example_input=inputs)
        model = frontend.convert(frontend.load(decoder))
    options = {
        # Float32 models run in bfloat16 on processors that have it unless this is said.
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",
    }
    return openvino.Core().compile_model(model, "CPU", options)


def _example(backbone: Backbone) -> tuple[list[Tensor], list[Tensor]]:
    """Keys and values of each layer to trace with."""
    prompt = backbone.text_prompt(torch.ones(ROWS, 2, dtype=torch.long))
    cache = backbone.new_cache(prompt, room=CAPACITY)
    backbone.prefill(prompt, cache)
    buffers = cache.whole_buffers(CAPACITY)
    assert buffers is not None
    keys, values = ([states[:, :, :CAPACITY].contiguous() for states in part] for part in buffers)
    return keys, values


def _visible(mask: Tensor | None, lengths: Sequence[int], slots: Tensor, capacity: int) -> Tensor:
    """The mask of `SplitPass`, bool ``[B, 1, T, capacity + T]``.

    Args:
        mask: as for `Backbone.forward`, over the slots of the cache with the new tokens in theirs.
        lengths: cached tokens of each row.
        slots: of the new tokens, int64 ``[B, T]``.
        capacity: slots of the buffers.
    """
    rows, width = slots.shape
    if mask is None:
        mask = torch.ones(rows, 1, width, max(lengths) + width, dtype=torch.bool)
    mask = mask.expand(rows, 1, width, -1)
    reach = mask.shape[-1]
    visible = torch.zeros(rows, 1, width, capacity + width, dtype=torch.bool)
    ends = torch.tensor(lengths)[:, None, None, None]
    visible[..., :reach] = mask & (torch.arange(reach) < ends)
    visible[..., capacity:] = mask.gather(3, slots[:, None, None].expand(-1, 1, width, -1))
    return visible


def _fingerprint(model: nn.Module) -> int:
    """Changes with the weights of a model: with their memory, their versions, or some elements."""
    parts: list[Any] = []
    for tensor in named_tensors(model).values():
        flat = tensor.detach().flatten()
        sample = flat[:: max(1, flat.numel() // SAMPLES)]
        version = 0 if tensor.is_inference() else tensor._version
        parts += [tensor.data_ptr(), version, tuple(sample.tolist())]
    return hash(tuple(parts))
