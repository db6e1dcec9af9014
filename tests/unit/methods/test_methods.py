"""Methods: the same keys in Python, JSON and YAML; nothing unknown, nothing senseless."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from draftlens import PlainDecoding, SpeculativeDecoding, SpecVLM, from_dict
from draftlens.core.errors import ConfigError, IncompatiblePairError
from draftlens.core.tree import chain, from_paths
from draftlens.draft import NoDraft, SmallModelDrafter
from draftlens.methods import METHODS, TREES, Method, resolve
from draftlens.prune.attention import SpecVLMPruner
from draftlens.prune.spatial import RandomPruner, WindowPruner

KEYS = {
    "plain": {},
    "speculative": {"num_speculative_tokens": 5, "tree": None, "sampling_rule": "coupled"},
    "specvlm": {
        "num_speculative_tokens": 5,
        "tree": "eagle",
        "sampling_rule": "coupled",
        "prune_ratio": 0.9,
        "pruner": "specvlm",
        "attention_mass": 0.4,
        "positions": "original",
        "draft": "auto",
        "kv": "prefill",
        "window": "front",
        "seed": 0,
    },
}
"""Method to its keys and defaults: people's configuration files depend on these."""


def test_the_flag_set_is_frozen() -> None:
    assert list(METHODS) == sorted(KEYS)
    for name, keys in KEYS.items():
        assert dataclasses.asdict(from_dict({"method": name})) == keys
        assert METHODS[name].name == name


@pytest.mark.parametrize(
    "method",
    [
        PlainDecoding(),
        SpeculativeDecoding(),
        SpeculativeDecoding(num_speculative_tokens=2, sampling_rule="rejection"),
        SpeculativeDecoding(tree="eagle"),
        SpeculativeDecoding(tree=[[0], [1], [0, 0]]),
    ],
)
def test_json_round_trip(method: Method) -> None:
    text = json.dumps({"method": method.name, **dataclasses.asdict(method)})
    assert from_dict(json.loads(text)) == method
    assert hash(from_dict(json.loads(text))) == hash(method)


def test_a_tree_reads_the_same_as_lists_and_tuples() -> None:
    paths = [[0], [1], [0, 0]]
    methods = {
        SpeculativeDecoding(tree=tree) for tree in (paths, tuple(paths), tuple(map(tuple, paths)))
    }
    assert len(methods) == 1
    paths.append([7, 7])
    assert methods.pop().topology == from_paths([[0], [1], [0, 0]])


def test_topologies() -> None:
    assert SpeculativeDecoding(num_speculative_tokens=3).topology == chain(3)
    assert SpeculativeDecoding(tree="eagle").topology == from_paths(TREES["eagle"])
    assert len(SpeculativeDecoding(tree="eagle").topology) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "unknown method 'magic'; known: plain, speculative"),
        (
            {"method": "speculative", "gamma": 3, "alpha": 1},
            "method 'speculative' does not know 'alpha', 'gamma'; known: "
            "num_speculative_tokens, tree, sampling_rule",
        ),
        ({"name": "x"}, "method 'speculative' does not know 'name'; known: num_speculative_tokens"),
        ({"method": "plain", "tree": None}, "method 'plain' does not know 'tree'; known: none"),
        (
            {"num_speculative_tokens": 0},
            "num_speculative_tokens must be a whole number of at least 1, not 0",
        ),
        (
            {"num_speculative_tokens": 2.0},
            "num_speculative_tokens must be a whole number of at least 1, not 2.0",
        ),
        (
            {"num_speculative_tokens": True},
            "num_speculative_tokens must be a whole number of at least 1, not True",
        ),
        (
            {"num_speculative_tokens": "5"},
            "num_speculative_tokens must be a whole number of at least 1, not '5'",
        ),
        ({"sampling_rule": "hope"}, "unknown sampling_rule 'hope'; known: coupled, rejection"),
        ({"tree": "oak"}, "unknown tree 'oak'; known: auto, eagle, or a list of paths"),
        ({"tree": 3}, "a tree is a list of non-empty paths"),
        ({"tree": [0, 1]}, "a tree is a list of non-empty paths"),
        ({"tree": [[1]]}, "needs [0], which is missing"),
    ],
)
def test_senseless_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict(options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prune_ratio": 1.1}, "prune_ratio is a share between 0 and 1, not 1.1"),
        ({"prune_ratio": -0.1}, "prune_ratio is a share between 0 and 1, not -0.1"),
        ({"prune_ratio": "half"}, "prune_ratio is a share between 0 and 1, not 'half'"),
        ({"pruner": "best"}, "unknown pruner 'best'; known: all, attention"),
        ({"positions": "none"}, "unknown positions 'none'; known: original, compact"),
        ({"draft": "me"}, "unknown draft 'me'; known: auto, model, self"),
        ({"kv": "steal"}, "unknown kv 'steal'; known: prefill, gather"),
        (
            {"pruner": "specvlm", "attention_mass": 2},
            "attention_mass is a share between 0 and 1, not 2",
        ),
        ({"pruner": "window", "window": "top"}, "window is front, middle or end, not 'top'"),
        ({"attention_mass": "0.4"}, "attention_mass is a share between 0 and 1, not '0.4'"),
        ({"attention_mass": None}, "attention_mass is a share between 0 and 1, not None"),
        ({"pruner": "random", "seed": 1.5}, "seed is a whole number from 0, not 1.5"),
        ({"pruner": "random", "seed": -1}, "seed is a whole number from 0, not -1"),
        ({"pruner": "random", "seed": None}, "seed is a whole number from 0, not None"),
        ({"pruner": ["random"]}, "unknown pruner ['random']; known: all"),
        (
            {"gamma": 3},
            "method 'specvlm' does not know 'gamma'; known: num_speculative_tokens, tree",
        ),
        ({"tree": "oak"}, "unknown tree 'oak'"),
        ({"kv": "gather", "positions": "compact"}, "positions must be"),
        ({"tree": "auto", "sampling_rule": "rejection"}, "goes by the clock"),
    ],
)
def test_senseless_pruning_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict({"method": "specvlm", **options})
    assert message in str(error.value)


def test_the_options_of_a_pruner() -> None:
    """Each gets those that it knows."""
    for fields, expected in (
        ({"pruner": "window", "window": "end"}, WindowPruner("end")),
        ({"pruner": "random", "seed": 5}, RandomPruner(5)),
        ({"attention_mass": 0.7}, SpecVLMPruner(0.7)),
        ({}, SpecVLMPruner(0.4)),
    ):
        pruning = SpecVLM(prune_ratio=0.3, positions="compact", **fields).pruning  # type: ignore[arg-type]
        assert (pruning.pruner, pruning.ratio, pruning.positions) == (expected, 0.3, "compact")


def test_gathered_keys_stay_where_they_were() -> None:
    with pytest.raises(ConfigError, match=r'gathered keys .*: positions must be "original"'):
        SpecVLM(draft="self", kv="gather", positions="compact").drafter(model("Big"), None, {})


def test_from_dict_leaves_its_argument_alone() -> None:
    options = {"method": "speculative", "tree": [[0]]}
    from_dict(options)
    assert options == {"method": "speculative", "tree": [[0]]}


def test_methods_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SpeculativeDecoding().tree = "eagle"  # type: ignore[misc]


def test_resolve() -> None:
    given = SpeculativeDecoding(tree="eagle")
    assert resolve(given, has_draft=False) is given
    assert resolve(None, has_draft=True) == SpeculativeDecoding()
    assert resolve(None, has_draft=False) == PlainDecoding()
    assert resolve("plain", has_draft=True) == PlainDecoding()
    assert resolve({"num_speculative_tokens": 2}, has_draft=True) == SpeculativeDecoding(
        num_speculative_tokens=2
    )


def model(name: str, vocab_size: int = 100, *modalities: str) -> Any:
    return SimpleNamespace(name=name, vocab_size=vocab_size, modalities=frozenset(modalities))


def test_drafters() -> None:
    assert isinstance(PlainDecoding().drafter(model("Big"), None, {}), NoDraft)
    drafter = SpeculativeDecoding(tree="eagle").drafter(
        model("Big", 120), model("Small", 100), {"input_ids": 1}
    )
    assert isinstance(drafter, SmallModelDrafter)
    assert (len(drafter.topology), drafter.inputs, drafter.vocab) == (25, {"input_ids": 1}, 120)
    with pytest.raises(ConfigError, match="method 'speculative' needs a draft model"):
        SpeculativeDecoding().drafter(model("Big"), None, {})
    with pytest.raises(IncompatiblePairError, match="Small cannot see"):
        SpeculativeDecoding().drafter(model("Big", 100, "image"), model("Small"), {})
