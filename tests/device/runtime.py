"""`torch.cuda` of the simulated devices, and models that move to them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from draftlens.prefill.spava import kernels
from tests.device import streams
from tests.device.counts import within_modules
from tests.device.machine import MACHINE, DeviceMode, DeviceTensor
from tests.device.streams import Event, Stream, device_of

DEVICES = 2
MEMORY = 2**33
"""Bytes of each device."""


class Simulation:
    """What happens within `simulated`.

    Attributes:
        errors: what was refused, in all threads, and memory that was freed too soon.
    """

    def __init__(self) -> None:
        self.counts = MACHINE.counts
        self.errors = MACHINE.allocator.errors


@contextmanager
def simulated(visible: bool = False) -> Iterator[Simulation]:
    """The context in which the devices exist, in this thread and in those that it starts. At its
    end nothing may have been refused, unless `errors` was cleared.

    Args:
        visible: whether `torch.cuda.is_available` says so: what libraries remember of it would
            outlive the context.
    """
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
    MACHINE.reset()
    simulation = Simulation()
    with _patched(visible), _devices_of_thread():
        yield simulation
    if simulation.errors:
        raise AssertionError("\n".join(simulation.errors))


@contextmanager
def _devices_of_thread() -> Iterator[None]:
    """Entered by each thread for itself."""
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes its data on the CPU
    try:
        with DeviceMode():
            yield
    finally:
        torch._C._set_only_lift_cpu_tensors(lifts)


@contextmanager
def _patched(visible: bool) -> Iterator[None]:
    patches = [mock.patch.object(torch.cuda, name, value) for name, value in _cuda(visible).items()]
    patches += [
        mock.patch.object(nn.Module, "__call__", _counted(nn.Module.__call__)),
        mock.patch.object(nn.Module, "to", _moving(nn.Module.to)),
        mock.patch.object(nn.Module, "cuda", lambda module, device=None: module.to("cuda")),
        mock.patch.object(Tensor, "tolist", _arrived(Tensor.tolist)),
        mock.patch.object(Tensor, "numpy", _arrived(Tensor.numpy)),
        mock.patch.object(torch, "tensor", _with_items(torch.tensor)),
        mock.patch.object(torch, "as_tensor", _with_items(torch.as_tensor)),
        mock.patch.object(threading.Thread, "run", _in_mode(threading.Thread.run)),
        mock.patch.dict(kernels._KERNELS, {"cuda": _attention_with_sums}),
        mock.patch.object(
            nn.functional,
            "scaled_dot_product_attention",
            _attention(nn.functional.scaled_dot_product_attention),
        ),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()


def _cuda(visible: bool) -> dict[str, Any]:
    """What `torch.cuda` says of the devices."""

    def figure(value: Any) -> Callable[..., Any]:
        return lambda *_, **__: value

    def allocated(device: Any = None) -> int:
        return MACHINE.allocator.allocated.get(device_of(device), 0)

    def peak(device: Any = None) -> int:
        return MACHINE.allocator.peaks.get(device_of(device), 0)

    def reset_peak(device: Any = None) -> None:
        MACHINE.allocator.peaks[device_of(device)] = allocated(device)

    properties = SimpleNamespace(
        name="simulated", major=9, minor=0, total_memory=MEMORY, multi_processor_count=132
    )
    return {
        "_lazy_init": figure(None),
        "is_available": figure(visible),
        "is_initialized": figure(True),
        "is_bf16_supported": figure(True),
        "is_current_stream_capturing": figure(False),
        "device_count": figure(DEVICES if visible else 0),
        "current_device": streams.current_device,
        "set_device": streams.set_device,
        "device": _device,
        "get_device_name": figure("simulated"),
        "get_device_capability": figure((9, 0)),
        "get_device_properties": figure(properties),
        "mem_get_info": lambda device=None: (MEMORY - allocated(device), MEMORY),
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "max_memory_allocated": peak,
        "reset_peak_memory_stats": reset_peak,
        "empty_cache": figure(None),
        "Stream": Stream,
        "Event": Event,
        "stream": streams.on_stream,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "synchronize": streams.synchronize,
    }


@contextmanager
def _device(device: Any) -> Iterator[None]:
    before = streams.current_device()
    streams.set_device(device)
    try:
        yield
    finally:
        streams.set_device(before)


def _counted(call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with within_modules():
            return call(module, *args, **kwargs)

    return counted


def _moving(to: Callable[..., Any]) -> Callable[..., Any]:
    def moving(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        named = [each for each in args if isinstance(each, (str, torch.device, int))]
        device = kwargs.get("device", named[0] if named else None)
        if device is None or device_of(device).type != "cuda":
            return to(module, *args, **kwargs)
        dtypes = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)]
        return on_device(to(module, *dtypes) if dtypes else module, device)

    return moving


def _arrived(read: Callable[..., Any]) -> Callable[..., Any]:
    def checked(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if MACHINE.unread:
            MACHINE.check_arrived(tensor, read.__name__)
        return read(tensor, *args, **kwargs)

    return checked


def _with_items(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.tensor` reads tensors among its data without the dispatcher; each is a wait."""

    def read(item: Any) -> Any:
        return item.tolist() if isinstance(item, DeviceTensor) else item

    def made(data: Any, *args: Any, **kwargs: Any) -> Tensor:
        items = tree_map(read, data) if isinstance(data, (list, tuple)) else data
        return make(items, *args, **kwargs)

    return made


def _in_mode(run: Callable[..., None]) -> Callable[..., None]:
    def running(thread: threading.Thread) -> None:
        with _devices_of_thread():
            run(thread)

    return running


def _attention(attention: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One kernel, as on a GPU, where the CPU would choose among its own."""

    def device_attention(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not isinstance(query, DeviceTensor):
            return attention(query, *args, **kwargs)
        func = torch.ops.aten.scaled_dot_product_attention.default
        result: Tensor = MACHINE.run(func, (query, *args), kwargs)
        return result

    return device_attention


def _attention_with_sums(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, causal: bool
) -> kernels.Part:
    """SPAVA's kernel, which a GPU has in a library of its own."""
    part = kernels._on_cpu(query.cpu(), key.cpu(), value.cpu(), scaling, causal)
    return kernels.Part(part.out.to(query.device), part.lse.to(query.device))


def on_device(model: Any, device: Any = "cuda:0") -> Any:
    """Move the parameters and buffers of a model; weights that modules share stay shared."""
    place = device_of(device)
    pairs: dict[int, tuple[Tensor, Tensor]] = {}  # with the old ones, whose ids must stay theirs

    def moved_once(tensor: Tensor, is_parameter: bool) -> Tensor:
        if id(tensor) not in pairs:
            there = tensor.data.to(place)
            made = nn.Parameter(there, requires_grad=False) if is_parameter else there
            pairs[id(tensor)] = tensor, made
        return pairs[id(tensor)][1]

    for module in model.modules():
        for tensors, is_parameter in ((module._parameters, True), (module._buffers, False)):
            for name, tensor in list(tensors.items()):
                if tensor is not None and tensor.device != place:
                    tensors[name] = moved_once(tensor, is_parameter)
    return model


def copied(model: Any, device: Any = "cuda:0") -> Any:
    """A copy of a model on a device."""
    return on_device(copy.deepcopy(model), device)


def moved(inputs: Mapping[str, Any], device: Any = "cuda:0") -> dict[str, Any]:
    """The processor's output on a device."""
    return {
        name: value.to(device_of(device)) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }
