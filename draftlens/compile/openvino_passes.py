"""Passes by OpenVINO, which reads the weights once for up to about eight tokens."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from draftlens.compile.inputs import check_pass, slots_of
from draftlens.compile.openvino_graph import GraphFile, bind, core, quantize, traced_graph, unbind
from draftlens.compile.skeleton import kept_by_layers, named_tensors
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EndsChain, Passes
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

_log = logging.getLogger("draftlens")

QUANTIZED_BOUND = 0.5
"""Largest difference of 8-bit weights' logits, relative to the largest: more is a mistake."""

PART = 256
"""Most tokens of a row that are read at once."""

SCORES = 2**24
"""Most pairs of a query and a key in all heads of a layer: 64 MiB in float32."""

LEAST_PART = 64
"""A prompt whose parts would be smaller is read by the modules, whose attention keeps no pairs."""

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
        axes: leading sizes of its positions: empty, or the axes of M-RoPE. Passes with others are
            compiled when they first run.
        quantization: `int8` for 8-bit weights in products, which changes logits: for drafts.

    Attributes:
        seconds: that tracing (or reading the graph) and compiling took.
        is_stored: whether the graph was on disk.

    Raises:
        UnsupportedModelError: its logits differ from those of the modules.
        Exception: whatever tracing and conversion raise on code that they do not support.
    """

    def __init__(
        self, backbone: Backbone, axes: tuple[int, ...] = (), quantization: str = ""
    ) -> None:
        self._model = weakref.ref(backbone.model)
        self.quantization = quantization
        self.seconds = 0.0
        self.is_stored = False
        self._has_changed = False
        self._requests: dict[tuple[int, ...], Any] = {}
        self._layers = kept_by_layers(backbone)
        self._num_heads = backbone.text_config.num_attention_heads
        self._weights = _fingerprint(backbone.model)
        self._one_at_a_time = threading.RLock()
        self._compile(axes)

    @property
    def label(self) -> str:
        return f"openvino {self.quantization}".strip()

    def begin(self) -> None:
        """Compile anew if the weights have changed, since the engine has a copy of them."""
        model = self._model()
        weights = self._weights if model is None else _fingerprint(model)
        with self._one_at_a_time:
            if weights != self._weights:
                self._weights = weights
                self._has_changed = True
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
        slots = slots_of(cache.lengths, width, tokens.device)
        visible = _visible(mask, cache.lengths, slots, buffers[0][0].shape[2])
        readers = torch.arange(tokens.numel())
        inputs = (self._embeds(tokens), position_ids, visible, readers)
        return self._append(inputs, slots, buffers).view(*tokens.shape, -1)

    def read(self, prompt: Prompt, cache: KVCache, num_logits: int) -> Tensor | None:
        """See `Passes.read`. Attention is written out in the graph, so a prompt is read in parts of
        at most `SCORES` pairs of a query and a key."""
        rows, length = prompt.embeds.shape[:2]
        reach = max(cache.lengths) + length
        size = min(PART, SCORES // (self._num_heads * rows * reach))
        if size < LEAST_PART or torch.is_autocast_enabled("cpu"):
            return None
        if not self._is_ready(prompt.position_ids.shape[:-2]):
            return None
        # The last tokens of each row, as indices into the rows.
        last = torch.tensor(prompt.lengths)[:, None] - num_logits + torch.arange(num_logits)
        logits: Tensor | None = None
        lengths = cache.lengths
        try:
            for start in range(0, length, size):
                end = min(start + size, length)
                is_here = (start <= last) & (last < end)
                readers = (last - start + (end - start) * torch.arange(rows)[:, None])[is_here]
                found = self._read_part(prompt, cache, start, end, readers)
                if logits is None:
                    logits = found.new_empty(rows, num_logits, found.shape[-1])
                logits[is_here] = found
                cache.lengths = [cached + end - start for cached in cache.lengths]
        finally:
            cache.lengths = lengths
        return logits

    def _read_part(
        self, prompt: Prompt, cache: KVCache, start: int, end: int, readers: Tensor
    ) -> Tensor:
        """Append tokens `start` to `end` of each row; logits after `readers`, as in `SplitPass`."""
        embeds = prompt.embeds[:, start:end]
        rows, width = embeds.shape[:2]
        if not all(layer.is_initialized for layer in cache.layers):
            self._reserve(cache)
        buffers = cache.whole_buffers(max(cache.lengths) + width)
        assert buffers is not None
        reach = max(*cache.lengths, 1)  # one slot that no token attends to where all are empty
        visible = torch.ones(rows, 1, width, reach + width, dtype=torch.bool)
        visible[..., :reach] = (
            torch.arange(reach) < torch.tensor(cache.lengths)[:, None, None, None]
        )
        visible[..., reach:] = torch.ones(width, width, dtype=torch.bool).tril()
        slots = slots_of(cache.lengths, width, embeds.device)
        inputs = (embeds, prompt.position_ids[..., start:end], visible, readers)
        return self._append(inputs, slots, buffers)

    def _reserve(self, cache: KVCache) -> None:
        """Make the buffers of an empty cache."""
        rows = len(cache.lengths)
        for layer, facts in zip(cache.layers, self._layers, strict=True):
            keys = torch.zeros(rows, facts.heads, 1, facts.key_width, dtype=facts.dtype)
            values = torch.zeros(rows, facts.heads, 1, facts.value_width, dtype=facts.dtype)
            layer.update(keys, values)

    def _append(
        self,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor],
        slots: Tensor,
        buffers: tuple[list[Tensor], list[Tensor]],
    ) -> Tensor:
        """Run a pass with the first four inputs of `SplitPass`, write its keys and values to
        `slots` ``[B, T]`` of the buffers, and return its logits."""
        embeds, _, visible, _ = inputs
        reach = visible.shape[-1] - embeds.shape[1]
        states = [*buffers[0], *buffers[1]]
        cached = states
        if reach < states[0].shape[2]:
            cached = [layer[:, :, :reach].contiguous() for layer in states]
        with self._one_at_a_time:
            logits, *new_states = self._infer(
                (*(tensor.contiguous() for tensor in inputs), *cached)
            )
            rows = torch.arange(len(slots))[:, None]
            for layer, new in zip(states, new_states, strict=True):
                layer[rows, :, slots] = new.transpose(1, 2)
            return logits.clone()

    def _embeds(self, tokens: Tensor) -> Tensor:
        model = self._model()
        assert model is not None
        embeds: Tensor = model.get_input_embeddings()(tokens)
        return embeds

    def run_chain(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cache: KVCache,
        count: int,
        vocab_size: int,
        ends: EndsChain | None = None,
    ) -> Tensor | None:
        """See `Passes.run_chain`."""
        lengths = cache.lengths
        chosen = []
        try:
            for step in range(count):
                logits = self.run(tokens, position_ids + step, cache, None)
                if logits is None:
                    return None
                logits = logits[..., :vocab_size]
                tokens = logits.argmax(-1)
                chosen.append(tokens)
                if ends is not None and ends(logits, tokens):
                    break
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
        file = GraphFile.of(backbone, axes)
        graph = None if file is None else file.read(backbone)
        self.is_stored = graph is not None
        if graph is not None:
            try:
                self._start(backbone, axes, graph, file)
            except Exception as error:  # of any kind: it is traced again
                _log.info("the graph of %s on disk is not used: %s", backbone.name, error)
                graph = None
        if graph is None:
            self.is_stored = False
            self._start(backbone, axes, *_new_graph(backbone, axes, file))
        self.seconds += time.perf_counter() - began

    def _start(
        self, backbone: Backbone, axes: tuple[int, ...], graph: Any, file: GraphFile | None
    ) -> None:
        """Compile a graph and compare its logits with those of the modules."""
        options = {
            # Float32 models run in bfloat16 on processors that have it unless this is said.
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        if file is not None and not self._has_changed:
            options |= file.blob_options(backbone)
        if self.quantization:
            quantize(graph)
        compiled = core().compile_model(graph, "CPU", options)
        bound = QUANTIZED_BOUND if self.quantization else None
        try:
            self._requests[axes] = compiled.create_infer_request()
            check_pass(backbone, self.run, 2, 3, axes, bound)
            check_pass(backbone, self.run, 1, 1, axes, bound)
        except Exception:
            self._requests[axes] = None  # never run what differs from the modules
            raise


def _new_graph(
    backbone: Backbone, axes: tuple[int, ...], file: GraphFile | None
) -> tuple[Any, GraphFile | None]:
    """A graph that is traced and, where its weights can be left out, kept in the file; else None in
    place of the file."""
    graph = traced_graph(backbone, axes)
    if file is None:
        return graph, None
    if unbind(graph, backbone):
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
