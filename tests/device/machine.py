"""Tensors of the devices, and how an operator runs on them."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device import streams
from tests.device.counts import Counts
from tests.device.operators import (
    COPIES,
    INDEXED,
    KERNELS,
    PRODUCTS,
    STRICT,
    SYNCHRONIZING,
    Operator,
    operator_of,
)
from tests.device.streams import HOST, Memory, Stream, StreamError, current_stream, device_of

__all__ = ["MACHINE", "DeviceError", "DeviceMode", "DeviceTensor", "StreamError"]

CPU = torch.device("cpu")
CUDA_ONLY = "can't convert {} device type tensor to numpy. Use Tensor.cpu() first"


def tensors_in(values: Any, found: list[Tensor]) -> list[Tensor]:
    """The tensors of arguments, lists of them included: a few times as fast as a pytree."""
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            tensors_in(value, found)
    return found


def inner_of(value: Any) -> Any:
    """A value with the CPU's tensors in place of the devices'."""
    if isinstance(value, DeviceTensor):
        return value.inner
    if isinstance(value, (list, tuple)):
        return type(value)(map(inner_of, value)) if type(value) in (list, tuple) else value
    return value


class DeviceError(RuntimeError):
    """An operation that CUDA refuses, such as one over tensors of two devices."""


class DeviceTensor(Tensor):
    """A tensor of a simulated device; `inner` holds its values, `memory` says who uses them."""

    inner: Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device, memory: Memory) -> DeviceTensor:
        # A view of a tensor that is no inference tensor must not be one either.
        with torch.inference_mode(False):
            made: DeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=device,
                requires_grad=False,
            )
        made.inner = inner
        made.memory = memory
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"DeviceTensor({self.inner!r}, device={str(self.device)!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceTensor:
        if id(self) not in memo:
            memo[id(self)] = self.clone()
        return memo[id(self)]  # type: ignore[no-any-return]

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if force:
            return self.cpu().numpy()
        raise TypeError(CUDA_ONLY.format(self.device))

    def __array__(self, dtype: Any = None) -> Any:
        raise TypeError(CUDA_ONLY.format(self.device))

    def record_stream(self, stream: Stream) -> None:
        self.memory.record_stream(stream)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return MACHINE.run(func, args, kwargs or {})


class DeviceMode(TorchDispatchMode):
    """Sees what is made on a device, and copies to it, in one thread."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return MACHINE.run(func, args, kwargs or {}, self)


class Allocator:
    """The bytes and errors of one simulation: what the collector frees later, with a traceback of
    an earlier test, is none of the next one's."""

    def __init__(self) -> None:
        self.allocated: Counter[torch.device] = Counter()
        self.peaks: Counter[torch.device] = Counter()
        self.errors: list[str] = []  # of all threads, some of which swallow exceptions

    def allocate(self, stream: Stream, nbytes: int) -> Memory:
        device = stream.device
        self.allocated[device] += nbytes
        self.peaks[device] = max(self.peaks[device], self.allocated[device])
        return Memory(stream, nbytes, self._free)

    def _free(self, memory: Memory) -> None:
        """Memory returns to the stream that made it, which may write it again at once."""
        self.allocated[memory.maker.device] -= memory.nbytes
        user = memory.unfinished()
        if user is not None:
            self.errors.append(
                f"memory of stream {memory.maker.number} is free while stream {user} may use it"
            )


class Machine:
    """Runs operators: checks devices and streams, counts, and lets the CPU compute."""

    def __init__(self) -> None:
        self.pinned: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self.reset()

    def reset(self) -> None:
        """Begin to count."""
        self.counts = Counts()
        self.allocator = Allocator()
        self.unread: dict[int, streams.Clock] = {}  # copies to the CPU that may not have arrived
        HOST.on_wait = self.counts.waited

    def run(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], mode: DeviceMode | None = None
    ) -> Any:
        leaves = tensors_in(kwargs.values(), tensors_in(args, []))
        there = [each for each in leaves if isinstance(each, DeviceTensor)]
        device = kwargs.get("device")
        if not there and (device is None or torch.device(device).type != "cuda"):
            return self._run_on_cpu(func, args, kwargs, leaves)
        operator = operator_of(func)
        if operator.decomposes:
            if mode is None:
                return func.decompose(*args, **kwargs)
            with mode:
                return func.decompose(*args, **kwargs)
        place = there[0].device if device is None else device_of(device)
        self._check_devices(operator, args, leaves)
        _check_types(operator, there)
        return _Call(self, func, operator, args, dict(kwargs), there, place).run()

    def _run_on_cpu(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
    ) -> Any:
        name = func._schema.name.split("::")[-1]
        if name == "_pin_memory":
            pinned = args[0].clone()
            self.pinned[_storage(pinned)] = pinned
            return pinned
        if name == "is_pinned":
            return _storage(args[0]) in self.pinned
        if self.unread:
            for tensor in tensors:
                self.check_arrived(tensor, name)
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        return func(*args, **kwargs)

    def check_arrived(self, tensor: Tensor, name: str) -> None:
        """Raise where the host reads a copy for which it has not waited."""
        seen = self.unread.get(_storage(tensor))
        if seen is None:
            return
        if not HOST.knows(seen):
            self.fail(StreamError(f"{name} reads a copy of a device before it has arrived"))
        del self.unread[_storage(tensor)]

    def fail(self, error: RuntimeError) -> None:
        """Raise an error that is reported at the end, too."""
        self.allocator.errors.append(f"{type(error).__name__}: {error}")
        raise error

    def _check_devices(
        self, operator: Operator, args: Sequence[Any], tensors: Sequence[Tensor]
    ) -> None:
        """Raise `DeviceError` as CUDA does; scalars of the CPU are allowed in most operators."""
        name = operator.name
        if name in COPIES or name == "set_":
            return
        if name in INDEXED:
            values = [args[0], *args[2:3]]
            indices = [each for each in args[1] if each is not None]
            if isinstance(args[0], DeviceTensor):
                tensors = [*values, *(each for each in indices if isinstance(each, DeviceTensor))]
        scalars_count = name in STRICT
        devices = {t.device for t in tensors if t.dim() or t.device != CPU or scalars_count}
        if len(devices) > 1:
            shapes = [(str(each.device), tuple(each.shape)) for each in tensors]
            self.fail(DeviceError(f"{name} of tensors on two devices: {shapes}"))


def _check_types(operator: Operator, tensors: Sequence[Tensor]) -> None:
    if operator.name in PRODUCTS and not all(each.is_floating_point() for each in tensors):
        raise DeviceError(f"{operator.name} is not implemented for integers on CUDA")


class _Call:
    """One operator over tensors of a device."""

    def __init__(
        self,
        machine: Machine,
        func: Any,
        operator: Operator,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        there: Sequence[DeviceTensor],
        place: torch.device,
    ) -> None:
        self.machine = machine
        self.func = func
        self.operator = operator
        self.args = args
        self.kwargs = kwargs
        self.there = there
        self.place = place
        self.written = self._find_written()

    def run(self) -> Any:
        if self.operator.name in COPIES and self._crosses():
            return self._copy()
        generator = self.kwargs.get("generator")
        if generator is not None and generator.device.type != self.place.type:
            self.machine.fail(DeviceError("Expected a 'cuda' device type for generator"))
        result = self._compute()
        self._count(result)
        return self._placed(result)

    def _compute(self) -> Any:
        named = {name: inner_of(value) for name, value in self._named().items()}
        return self.func(*map(inner_of, self.args), **named)

    def _named(self) -> dict[str, Any]:
        kwargs = dict(self.kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = CPU
        if kwargs.get("pin_memory"):
            raise DeviceError("only tensors of the CPU can be pinned")
        return kwargs

    def _find_written(self) -> list[DeviceTensor]:
        """Tensors that the operator changes."""
        operator = self.operator
        if not operator.written:
            return []
        places = [self.args[place] for place in operator.written if place < len(self.args)]
        named = [self.kwargs.get(name) for name in operator.written_names]
        tensors = tensors_in(named, tensors_in(places, []))
        return [each for each in tensors if isinstance(each, DeviceTensor)]

    def _count(self, result: Any) -> None:
        """Count kernels, bytes and waits, and check the order of streams."""
        operator, counts = self.operator, self.machine.counts
        if operator.is_view or operator.allocates:
            return
        written = self.written
        values = tensors_in((result,), [])
        sizes = [each.numel() for each in (written or values)]
        if sizes and not any(sizes):
            return
        is_scalar = operator.name == "_local_scalar_dense"
        if not is_scalar:
            read = sum(each.nbytes for each in self.there)
            made = sum(each.nbytes for each in (written or values))
            counts.launched(operator.name, self._kernels(), read, made)
        self._order(self.there, written)
        self._copy_indices()
        if operator.name in SYNCHRONIZING or self._has_mask():
            HOST.wait(operator.name, current_stream(self.place).seen)
        if is_scalar:
            counts.transfers[f"{self.place} to cpu"] += self.there[0].nbytes

    def _kernels(self) -> int:
        if self.operator.name != "scaled_dot_product_attention":
            return KERNELS.get(self.operator.name, 1)
        mask = self.kwargs.get("attn_mask", self.args[3] if len(self.args) > 3 else None)
        if mask is None:
            return 1
        groups = bool(self.kwargs.get("enable_gqa"))  # keys and values are repeated
        return 1 + (3 if mask.dtype == torch.bool else 0) + 2 * groups

    def _order(self, read: Iterable[DeviceTensor], written: Iterable[DeviceTensor]) -> None:
        """Check that the current stream may read and write these, and note that it does."""
        stream = current_stream(self.place)
        streams.ALL_STREAMS.add(stream)
        count = stream.advance()
        try:
            for tensor in read:
                tensor.memory.read(stream, count, self.operator.name)
            for tensor in written:
                tensor.memory.reads.pop(stream.number, None)
                tensor.memory.write(stream, count, self.operator.name)
        except StreamError as error:
            self.machine.fail(error)

    def _has_mask(self) -> bool:
        """Whether indices are a mask on the device: their number must be known."""
        if self.operator.name not in INDEXED:
            return False
        masks = [
            each
            for each in self.args[1]
            if isinstance(each, DeviceTensor) and each.dtype in (torch.bool, torch.uint8)
        ]
        fills = (
            self.operator.name == "index_put_"
            and len(masks) == sum(each is not None for each in self.args[1]) == 1
            and self.args[2].numel() == 1
        )
        return bool(masks) and not fills

    def _copy_indices(self) -> None:
        """Indices of the CPU are copied to the device before, which waits."""
        if self.operator.name not in INDEXED or not isinstance(self.args[0], DeviceTensor):
            return
        for index in self.args[1]:
            if index is not None and not isinstance(index, DeviceTensor):
                self.machine.counts.launched("copy", 1, index.nbytes, index.nbytes)
                HOST.wait("copy of indices", current_stream(self.place).seen)

    def _crosses(self) -> bool:
        source, target = self._ends()
        return source.device != target

    def _ends(self) -> tuple[Tensor, torch.device]:
        """The source of a copy, and where it goes."""
        if self.operator.name == "copy_":
            return self.args[1], self.args[0].device
        device = self.kwargs.get("device")
        return self.args[0], self.args[0].device if device is None else device_of(device)

    def _copy(self) -> Any:
        """A copy between devices, or between one and the host."""
        source, target = self._ends()
        machine = self.machine
        non_blocking = bool(
            self.kwargs.get("non_blocking")
            or (self.operator.name == "copy_" and len(self.args) > 2 and self.args[2])
        )
        self.place = target if target.type == "cuda" else source.device
        result = self._compute()
        if not source.numel():
            return self._copied(result, target)
        machine.counts.launched("copy", 1, source.nbytes, source.nbytes)
        machine.counts.transfers[f"{source.device} to {target}"] += source.nbytes
        if not isinstance(source, DeviceTensor):
            machine.check_arrived(source, "copy")
        if source.device.type == target.type:
            self._between(source.device, target)
            return self._copied(result, target)
        self._order(self.there, self.written)
        placed = self._copied(result, target)
        seen = dict(current_stream(self.place).seen)
        if not non_blocking:
            HOST.wait(f"copy to {target.type}", seen)
        elif target.type == "cpu":
            machine.unread[_storage(placed)] = seen
        return placed

    def _between(self, source: torch.device, target: torch.device) -> None:
        """The streams of both devices wait for each other around the copy, as in PyTorch."""
        current_stream(source).wait_stream(current_stream(target))
        self.place = source
        self._order(self.there, self.written)
        self.place = target
        current_stream(target).wait_stream(current_stream(source))

    def _copied(self, result: Any, target: torch.device) -> Any:
        if self.operator.name == "copy_":
            return self.args[0]
        return self._placed(result) if target.type == "cuda" else result

    def _placed(self, result: Any) -> Any:
        """The result on the device: written arguments, views of arguments, or new tensors."""
        if not isinstance(result, (Tensor, list, tuple)):
            return result
        written = self.written
        made: dict[int, Memory] = {_storage(each.inner): each.memory for each in self.there}
        by_inner = {id(each.inner): each for each in written}

        def placed(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if id(value) in by_inner:
                return by_inner[id(value)]
            stream = current_stream(self.place)
            memory = made.get(_storage(value))
            if memory is None:
                memory = self.machine.allocator.allocate(stream, value.untyped_storage().nbytes())
                made[_storage(value)] = memory
                if not self.operator.allocates:
                    memory.writer = (stream.number, stream.seen[stream.number])
            return DeviceTensor(value, self.place, memory)

        if isinstance(result, Tensor):
            return placed(result)
        return type(result)(map(placed, result)) if type(result) in (list, tuple) else result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


MACHINE = Machine()
