"""Products with large matrices in compiled passes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import FAMILIES
from stock import target
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from draftlens.compile.build import OPTIONS, traced
from draftlens.compile.products import use_onednn
from draftlens.compile.shapes import ANY, PassShape
from draftlens.compile.skeleton import Skeleton
from draftlens.models import onednn_linear as products
from draftlens.models.adapter import Backbone

ONEDNN = torch.ops.mkldnn._linear_pointwise.default

pytestmark = pytest.mark.skipif(
    not products.is_available(), reason="torch was built without MKL or oneDNN"
)


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


@torch.no_grad()
@pytest.mark.usefixtures("all_are_large")
def test_compiled_code_computes_the_same(tmp_path: Path) -> None:
    """The weights stay as they are: code and module read the same memory."""
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


@pytest.mark.usefixtures("all_are_large")
def test_passes_of_many_tokens_alone_use_it() -> None:
    backbone = Backbone(target(FAMILIES[0]))
    skeleton = Skeleton.of(backbone)
    assert skeleton.has_large_matrices
    linear = [module for module in backbone.decoder.modules() if isinstance(module, nn.Linear)]
    for shape in (PassShape(1, ANY), PassShape(ANY, ANY)):
        assert count(traced(skeleton, shape)) == len(linear) + 1  # and the head
    for shape in (PassShape(1, 1), PassShape(1, ANY, is_few=True)):
        assert count(traced(skeleton, shape)) == 0


def test_small_matrices_do_not_use_it() -> None:
    skeleton = Skeleton.of(Backbone(target(FAMILIES[0])))
    assert not skeleton.has_large_matrices
    assert count(traced(skeleton, PassShape(1, ANY))) == 0
