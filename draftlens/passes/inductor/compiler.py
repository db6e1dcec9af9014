"""Compiles passes to files in a separate process, which ends when they are done.

Tracing a model in the process that decodes would block its other threads, and the compiler takes
its folder and the mode of its files from process-wide state, which belongs to the caller.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import shutil
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from draftlens.core.files import cache_folder, private_folder
from draftlens.models.products import is_large
from draftlens.passes.inductor.static_pass import ANY, PassShape, pass_without_weights
from draftlens.passes.structure import Skeleton
from draftlens.processes.channel import Channel, ClosedError
from draftlens.processes.child import connected, start_child

if TYPE_CHECKING:
    from torch.export import ExportedProgram

ROWS = 3
"""Rows in a traced pass, for any number of them."""

WIDTH = 5
"""Tokens of each row in a traced pass; unlike `ROWS`, so that the two are not confused."""

REACH = 96
"""Cached tokens in a traced pass."""

CAPACITY = 160
"""Reserved tokens in a traced pass."""

OPTIONS: dict[str, Any] = {
    # The weights are those of the process that runs the code.
    "aot_inductor.package_constants_in_so": False,
    "compile_threads": 1,
}


@dataclass(frozen=True)
class Order:
    """A pass to compile into the file `path`."""

    skeleton: Skeleton
    shape: PassShape
    path: Path


@dataclass(frozen=True)
class Built:
    """An executed order: its seconds, and why there is no file; empty if there is one."""

    seconds: float
    failure: str = ""


class Compiler:
    """Compiles passes in a separate process and waits for them."""

    def __init__(self) -> None:
        self._owner = os.getpid()

    @property
    def missing(self) -> str:
        """Why nothing can be compiled on this machine, in a few words; empty if it can be."""
        if os.getpid() != self._owner:
            return "this process is a fork of the one that compiles"
        names = (os.environ.get("CXX", ""), "g++", "clang++")
        if any(name and shutil.which(name) for name in names):
            return ""
        return "there is no C++ compiler (g++ or clang++)"

    def build(self, orders: Sequence[Order]) -> list[Built]:
        if not orders:
            return []
        built: list[Built] = []
        try:
            with _started() as channel:
                for order in orders:
                    channel.send(order)
                    built.append(channel.receive(None))
        except ClosedError:
            failure = "the compiling process has ended"
        except (TypeError, AttributeError, OSError, pickle.PicklingError) as error:
            failure = f"no process can compile it: {error}"
        else:
            return built
        return built + [Built(0.0, failure)] * (len(orders) - len(built))


@contextmanager
def _started() -> Iterator[Channel]:
    """The compiling process, which ends at once with the context or with this process."""
    threads = torch.get_num_threads()
    start = partial(start_child, module=__name__, threads=threads)
    ours, process = connected(start)
    channel = Channel(ours)
    try:
        yield channel
    finally:
        channel.close()
        process.kill()
        process.wait()


def main(descriptor: int, threads: int) -> None:
    """The compiling process: compile the orders that arrive on the inherited socket until the
    parent has ended. The code is made for `threads`; the compiler itself uses one."""
    torch.set_num_threads(threads)
    os.umask(0o077)  # code that others may change is not loaded
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    channel = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ClosedError):
        while True:
            channel.send(_carry_out(channel.receive(None)))
            channel.flush(None)
    # The parent has ended. An orderly exit could take long, and nothing here needs it.
    os._exit(0)


def _carry_out(order: Order) -> Built:
    began = time.perf_counter()
    try:
        # Precompiled headers are read from the temporary directory, whatever the cache's folder is.
        tempfile.tempdir = os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(inductor_folder())
        compile_to_file(order.skeleton, order.shape, order.path)
    except Exception as error:
        return Built(time.perf_counter() - began, _in_one_line(error))
    return Built(time.perf_counter() - began)


def _in_one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"


def inductor_folder() -> Path:
    """The folder of the compiler's cache, created on demand; inductor's default is in the temporary
    directory under a name that any user can take first.

    Raises:
        OSError: as `structure.folder_of`.
    """
    return private_folder(cache_folder() / "inductor")


def compile_to_file(skeleton: Skeleton, shape: PassShape, path: Path) -> None:
    """Trace and compile a kind of pass into a ``.pt2`` file, which appears when it is complete.
    Raises any error of torch or the compiler on code that cannot be traced or compiled."""
    partial = path.with_suffix(f".{os.getpid()}.pt2")
    try:
        with torch.no_grad():
            program = traced(skeleton, shape)
            torch._inductor.aoti_compile_and_package(
                program, package_path=str(partial), inductor_configs=dict(OPTIONS)
            )
        partial.replace(path)  # atomic: other processes never read an unfinished file
    finally:
        partial.unlink(missing_ok=True)


def traced(skeleton: Skeleton, shape: PassShape) -> ExportedProgram:
    """The operations of a pass. Raises if the code depends on values or on sizes that vary."""
    from torch.export import export  # half a second, which the process that decodes saves

    program = export(
        pass_without_weights(skeleton),
        _inputs(skeleton, shape),
        dynamic_shapes=_dynamic(skeleton, shape),
        strict=False,
    )
    if not (shape.is_single or shape.is_few):
        use_onednn(program)
    return program


def _inputs(skeleton: Skeleton, shape: PassShape) -> tuple[Any, ...]:
    rows = ROWS if shape.rows == ANY else shape.rows
    width = WIDTH if shape.width == ANY else shape.width
    device = skeleton.device
    numbers = torch.zeros(rows, width, dtype=torch.long, device=device)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for layer in skeleton.layers:
        size = (rows, layer.heads, CAPACITY)
        keys.append(torch.zeros(*size, layer.key_width, dtype=layer.dtype, device=device))
        values.append(torch.zeros(*size, layer.value_width, dtype=layer.dtype, device=device))
    return (
        numbers,
        torch.zeros(*shape.axes, rows, width, dtype=torch.long, device=device),
        numbers.clone(),
        torch.ones(rows, 1, width, REACH, dtype=torch.bool, device=device),
        keys,
        values,
    )


def _dynamic(skeleton: Skeleton, shape: PassShape) -> tuple[Any, ...]:
    from torch.export import Dim

    rows = {0: Dim("rows", min=2)} if shape.rows == ANY else {}
    width = {1: Dim("width", min=2)} if shape.width == ANY else {}
    capacity = {2: Dim("capacity", min=2)}
    buffers = [{**rows, **capacity} for _ in skeleton.layers]
    first = len(shape.axes)
    positions = {first + index: dim for index, dim in {**rows, **width}.items()}
    visible = {index if index == 0 else 2: dim for index, dim in {**rows, **width}.items()}
    visible[3] = Dim("reach", min=2)
    return ({**rows, **width}, positions, {**rows, **width}, visible, buffers, buffers)


def use_onednn(program: ExportedProgram) -> int:
    """Let oneDNN compute large products of a traced pass (`models.products`), in place;
    returns their number."""
    count = 0
    for node in program.graph.nodes:
        if node.target != torch.ops.aten.linear.default:
            continue
        states, weight, *bias = node.args
        matrix = weight.meta["val"]
        if not is_large(matrix.shape, matrix.dtype, matrix.device):
            continue
        node.target = torch.ops.mkldnn._linear_pointwise.default
        node.args = (states, weight, bias[0] if bias else None, "none", [], "")
        count += 1
    program.graph_module.recompile()
    return count
