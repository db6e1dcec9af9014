"""A method, a drafter, a pruner, a view and a weighting of another package, found by its entry
points."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from families import FAMILIES, Family, inputs
from plugins import installed
from stock import LONG, METHODS, NEW, draft, reference, staggered, stock, target
from typer.testing import CliRunner

import draftlens
from draftlens.cli.app import app
from draftlens.core.errors import ConfigError
from draftlens.methods.base import METHODS as NAMES
from draftlens.methods.base import name_of, to_dict
from draftlens.methods.tabed.views import VIEWS
from draftlens.methods.tabed.weights import WEIGHTS
from draftlens.passes import PASSES
from draftlens.pruning import PRUNERS

REGISTRIES = (NAMES, PASSES, PRUNERS, VIEWS, WEIGHTS)

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with installed(monkeypatch, "acme_drafts", *REGISTRIES):
        yield


@every_family
@pytest.mark.parametrize("length", [1, 4, 9])
def test_its_drafter_in_the_matrix(family: Family, length: int) -> None:
    """Ragged, with several ends of sequence; and it helps, for random models repeat themselves."""
    rows = reference(family, family.richest, LONG)
    given, method = inputs(family, family.richest), {"method": "history", "length": length}
    result = draftlens.generate(target(family), given, method=method, max_new_tokens=LONG)
    assert result.tokens == rows
    assert result.lossless
    assert result.stats.drafted > 0
    eos = staggered(rows)
    ended = draftlens.generate(
        target(family), given, method=method, max_new_tokens=LONG, eos_token_id=eos
    )
    assert ended.tokens == stock(target(family), given, max_new_tokens=LONG, eos_token_id=eos)


@every_family
def test_its_drafter_under_coupled_sampling(family: Family) -> None:
    given = inputs(family, family.richest)
    options = {"max_new_tokens": LONG, "do_sample": True, "temperature": 0.3, "seed": 5}
    plain = draftlens.generate(target(family), given, **options)
    assert draftlens.generate(target(family), given, method="history", **options).tokens == (
        plain.tokens
    )


def test_its_drafter_is_right() -> None:
    """In a model that says the same again and again."""
    family = FAMILIES[0]
    given = inputs(family, "text", (0,))
    options = {"max_new_tokens": LONG, "repetition_penalty": 0.2}
    result = draftlens.generate(target(family), given, method="history", **options)
    assert result.tokens == stock(target(family), given, **options)
    assert result.stats.accepted > 0
    assert result.stats.passes < LONG - 1


@every_family
@pytest.mark.parametrize("chosen", [{"draft": "model"}, {"draft": "self"}])
def test_its_pruner_in_the_matrix(family: Family, chosen: dict[str, str]) -> None:
    pruner = {"name": "newest", "skip": 2}
    method = {"method": "specvlm", **METHODS["odd"], "pruner": pruner, "prune_ratio": 0.5, **chosen}
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        method=method,
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, family.richest)
    assert 0 < result.stats.kept < result.stats.visual


@every_family
def test_its_view_and_weighting_in_the_matrix(family: Family) -> None:
    views = [{"name": "faint", "strength": 0.25}, "multimodal"]
    weights = {"name": "latest", "smallest": 0.1}
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        draft=draft(family),
        method={"method": "tabed", "views": views, "weights": weights},
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, family.richest)
    assert set(result.stats.views) == {"faint 0.25", "multimodal"}
    assert all(view.asked > 0 for view in result.stats.views.values())


def test_names_and_options() -> None:
    method = draftlens.from_dict({"method": "specvlm", "pruner": {"name": "newest", "skip": 3}})
    assert to_dict(method)["pruner"] == {"name": "newest", "skip": 3}
    assert draftlens.from_dict(to_dict(method)) == method
    mixed = draftlens.from_dict({"method": "tabed", "views": ["faint"], "weights": "latest"})
    assert to_dict(mixed)["views"] == [{"name": "faint", "strength": 0.5}]
    assert to_dict(mixed)["weights"] == {"name": "latest", "smallest": 0.01}
    assert draftlens.from_dict(to_dict(mixed)) == mixed
    assert name_of(draftlens.from_dict({"method": "history"})) == "history"
    with pytest.raises(ConfigError, match="method 'history' has no option 'gamma'; known: length"):
        draftlens.from_dict({"method": "history", "gamma": 1})


def test_names_of_the_library_win() -> None:
    assert draftlens.from_dict({"method": "plain"}) == draftlens.PlainDecoding()


def test_a_broken_entry_is_named_and_skipped() -> None:
    names = [
        "auto",
        "history",
        "hsd",
        "lookup",
        "mixed",
        "parallelvlm",
        "plain",
        "self-sd",
        "speculative",
        "specvlm",
        "tabed",
    ]
    with pytest.warns(UserWarning, match="method 'torn' of package acme-drafts cannot be loaded"):
        assert list(NAMES) == names
    with pytest.raises(ConfigError, match="'torn' of package acme-drafts cannot be loaded"):
        draftlens.from_dict({"method": "torn"})


def test_the_command_lists_them() -> None:
    listed = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)
    methods = {row["name"]: row for row in listed["methods"]}
    assert methods["history"]["package"] == "acme-drafts"
    assert methods["history"]["options"] == {"length": 4}
    assert methods["plain"]["package"] == "draftlens"
    assert methods["plain"]["options"] == {"schedule": "serial", "prefill": "full"}
    assert methods["specvlm"]["options"]["prune_ratio"] == draftlens.SpecVLM().prune_ratio
    assert "cannot be loaded" in methods["torn"]["error"]
    assert {"name": "newest", "package": "acme-drafts"}.items() <= {
        row["name"]: row for row in listed["pruners"]
    }["newest"].items()
    assert "faint" in {row["name"] for row in listed["views"]}
    latest = next(row for row in listed["weights"] if row["name"] == "latest")
    assert (latest["package"], list(latest["options"])) == ("acme-drafts", ["smallest"])
    table = CliRunner().invoke(app, ["methods"]).stdout
    assert "acme-drafts" in table
    for default in ("window=3", "tree=auto", "pruner=specvlm", "group=4", "weights=bayes"):
        assert default in table
