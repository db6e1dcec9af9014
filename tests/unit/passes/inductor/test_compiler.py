"""The compiler of passes: its process, what it traces, and the products in its code."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch
from families import FAMILIES, inputs
from stock import METHODS, NEW, stock, target
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import draftlens
from draftlens.models import products as products
from draftlens.models.adapter import Backbone
from draftlens.passes.inductor.compiler import (
    OPTIONS,
    Compiler,
    inductor_folder,
    traced,
    use_onednn,
)
from draftlens.passes.inductor.engine import CompiledPasses
from draftlens.passes.inductor.library import Library
from draftlens.passes.inductor.static_pass import ANY, PassShape
from draftlens.passes.structure import Skeleton
from draftlens.request import Request

BY_NAME = {family.name: family for family in FAMILIES}
ONEDNN = torch.ops.mkldnn._linear_pointwise.default

needs_onednn = pytest.mark.skipif(
    not products.is_available(), reason="torch was built without MKL or oneDNN"
)


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
    assert any(inductor_folder().rglob("precompiled_headers"))
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


@pytest.fixture
def all_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of any size count as large."""
    monkeypatch.setattr(products, "LARGE", 1)


class TwoProducts(nn.Module):
    """A product with a bias, and one without."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(24, 40)
        self.second = nn.Linear(40, 8, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(states).relu())
        return output


def program_of(module: nn.Module) -> ExportedProgram:
    """Traced for any number of tokens, two rows each."""
    return export(module, (torch.randn(2, 5, 24),), dynamic_shapes=({1: Dim("width", min=2)},))


def count(program: ExportedProgram) -> int:
    """Products by oneDNN."""
    return sum(node.target == ONEDNN for node in program.graph.nodes)


@needs_onednn
@torch.no_grad()
@pytest.mark.usefixtures("all_are_large")
def test_code_with_products_by_onednn_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights stay as they are: code and module read the same memory."""
    # Where another test's compiler has left what it found out about this processor.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(inductor_folder()))
    module = TwoProducts().eval()
    program = program_of(module)
    assert use_onednn(program) == count(program) == 2
    path = tmp_path / "products.pt2"
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(path), inductor_configs=dict(OPTIONS)
    )
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1)
    names = loader.get_constant_fqns()
    weights = dict(module.named_parameters())
    assert set(names) == set(weights)
    loader.load_constants(
        {name: weights[name].detach() for name in names}, False, True, user_managed=True
    )
    for width in (2, 3, 6, 26):
        states = torch.randn(2, width, 24)
        torch.testing.assert_close(loader.boxed_run([states])[0], module(states))
    module.first.weight.mul_(2)
    states = torch.randn(2, 6, 24)
    torch.testing.assert_close(loader.boxed_run([states])[0], module(states))


@needs_onednn
@pytest.mark.usefixtures("all_are_large")
def test_passes_of_many_tokens_alone_use_onednn() -> None:
    backbone = Backbone(target(FAMILIES[0]))
    skeleton = Skeleton.of(backbone)
    assert skeleton.has_large_matrices
    linear = [module for module in backbone.decoder.modules() if isinstance(module, nn.Linear)]
    for shape in (PassShape(1, ANY), PassShape(ANY, ANY)):
        assert count(traced(skeleton, shape)) == len(linear) + 1  # and the head
    for shape in (PassShape(1, 1), PassShape(1, ANY, is_few=True)):
        assert count(traced(skeleton, shape)) == 0


@needs_onednn
def test_small_matrices_do_not_use_onednn() -> None:
    skeleton = Skeleton.of(Backbone(target(FAMILIES[0])))
    assert not skeleton.has_large_matrices
    assert count(traced(skeleton, PassShape(1, ANY))) == 0
