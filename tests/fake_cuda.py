"""A CUDA device that this machine need not have: tensors say that they are on it, and the CPU
computes their values.

Inside `FakeCuda` an operation that mixes tensors of the two devices is refused, as CUDA refuses it,
and what waits for the device to send values to Python is counted. Kernels, streams and memory are
not imitated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from draftlens.prefill.spava import kernels

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")

TAKES_CPU_INDICES = frozenset({"index", "index_put_", "__getitem__", "__setitem__", "copy_"})
"""Operations in which CUDA allows tensors of the CPU."""

TRANSFERS = frozenset(
    {"tolist", "item", "__int__", "__float__", "__bool__", "__index__", "__contains__"}
    | {"equal", "allclose", "nonzero", "masked_select", "unique"}
)
"""Operations that wait for the device, beside moves to the CPU."""


class MixedDevices(RuntimeError):  # noqa: N818 - as torch raises it
    """Tensors of two devices met in one operation."""


class CudaTensor(Tensor):
    """A tensor on the pretended device; `inner` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> CudaTensor:
        made: CudaTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CUDA,
            requires_grad=False,
        )
        made.inner = inner
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"CudaTensor({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> CudaTensor:
        return CudaTensor(self.inner.clone())

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {}, func._schema.name.split("::")[-1])


class FakeCuda(TorchFunctionMode):
    """The context in which the device exists; `transfers` are the operations that waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.transfers: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", None) or str(func)
        first = args[0] if args else None
        if name == "__get__":  # an attribute
            return func(*args, **kwargs)
        if isinstance(first, Tensor) and name in ("to", "cuda", "cpu"):
            return self._move(name, first, list(args[1:]), dict(kwargs))
        source = args[-1] if name in ("copy_", "__setitem__") else first
        if isinstance(source, CudaTensor) and not isinstance(first, CudaTensor):
            self.transfers.append(name)
        if isinstance(first, CudaTensor):
            if name in ("numpy", "__array__"):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            if name in TRANSFERS:
                self.transfers.append(name)
        return _run(func, args, kwargs, name)

    def _move(self, name: str, tensor: Tensor, rest: list[Any], settings: dict[str, Any]) -> Tensor:
        """`Tensor.to`, `cuda` and `cpu`."""
        device = {"cuda": CUDA, "cpu": CPU}.get(name, settings.pop("device", None))
        if rest and isinstance(rest[0], (str, torch.device)):
            device = rest.pop(0)
        elif rest and isinstance(rest[0], Tensor):
            device, rest[0] = rest[0].device, rest[0].dtype
        settings.pop("non_blocking", None)
        was_there, values = isinstance(tensor, CudaTensor), _values(tensor)
        is_there = was_there if device is None else torch.device(device).type == "cuda"
        if was_there and not is_there:
            self.transfers.append("cpu")
        moved = values.to(*rest, **settings) if rest or settings else values
        if moved is values and is_there == was_there:
            return tensor
        moved = moved.clone() if moved is values else moved
        return CudaTensor(moved) if is_there else moved


def on_cuda(model: Any) -> Any:
    """Move the parameters and buffers of a model."""
    for module in model.modules():
        for name, weight in list(module._parameters.items()):
            if weight is not None:
                moved = nn.Parameter(CudaTensor(weight.data), requires_grad=False)
                module._parameters[name] = moved
        for name, buffer in list(module._buffers.items()):
            if buffer is not None:
                module._buffers[name] = CudaTensor(buffer)
    return model


def moved(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The processor's output on the device."""
    return {
        name: CudaTensor(value) if isinstance(value, Tensor) else value
        for name, value in inputs.items()
    }


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Callable[[], FakeCuda]:
    """Opens the context; also that of threads, which enter it for themselves."""

    def stream(of: Any) -> AbstractContextManager[Any]:
        return FakeCuda()

    def run(self: threading.Thread) -> None:
        with FakeCuda():
            of_thread(self)

    def attention(query: Any, key: Any, value: Any, scaling: float, causal: bool) -> kernels.Part:
        part = kernels._on_cpu(query.inner, key.inner, value.inner, scaling, causal)
        return kernels.Part(CudaTensor(part.out), CudaTensor(part.lse))

    def to(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        devices = [each for each in args if isinstance(each, (str, torch.device))]
        if devices and torch.device(devices[0]).type == "cuda":
            return cast(nn.Module, on_cuda(self))
        return of_module(self, *args, **kwargs)

    of_thread, of_module = threading.Thread.run, nn.Module.to
    monkeypatch.setattr(nn.Module, "to", to)
    monkeypatch.setattr(threading.Thread, "run", run)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "no device")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (2**33, 2**33))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(kernels, "_KERNELS", {**kernels._KERNELS, "cuda": attention})
    return FakeCuda


def _values(value: Any) -> Any:
    return value.inner if isinstance(value, CudaTensor) else value


def _leaves(value: Any, found: list[Tensor]) -> list[Tensor]:
    """The tensors of nested arguments, as `torch.utils._pytree` finds them, in less time."""
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for each in value:
            _leaves(each, found)
    elif isinstance(value, dict):
        for each in value.values():
            _leaves(each, found)
    return found


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Nested arguments or results with other tensors."""
    if isinstance(value, Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)([_mapped(change, each) for each in value])
    if type(value) is dict:
        return {name: _mapped(change, each) for name, each in value.items()}
    if isinstance(value, (tuple, list, dict)) and not isinstance(
        value, torch.Size
    ):  # such as the results of `topk`
        return tree_map(lambda each: change(each) if isinstance(each, Tensor) else each, value)
    return value


def _run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Run an operation by the CPU. Its tensors are on the device that its tensors are on, or that
    the argument `device` names."""
    tensors = _leaves((args, kwargs), [])
    there = [each for each in tensors if isinstance(each, CudaTensor)]
    device = kwargs.get("device")
    is_there = bool(there) if device is None else torch.device(device).type == "cuda"
    if not there and not is_there:
        return func(*args, **kwargs)
    if there:
        _check_devices(name, args, tensors)
    if device is not None:
        kwargs = {**kwargs, "device": CPU}
    kept = {id(each.inner): each for each in there}  # in place, or returned as they are
    result = func(*_mapped(_values, tuple(args)), **_mapped(_values, dict(kwargs)))
    if not is_there:
        return result

    def placed(value: Tensor) -> Tensor:
        return kept[id(value)] if id(value) in kept else CudaTensor(value)

    return _mapped(placed, result)


def _check_devices(name: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise MixedDevices as CUDA does; scalars of the CPU are allowed everywhere."""
    elsewhere = [each for each in tensors if each.dim() and not isinstance(each, CudaTensor)]
    if not elsewhere:
        return
    has_indices = name != "copy_" and bool(_leaves(args[1:2], []))
    if name in TAKES_CPU_INDICES and not has_indices:
        return  # a copy, which may cross devices
    if name in TAKES_CPU_INDICES and isinstance(args[0], CudaTensor):
        elsewhere = [each for each in elsewhere if each is args[-1] and len(args) > 2]
    if elsewhere:
        shapes = [(str(each.device), tuple(each.shape)) for each in tensors]
        raise MixedDevices(f"{name} of tensors on two devices: {shapes}")
