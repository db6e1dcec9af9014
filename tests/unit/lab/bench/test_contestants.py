"""Who takes part: names, variants, and what is refused."""

from __future__ import annotations

import json

import pytest
from draftlens_lab.bench.contestants import HfAssisted, Lossy, Ours, line_up
from draftlens_lab.bench.lossy.fastv import FastV
from draftlens_lab.bench.lossy.pdrop import PDrop
from draftlens_lab.bench.options import BenchOptions

from draftlens.core.errors import ConfigError
from draftlens.methods.speculative import SpeculativeDecoding
from draftlens.methods.specvlm.config import SpecVLM
from draftlens.methods.tabed.config import TABED


def names(options: BenchOptions) -> list[str]:
    return [one.name for one in line_up(options)]


def test_the_reference_comes_first_whoever_is_named() -> None:
    assert names(BenchOptions(peers=())) == ["hf-generate", "plain", "speculative", "specvlm"]
    assert names(BenchOptions(methods=(), peers=("hf-assisted", "hf-generate"))) == [
        "hf-generate",
        "hf-assisted",
    ]


def test_methods_and_peers_by_their_options() -> None:
    extra = {
        "half": {"method": "specvlm", "prune_ratio": 0.5},
        "long": {"num_speculative_tokens": 9},
        "five": {"peer": "hf-assisted", "num_assistant_tokens": 5},
    }
    ways = {one.name: one.way for one in line_up(BenchOptions(methods=(), peers=(), extra=extra))}
    assert ways["half"] == Ours(SpecVLM(prune_ratio=0.5))
    assert ways["long"] == Ours(SpeculativeDecoding(num_speculative_tokens=9))
    assert ways["five"] == HfAssisted(num_assistant_tokens=5)
    assert ways["five"].settings() == {"peer": "hf-assisted", "num_assistant_tokens": 5}
    assert ways["half"].settings()["prune_ratio"] == 0.5


def test_lossy_peers_by_their_options() -> None:
    """Options come back from JSON as they went in."""
    extra = {
        "most": {"peer": "fastv", "layer": 3, "prune_ratio": 0.9},
        "late": {"peer": "pdrop", "drop_layers": [4, 9]},
    }
    peers = ("fastv", "pdrop", "sparsevlm", "dycoke-target")
    ways = {
        one.name: one.way for one in line_up(BenchOptions(methods=(), peers=peers, extra=extra))
    }
    assert list(ways) == ["hf-generate", *peers, "most", "late"]
    assert ways["most"] == Lossy(FastV(layer=3, prune_ratio=0.9))
    assert ways["late"] == Lossy(PDrop(drop_layers=(4, 9)))
    for name in (*peers, "most", "late"):
        settings = json.loads(json.dumps(ways[name].settings()))
        again = line_up(BenchOptions(methods=(), peers=(), extra={name: settings}))[1]
        assert again.way == ways[name]
    assert ways["fastv"].settings() == {"peer": "fastv", "layer": 2, "prune_ratio": 0.5}


def test_a_sweep_adds_variants_of_the_methods_that_have_the_field() -> None:
    extra = {"random": {"method": "specvlm", "pruner": "random"}}
    chosen = line_up(BenchOptions(peers=(), extra=extra, sweep={"prune_ratio": (0, 0.9, 1)}))
    found = {one.name: (one.base, one.varied) for one in chosen if one.base}
    assert found == {
        "specvlm prune_ratio=0": ("specvlm", ("prune_ratio", 0)),
        "specvlm prune_ratio=1": ("specvlm", ("prune_ratio", 1)),
        "random prune_ratio=0": ("random", ("prune_ratio", 0)),
        "random prune_ratio=1": ("random", ("prune_ratio", 1)),
    }  # 0.9 is there already, under its own name
    assert chosen[-1].way == Ours(SpecVLM(prune_ratio=1, pruner="random"))


def test_nothing_equal_is_measured_twice_by_a_sweep() -> None:
    """Whatever it is called: `half` is specvlm at 0.5, so both have the same variants."""
    extra = {"half": {"method": "specvlm", "prune_ratio": 0.5}}
    sweep = {"prune_ratio": (0, 0.5, 0.0, 0.9, 0.5)}
    chosen = line_up(BenchOptions(methods=("specvlm",), peers=(), extra=extra, sweep=sweep))
    assert [one.name for one in chosen] == [
        "hf-generate",
        "specvlm",
        "half",
        "specvlm prune_ratio=0",
    ]


def test_trees_are_swept_over() -> None:
    paths = [[0], [1]]
    chosen = line_up(
        BenchOptions(methods=("speculative",), peers=(), sweep={"tree": ("eagle", paths, paths)})
    )
    assert [one.varied for one in chosen[2:]] == [("tree", "eagle"), ("tree", paths)]
    assert chosen[-1].way == Ours(SpeculativeDecoding(tree=((0,), (1,))))


def test_views_and_weights_are_swept_over() -> None:
    sweep = {"weights": ("grid", "bayes"), "views": (["text"], ["multimodal", "text"])}
    chosen = line_up(BenchOptions(methods=("speculative", "tabed"), peers=(), sweep=sweep))
    assert [one.name for one in chosen[3:]] == ["tabed weights=grid", "tabed views=['text']"]
    assert chosen[3].way == Ours(TABED(weights="grid"))
    assert chosen[4].way == Ours(TABED(views=["text"]))


def test_two_sweeps_do_not_multiply() -> None:
    chosen = line_up(
        BenchOptions(peers=(), sweep={"prune_ratio": (0.5,), "num_speculative_tokens": (2, 3)})
    )
    bases = [(one.base, one.varied) for one in chosen if one.base]
    assert bases == [
        ("specvlm", ("prune_ratio", 0.5)),
        ("speculative", ("num_speculative_tokens", 2)),
        ("speculative", ("num_speculative_tokens", 3)),
        ("specvlm", ("num_speculative_tokens", 2)),
        ("specvlm", ("num_speculative_tokens", 3)),
    ]


def test_contexts_want_a_draft_that_prunes_nothing() -> None:
    assert names(BenchOptions(peers=(), context=(8, 16)))[-1] == "specvlm prune_ratio=0.0"
    assert (
        names(BenchOptions(peers=(), context=(8, 16), sweep={"prune_ratio": (0, 1)})).count(
            "specvlm prune_ratio=0"
        )
        == 1
    )
    assert "specvlm prune_ratio=0.0" not in names(
        BenchOptions(peers=(), context=(8,), sweep={"prune_ratio": (0,)})
    )
    assert len(names(BenchOptions(methods=("plain",), peers=(), context=(8, 16)))) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"methods": ("telepathy",)}, "unknown method 'telepathy'"),
        (
            {"peers": ("vllm",)},
            "unknown peer 'vllm'; known: dycoke-target, fastv, hf-assisted, hf-generate, pdrop",
        ),
        ({"extra": {"x": {"peer": "fastv", "gamma": 5}}}, "peer 'fastv' has no option 'gamma'"),
        ({"extra": {"x": {"peer": "fastv", "layer": 0}}}, "layer is the number of a layer, from 1"),
        ({"extra": {"x": {"method": "fastv"}}}, "'fastv' is a peer, not a method"),
        ({"methods": ("plain", "plain")}, "'plain' is named twice"),
        ({"extra": {"plain": {"method": "specvlm"}}}, "'plain' is named twice"),
        ({"extra": {"x": 5}}, "the settings of 'x' must be an object"),
        ({"extra": {"x": {"method": "hf-assisted"}}}, "'hf-assisted' is a peer, not a method"),
        (
            {"extra": {"x": {"peer": "hf-assisted", "gamma": 5}}},
            "has no option 'gamma'; known: num_assistant_tokens",
        ),
        ({"extra": {"x": {"method": "specvlm", "gamma": 5}}}, "has no option 'gamma'"),
        ({"sweep": {"warmth": (1, 2)}}, "no method in this run has a 'warmth' to sweep"),
        ({"sweep": {"prune_ratio": (2,)}}, "prune_ratio is a share between 0 and 1"),
        ({"repeats": 0}, "repeats must be at least 1"),
        ({"context": (8, 0)}, "context 0 must be at least 1"),
    ],
)
def test_what_is_refused(options: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("(", r"\(")):
        line_up(BenchOptions(**options))
