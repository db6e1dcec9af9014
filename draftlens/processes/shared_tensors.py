"""Objects with tensors as bytes and one anonymous file, which another process maps.

The file lives in memory and has no name: it needs no room in ``/dev/shm``, and it is gone when the
last process that holds it has ended, however that process ends.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SMALLEST = 16_384
"""Bytes of the smallest tensor that goes into the file."""

ALIGNMENT = 64
"""Tensors in the file begin at multiples of this many bytes."""


@dataclass(frozen=True)
class Parcel:
    """An object in two parts: the large tensors in a file (None if there are none), everything else
    pickled. `unpack`, or the channel that sends it, closes the file."""

    pickled: bytes
    file: int | None

    def close(self) -> None:
        """Close the file of a parcel that is not sent."""
        if self.file is not None:
            os.close(self.file)


def pack(value: Any, smallest: int = SMALLEST) -> Parcel:
    """Make a parcel with tensors from `smallest` bytes in the file. Raises errors of pickle."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, smallest)
    pickler.dump(value)
    if not pickler.tensors:
        return Parcel(buffer.getvalue(), None)
    file = os.memfd_create("draftlens")
    try:
        os.ftruncate(file, pickler.size)
        contents = _mapped(file, pickler.size)
        for tensor, offset in pickler.tensors:
            _tensor(contents, offset, tensor.dtype, tensor.shape).copy_(tensor)
    except BaseException:
        os.close(file)
        raise
    return Parcel(buffer.getvalue(), file)


def file_of(contents: bytes) -> int:
    file = os.memfd_create("draftlens")
    try:
        with open(file, "wb", closefd=False) as writer:
            writer.write(contents)
    except BaseException:
        os.close(file)
        raise
    return file


def unpack(parcel: Parcel) -> Any:
    """The object of a parcel. Its large tensors share the memory of the file, which is closed."""
    contents = None
    if parcel.file is not None:
        contents = _mapped(parcel.file, os.fstat(parcel.file).st_size)
        os.close(parcel.file)
    return _Unpickler(io.BytesIO(parcel.pickled), contents).load()


class _Pickler(pickle.Pickler):
    """Leaves large tensors out and records their offsets in the file."""

    def __init__(self, buffer: io.BytesIO, smallest: int) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self.smallest = smallest
        self.size = 0
        self.tensors: list[tuple[Tensor, int]] = []
        self._places: dict[int, tuple[Any, ...]] = {}

    def reducer_override(self, value: Any) -> Any:
        """Refuses classes and functions of a script, which another process cannot import."""
        if getattr(value, "__module__", None) == "__main__" and hasattr(value, "__qualname__"):
            raise pickle.PicklingError(
                f"{value.__qualname__} is defined in the main script, which the other process does "
                "not run: put it into a module"
            )
        return NotImplemented

    def persistent_id(self, value: Any) -> tuple[Any, ...] | None:
        """Where a large tensor is in the file; None for everything else."""
        if type(value) not in (Tensor, nn.Parameter) or not _fits(value, self.smallest):
            return None
        place = self._places.get(id(value))
        if place is None:
            offset = -(-self.size // ALIGNMENT) * ALIGNMENT
            self.size = offset + value.nbytes
            self.tensors.append((value.detach(), offset))
            is_parameter = type(value) is nn.Parameter
            # The first entry tells equal objects apart from equal values.
            place = (id(value), offset, value.dtype, tuple(value.shape), is_parameter)
            self._places[id(value)] = place
        return place


class _Unpickler(pickle.Unpickler):
    """Puts the tensors of the file back."""

    def __init__(self, buffer: io.BytesIO, contents: mmap.mmap | None) -> None:
        super().__init__(buffer)
        self.contents = contents
        self._tensors: dict[int, Tensor] = {}

    def persistent_load(self, place: Any) -> Tensor:
        """A tensor from its offset; the same object for the same one."""
        key, offset, dtype, shape, is_parameter = place
        if key not in self._tensors:
            assert self.contents is not None
            tensor = _tensor(self.contents, offset, dtype, shape)
            if is_parameter:
                tensor = nn.Parameter(tensor, requires_grad=False)
            self._tensors[key] = tensor
        return self._tensors[key]


def _fits(tensor: Tensor, smallest: int) -> bool:
    is_plain = tensor.device.type == "cpu" and tensor.layout == torch.strided
    return is_plain and tensor.nbytes >= max(smallest, 1)


def _mapped(file: int, size: int) -> mmap.mmap:
    return mmap.mmap(file, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _tensor(contents: mmap.mmap, offset: int, dtype: torch.dtype, shape: Any) -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.frombuffer(contents, dtype=dtype, count=count, offset=offset).view(shape)
