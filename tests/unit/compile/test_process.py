"""A real compiler: one kind of pass of a tiny model, from its order to the tokens of an answer."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from families import FAMILIES, inputs
from stock import METHODS, NEW, stock, target

import draftlens
from draftlens.compile.build import traced
from draftlens.compile.compiler import Compiler
from draftlens.compile.library import Library
from draftlens.compile.passes import CompiledPasses
from draftlens.compile.shapes import ANY, PassShape
from draftlens.compile.skeleton import Skeleton
from draftlens.compile.store import inductor_folder
from draftlens.models.adapter import Backbone
from draftlens.request import Request

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.mark.slow
def test_a_compiled_pass_has_the_tokens_of_stock_generate(tmp_path: Path) -> None:
    """It is compiled in a process of its own, which has ended afterwards. The compiler's time is
    that of the layers, so there is one."""
    family = FAMILIES[0]
    model = family.build(num_hidden_layers=1)
    backbone = Backbone(model)
    library = Library(backbone, Skeleton.of(backbone), tmp_path, Compiler())
    one_row = PassShape(1, ANY)
    before = set(psutil.Process().children())
    library.wait(one_row)
    assert not library.failures
    assert library.seconds[one_row] > 0
    assert set(psutil.Process().children()) == before
    assert any(inductor_folder().iterdir())  # in place of the one in the temporary directory
    assert inductor_folder().stat().st_mode & 0o777 == 0o700
    assert library.path_of(one_row).stat().st_mode & 0o777 == 0o600
    backbone.passes = CompiledPasses(library)
    given, options = inputs(family, "image", (0,)), {"max_new_tokens": NEW}
    request = Request(given, method=METHODS["chain5"], options=options)
    result = draftlens.Stream(backbone, model, request).run()
    assert result.tokens == stock(model, given, **options)


@pytest.mark.parametrize("name", ["qwen3_vl", "internvl"])
def test_a_family_can_be_traced_for_any_number_of_rows_and_tokens(name: str) -> None:
    backbone = Backbone(target(BY_NAME[name]))
    program = traced(Skeleton.of(backbone), PassShape(ANY, ANY))
    assert len(program.range_constraints) == 4


@pytest.mark.gpu
@pytest.mark.slow
def test_a_pass_is_compiled_for_a_gpu(tmp_path: Path) -> None:
    """Loading it compares its logits with those of the modules."""
    backbone = Backbone(FAMILIES[0].build().to("cuda"))
    library = Library(backbone, Skeleton.of(backbone), tmp_path, Compiler())
    library.wait(PassShape(ANY, ANY))
    assert not library.failures
