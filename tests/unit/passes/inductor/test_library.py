"""Which passes are compiled, when, and what happens where they cannot be."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest
import torch
from families import FAMILIES
from torch import Tensor, nn

from draftlens.core.errors import ConfigError
from draftlens.core.tree import attention_mask
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.models.kv_cache import KVCache
from draftlens.models.model_state import Slot
from draftlens.passes import attach, describe_passes, structure
from draftlens.passes.inductor import compiler, engine
from draftlens.passes.inductor import library as libraries
from draftlens.passes.inductor.compiler import Built, Compiler, Order
from draftlens.passes.inductor.engine import CompiledPasses
from draftlens.passes.inductor.library import Library
from draftlens.passes.inductor.static_pass import ANY, PassShape, pass_of
from draftlens.passes.structure import Skeleton, folder_of, tracing_refusal
from draftlens.processes.child import start_child

ONE = PassShape(1, 1)
SOME = PassShape(1, ANY)
PATIENCE = 30.0
"""Seconds after which threads wait for each other for ever."""


class ScriptedCompiler(Compiler):
    """A `Compiler` that writes its files itself.

    Args:
        why: why nothing can be compiled; empty if it can be.
        failure: of all orders.

    Attributes:
        done: the kinds of passes that were compiled, in order.
    """

    def __init__(self, why: str = "", failure: str = "") -> None:
        super().__init__()
        self.why = why
        self.failure = failure
        self.done: list[PassShape] = []

    @property
    def missing(self) -> str:
        return self.why

    def build(self, orders: Sequence[Order]) -> list[Built]:
        for order in orders:
            self.done.append(order.shape)
            if not self.failure:
                order.path.write_text("code")
        return [Built(1.0, self.failure)] * len(orders)


class ReadyCompiler(Compiler):
    """A `Compiler` on any machine."""

    @property
    def missing(self) -> str:
        return ""


class StaticRunner:
    """Stands in for `Runner`: calls the modules that hold the tensors."""

    module: nn.Module
    factor = 1.0

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        assert path.read_text() == "code"
        self.weight = tensors["head.weight"].data_ptr()

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        half = (len(inputs) - 4) // 2
        logits: Tensor = self.module(*inputs[:4], inputs[4 : 4 + half], inputs[4 + half :])
        return logits * self.factor

    def reads(self, tensors: Mapping[str, Tensor]) -> bool:
        return tensors["head.weight"].data_ptr() == self.weight


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """A tiny model whose code is its own modules."""
    made = Backbone(FAMILIES[0].build(num_hidden_layers=1))
    monkeypatch.setattr(StaticRunner, "module", pass_of(made.model, made.divisor), raising=False)
    monkeypatch.setattr(libraries, "Runner", StaticRunner)
    return made


def make(backbone: Backbone, folder: Path, compiler: ScriptedCompiler) -> Library:
    return Library(backbone, Skeleton.of(backbone), folder, compiler)


def test_the_kind_of_a_pass_comes_from_its_positions() -> None:
    assert PassShape.of(torch.zeros(1, 6)) == SOME
    assert PassShape.of(torch.zeros(3, 4, 1)) == PassShape(ANY, 1, (3,))
    assert [ONE.name, SOME.name, PassShape(ANY, 1, (3,)).name] == ["1x1", "1xN", "Nx1-axes3"]


def test_passes_of_two_and_three_tokens_have_code_of_their_own_if_matrices_are_large(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = [torch.zeros(size) for size in ((1, 1), (1, 3), (3, 2, 1), (1, 4), (2, 2))]
    small = make(backbone, tmp_path, ScriptedCompiler())
    assert [small.shape_of(one).is_few for one in positions] == [False] * 5
    assert small.usual_shapes(()) == [ONE, SOME]
    monkeypatch.setattr("draftlens.models.products.LARGE", 1)
    large = make(backbone, tmp_path, ScriptedCompiler())
    assert [large.shape_of(one).is_few for one in positions] == [False, True, True, False, False]
    assert large.shape_of(positions[2]).name == "Nx1-few-axes3"
    assert large.usual_shapes((3,)) == [
        PassShape(1, 1, (3,)),
        PassShape(1, ANY, (3,)),
        PassShape(1, ANY, (3,), is_few=True),
    ]


def test_threads_that_wait_for_one_pass_have_it_compiled_once(
    backbone: Backbone, tmp_path: Path
) -> None:
    both = Barrier(2)

    class Slow(ScriptedCompiler):
        @property
        def missing(self) -> str:
            both.wait(60)  # neither goes on before both have found no code
            return ""

    compiler = Slow()
    library = make(backbone, tmp_path, compiler)
    with ThreadPoolExecutor(2) as pool:
        for waiting in [pool.submit(library.wait, ONE) for _ in range(2)]:
            waiting.result()
    assert compiler.done == [ONE]
    assert set(library.runners) == {ONE}


class MeetingPasses(CompiledPasses):
    """Passes of several threads that begin together."""

    def __init__(self, library: Library, threads: int) -> None:
        super().__init__(library)
        self._barrier = Barrier(threads)

    def run(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor | None:
        self._barrier.wait(PATIENCE)  # all hold the lock of the model
        return super().run(tokens, position_ids, cache, mask)


@pytest.mark.parametrize("on_disk", [True, False])
@pytest.mark.parametrize("widths", [(1, 1), (1, 2)])
def test_passes_of_two_threads_load_their_code(
    backbone: Backbone, tmp_path: Path, on_disk: bool, widths: tuple[int, int]
) -> None:
    """Neither waits for the end of the other's pass."""
    compiler = ScriptedCompiler()
    if on_disk:
        for shape in (ONE, SOME):
            (tmp_path / f"{shape.name}.pt2").write_text("code")
    backbone.passes = MeetingPasses(make(backbone, tmp_path, compiler), len(widths))
    logits: dict[int, Tensor] = {}

    prompt = backbone.text_prompt(torch.tensor([[5, 6]]))
    caches = [backbone.new_cache(prompt, room=2) for _ in widths]
    for cache in caches:
        backbone.prefill(prompt, cache)

    def forward(number: int, width: int) -> None:
        ids = torch.arange(7, 7 + width)[None]
        positions = prompt.positions(torch.arange(width)[None])
        mask = attention_mask([2], torch.ones(width, width).tril().bool())
        logits[number] = backbone.forward(ids, positions, caches[number], mask)

    threads = [Thread(target=forward, args=call, daemon=True) for call in enumerate(widths)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(logits) == [0, 1]
    assert len(compiler.done) == (0 if on_disk else len(set(widths)))
    torch.testing.assert_close(logits[0][:, :1], logits[1][:, :1])
    with backbone.alone():
        pass


def test_compiling_says_what_it_does(
    backbone: Backbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = make(backbone, tmp_path, ScriptedCompiler())
    with caplog.at_level(logging.INFO, "draftlens"):
        library.wait(ONE, SOME)
        library.wait(ONE)
    assert [record.message for record in caplog.records] == [
        f"compiling passes 1x1, 1xN of {backbone.name}, once on this machine: about a minute for "
        "each",
        f"pass 1x1 of {backbone.name} compiled in 1.0 s",
        f"pass 1xN of {backbone.name} compiled in 1.0 s",
    ]


def test_without_a_process_nothing_is_compiled(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError("too many processes")

    monkeypatch.setattr("draftlens.passes.inductor.compiler.start_child", refuse)
    library = Library(backbone, Skeleton.of(backbone), tmp_path, ReadyCompiler())
    library.wait(ONE, SOME)
    reason = "no process can compile it: too many processes"
    assert library.failures == {ONE: reason, SOME: reason}


def test_a_process_that_ends_fails_what_is_left(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptor: int, module: str, threads: int) -> Any:
        module = "draftlens.passes.inductor.static_pass"  # it has no `main`
        return start_child(descriptor, module, threads)

    monkeypatch.setattr("draftlens.passes.inductor.compiler.start_child", broken)
    library = Library(backbone, Skeleton.of(backbone), tmp_path, ReadyCompiler())
    library.wait(ONE, SOME)
    assert set(library.failures.values()) == {"the compiling process has ended"}


def test_code_on_disk_needs_no_compiler(backbone: Backbone, tmp_path: Path) -> None:
    make(backbone, tmp_path, ScriptedCompiler()).wait(ONE)
    library = make(backbone, tmp_path, ScriptedCompiler(why="there is none"))
    library.wait(ONE, SOME)
    assert set(library.runners) == {ONE}
    assert library.failures == {SOME: "there is none"}


@pytest.mark.parametrize("which", ["folder", "file"])
def test_code_that_others_may_write_is_not_run(
    which: str, backbone: Backbone, tmp_path: Path
) -> None:
    make(backbone, tmp_path, ScriptedCompiler()).wait(ONE)
    library = make(backbone, tmp_path, ScriptedCompiler())
    path = tmp_path if which == "folder" else library.path_of(ONE)
    path.chmod(0o777)
    library.wait(ONE)
    assert not library.runners
    assert f"{path} may be written by other users" in library.failures[ONE]


@pytest.mark.parametrize("what", ["compiled", "passes"])
def test_a_folder_of_code_is_the_users_own(
    what: str, backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made so, and refused where others may write it."""
    for module in (structure, compiler):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "draftlens")
    monkeypatch.setattr(engine, "_LIBRARY", Slot("none"))
    passes = folder_of(backbone, Skeleton.of(backbone))
    made = {"compiled": passes.parent, "passes": passes, "inductor": compiler.inductor_folder()}
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in made.values())
    made[what].chmod(0o775)
    with pytest.raises(PermissionError, match="may be written by other users: run chmod go-w"):
        folder_of(backbone, Skeleton.of(backbone))
    assert "may be written by other users" in describe_passes(backbone)["inductor"]
    attach([backbone], True)
    assert backbone.passes is EAGER


def test_what_cannot_be_compiled_is_said_once(
    backbone: Backbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = ScriptedCompiler(failure="UserError: data-dependent")
    library = make(backbone, tmp_path, compiler)
    backbone.passes = CompiledPasses(library)
    with caplog.at_level(logging.WARNING, "draftlens"):
        library.wait(ONE, SOME)
        library.wait(ONE)
    assert len(compiler.done) == 2
    assert [record.message for record in caplog.records] == [
        f"passes of {backbone.name} are not compiled: UserError: data-dependent"
    ]
    assert backbone.passes.label == ""


def test_code_that_computes_something_else_is_not_used(
    backbone: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticRunner, "factor", 1.01)
    library = make(backbone, tmp_path, ScriptedCompiler())
    library.wait(ONE)
    assert not library.runners
    assert "differ from those of the model" in library.failures[ONE]


def test_weights_that_move_are_read_where_they_are(backbone: Backbone, tmp_path: Path) -> None:
    library = make(backbone, tmp_path, ScriptedCompiler())
    library.wait(ONE)
    before = library.runners[ONE]
    library.refresh()
    assert library.runners[ONE] is before
    weight = backbone.head.weight
    weight.data = weight.data.clone()
    library.refresh()
    assert library.runners[ONE] is not before
    weight.data = weight.data.double()
    library.refresh()
    assert not library.runners
    assert "have changed" in library.failures[ONE]


def test_hooks_are_called_though_passes_are_compiled(backbone: Backbone, tmp_path: Path) -> None:
    library = make(backbone, tmp_path, ScriptedCompiler())
    backbone.passes = CompiledPasses(library)
    ids = torch.ones(1, 3, dtype=torch.long)
    prompt = backbone.text_prompt(ids[:, :2])
    cache = backbone.new_cache(prompt, room=4)
    backbone.prefill(prompt, cache)
    positions = prompt.positions(torch.zeros(1, 1, dtype=torch.long))
    with backbone.hidden_states([1]) as states:
        backbone.forward(ids[:, 2:], positions, cache, None)
    assert states[1].shape[1] == 1
    assert not library.runners
    backbone.forward(ids[:, 2:], positions + 1, cache, None)
    assert set(library.runners) == {ONE}


def test_modules_that_code_cannot_stand_for_are_refused(
    backbone: Backbone, caplog: pytest.LogCaptureFixture
) -> None:
    handle = backbone.decoder.layers[0].register_forward_hook(lambda *_: None)
    attach([backbone], True)
    assert backbone.passes is EAGER
    assert "hooks" in caplog.text
    handle.remove()
    assert tracing_refusal(backbone) is None
    with pytest.raises(ConfigError, match="or False, not 'always'"):
        attach([backbone], "always")  # type: ignore[arg-type]


class PackedTensor(Tensor):
    """As torchao keeps weights."""


def test_weights_that_are_quantized_on_disk_only_are_compiled(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a GGUF file become floats when they are read; 8-bit ones, and those of torchao,
    which are a subclass of tensors, stay what they are."""
    monkeypatch.setattr(backbone.model.config, "quantization_config", {"a": 1}, raising=False)
    assert tracing_refusal(backbone) is None
    norm = backbone.decoder.norm
    plain = norm.weight
    packed = plain.data.as_subclass(PackedTensor)
    for other in (plain.data.to(torch.int8), plain.data.to(torch.float8_e4m3fn), packed):
        norm.weight = torch.nn.Parameter(other, requires_grad=False)
        assert tracing_refusal(backbone) == "its weights are quantized"
    norm.weight = plain


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_change_with_the_length_are_refused(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "factor": 2.0, "rope_theta": 1e4}
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
        rope |= {**factors, "original_max_position_embeddings": 64}
    family = next(family for family in FAMILIES if family.name == "internvl")
    backbone = Backbone(family.build(rope_parameters=rope, max_position_embeddings=128))
    attach([backbone], True)
    assert backbone.passes is EAGER
    assert f"the frequencies of its {kind} rotary positions change with the length" in caplog.text


def test_without_a_folder_the_modules_compute(
    backbone: Backbone, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> Path:
        raise OSError("read-only file system")

    monkeypatch.setattr(engine, "folder_of", refuse)
    attach([backbone], True)
    assert backbone.passes is EAGER
    assert "read-only" in caplog.text
