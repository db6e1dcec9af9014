"""An engine of passes of another package, found by its entry point: ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from families import FAMILIES, Family, inputs
from pass_engines import check_process_drafts_by, copied
from plugins import installed
from stock import METHODS, NEW, draft, reference, target
from typer.testing import CliRunner

import draftlens
from draftlens.cli.app import app
from draftlens.cli.options import with_values
from draftlens.core.errors import ConfigError
from draftlens.models.adapter import Backbone
from draftlens.models.forward_backend import EAGER
from draftlens.passes import PASSES, attach, attach_engine, engine_of
from draftlens.request import Request
from draftlens.streaming import Stream

BY_NAME = {family.name: family for family in FAMILIES}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with installed(monkeypatch, "acme_passes", PASSES):
        yield


@pytest.fixture
def _has_onnx() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")


@pytest.mark.usefixtures("_has_onnx")
@pytest.mark.parametrize("family", [FAMILIES[0], BY_NAME["qwen2_5_vl"]], ids=str)
@pytest.mark.parametrize("method", ["plain", "chain5", "eagle"])
def test_its_passes_have_the_tokens_of_stock_generate(family: Family, method: str) -> None:
    """A ragged batch of the richest inputs: plain decoding, a chain and a tree, all of whose passes
    it computes."""
    models = [Backbone.of(copied(target(family))), Backbone.of(copied(draft(family)))]
    attach(models, "onnx")
    assert [engine_of(model) for model in models] == [PASSES["onnx"]()] * 2
    assert [model.passes.label for model in models] == ["onnx", "onnx"]
    ran: list[bool] = []

    def watched(*arguments: Any, run: Any = models[0].passes.run) -> Any:
        logits = run(*arguments)
        ran.append(logits is not None)
        return logits

    models[0].passes.run = watched  # type: ignore[method-assign]
    chosen = "plain" if method == "plain" else METHODS[method]
    given = inputs(family, family.richest)
    request = Request(given, method=chosen, options={"max_new_tokens": NEW})
    result = Stream(*models, request).run()
    assert result.tokens == reference(family, family.richest)
    assert result.lossless
    assert ran
    assert all(ran)


@pytest.mark.usefixtures("_has_onnx")
def test_a_process_drafts_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_process_drafts_by("onnx", None, PASSES["onnx"](), monkeypatch)


def test_it_is_named_where_engines_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the option `compile`, on the command line, and in the list of entries."""
    with (
        pytest.warns(UserWarning, match="'torn-engine' of package acme-passes"),
        pytest.raises(ConfigError, match='"onnx", "openvino", "auto" or False'),
    ):
        draftlens.load(compile="tensorrt")
    with pytest.raises(ConfigError, match="'torn-engine' of package acme-passes cannot be loaded"):
        draftlens.load(compile="torn-engine")
    monkeypatch.setattr("acme_passes.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs ONNX Runtime: pip install onnx onnxruntime"):
        draftlens.load(compile="onnx")
    assert with_values(["--compile", "onnx", "a.mp4"]) == ["--compile=onnx", "a.mp4"]
    listed = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)
    (row,) = [row for row in listed["passes"] if row["name"] == "onnx"]
    assert (row["package"], row["options"], row["error"]) == ("acme-passes", {}, None)


def test_what_it_refuses_stays_with_the_modules(caplog: pytest.LogCaptureFixture) -> None:
    backbone = Backbone.of(copied(target(FAMILIES[0])).double())
    attach_engine(backbone, PASSES["onnx"]())
    assert backbone.passes is EAGER
    assert "do not run by ONNX Runtime: the model is not in float32 on the CPU" in caplog.text
