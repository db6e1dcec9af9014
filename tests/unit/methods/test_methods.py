"""Methods: the same keys in Python, JSON and YAML; nothing unknown, nothing senseless."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from draftlens_lab.plugins.spatial_pruners import RandomPruner, WindowPruner

from draftlens import (
    HSD,
    TABED,
    Automatic,
    Lookup,
    Mixed,
    ParallelVLM,
    PlainDecoding,
    SpeculativeDecoding,
    SpecVLM,
)
from draftlens.core.errors import ConfigError, IncompatiblePairError, UnsupportedModelError
from draftlens.core.tree import chain, from_paths
from draftlens.decoding.plan import NoDraft
from draftlens.drafting.draft_prompt import (
    DraftPromptBuilder,
    SelfPromptBuilder,
    TextPromptBuilder,
)
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.base import METHODS, Method, Models, from_dict, resolve, to_dict, with_option
from draftlens.methods.parts import TREES
from draftlens.pruning.attention import SampledAttentionPruner, SpecVLMPruner

RUNTIME = {"schedule": "serial", "prefill": {"name": "full"}}
KEYS = {
    "auto": {"prefill": {"name": "full"}},
    "plain": RUNTIME,
    "lookup": {
        "num_speculative_tokens": None,
        "window": 3,
        "max_branches": 4,
        "sampling_rule": "coupled",
        **RUNTIME,
    },
    "hsd": {
        "num_speculative_tokens": None,
        "window": 3,
        "max_branches": 4,
        "max_nodes": 256,
        "max_depth": None,
        "tolerance": 1.0,
        "matching": "text",
        "variants": True,
        "recovery": True,
        "heads": True,
        "sampling_rule": "coupled",
        **RUNTIME,
    },
    "speculative": {
        "num_speculative_tokens": None,
        "tree": "auto",
        "sampling_rule": "coupled",
        **RUNTIME,
    },
    "specvlm": {
        "num_speculative_tokens": None,
        "tree": "auto",
        "sampling_rule": "coupled",
        "prune_ratio": 0.9,
        "pruner": {"name": "attention-sampled", "share": 0.5},
        "draft": "auto",
        **RUNTIME,
    },
    "self-sd": {
        "num_speculative_tokens": None,
        "tree": "auto",
        "sampling_rule": "coupled",
        "prune_ratio": 0.9,
        "pruner": {"name": "specvlm", "attention_mass": 0.4},
        "draft": "self",
        "kv": "prefill",
        **RUNTIME,
    },
    "parallelvlm": {
        "num_speculative_tokens": None,
        "tree": "auto",
        "sampling_rule": "coupled",
        "prune_ratio": 0.9,
        "pruner": {
            "name": "uv-sampled",
            "layer": 20,
            "text": "all",
            "criterion": "similarity",
            "variation": True,
            "share": 0.5,
        },
        "draft": "auto",
        "schedule": "parallel",
        "prefill": {"name": "full"},
    },
    "mixed": {
        "model": {"name": "speculative", "num_speculative_tokens": None, "tree": "auto"}
        | {"sampling_rule": "coupled", **RUNTIME},
        "copying": {"name": "lookup", "num_speculative_tokens": None, "window": 3}
        | {"max_branches": 4, "sampling_rule": "coupled", **RUNTIME},
        "sampling_rule": "coupled",
        **RUNTIME,
    },
    "tabed": {
        "views": [{"name": "multimodal"}, {"name": "text", "instead": "\n"}],
        "weights": {"name": "bayes", "rate": 1.0, "forget": 0.02, "floor": 1e-4},
        "rest": True,
        "num_speculative_tokens": 5,
        "tree": None,
        "sampling_rule": "coupled",
        "draft": "auto",
        **RUNTIME,
    },
}
"""Method, also of the laboratory, to its keys and defaults: people's configuration files depend on
these."""


def test_the_flag_set_is_frozen() -> None:
    assert list(METHODS) == sorted(KEYS)
    for name, keys in KEYS.items():
        assert to_dict(from_dict({"method": name})) == {"method": name, **keys}
        assert METHODS.name_of(METHODS[name]) == name


@pytest.mark.parametrize(
    "method",
    [
        PlainDecoding(),
        SpeculativeDecoding(),
        SpeculativeDecoding(num_speculative_tokens=2, sampling_rule="rejection"),
        SpeculativeDecoding(tree="eagle"),
        SpeculativeDecoding(tree=[[0], [1], [0, 0]]),
        SpecVLM(pruner={"name": "dycoke", "group": 2}, prune_ratio=0.5),
        SpeculativeDecoding(schedule="parallel", num_speculative_tokens=3),
        ParallelVLM(),
        ParallelVLM(num_speculative_tokens=4, pruner="random", draft="self"),
        ParallelVLM(schedule="serial", tree="eagle"),
        TABED(tree="eagle", weights=[0.7, 0.3]),
        TABED(
            views=["multimodal", {"pruner": "window", "ratio": 0.5}, {"name": "pooled", "size": 3}],
            weights={"name": "grid", "window": 4},
            rest=False,
        ),
        TABED(views=["text", {"name": "caption", "captioner": ["a cat", "a dog"]}]),
        Lookup(),
        Lookup(num_speculative_tokens=10, window=2, max_branches=1),
        HSD(),
        HSD(tolerance=0.75, matching="tokens", recovery=False, max_nodes=64, max_depth=16),
    ],
)
def test_json_round_trip(method: Method) -> None:
    text = json.dumps(to_dict(method))
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


@pytest.mark.parametrize("name", ["speculative", "specvlm"])
@pytest.mark.parametrize(
    ("options", "length", "tree"),
    [
        ({}, None, "auto"),
        ({"tree": "auto"}, None, "auto"),
        ({"num_speculative_tokens": 3}, 3, None),
        ({"num_speculative_tokens": 3, "tree": "auto"}, 3, None),
        ({"tree": "eagle"}, None, "eagle"),
        ({"tree": [[0], [0, 0]]}, None, ((0,), (0, 0))),
        ({"sampling_rule": "rejection"}, 5, None),
        ({"sampling_rule": "rejection", "num_speculative_tokens": 2}, 2, None),
        ({"sampling_rule": "rejection", "tree": "eagle"}, None, "eagle"),
    ],
)
def test_a_length_means_a_chain_and_nothing_the_automatic_tree(
    name: str, options: dict[str, Any], length: int | None, tree: object
) -> None:
    method: Any = from_dict({"method": name, **options})
    assert (method.num_speculative_tokens, method.tree) == (length, tree)


def test_an_automatic_tree_becomes_a_chain_by_its_length() -> None:
    """So sweeps over the length work from the default."""
    method: Any = with_option(SpeculativeDecoding(), "num_speculative_tokens", 3)
    assert method == SpeculativeDecoding(num_speculative_tokens=3)


def test_topologies() -> None:
    assert SpeculativeDecoding(num_speculative_tokens=3).topology == chain(3)
    assert SpeculativeDecoding(tree="eagle").topology == from_paths(TREES["eagle"])
    assert len(SpeculativeDecoding(tree="eagle").topology) == 25


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"method": "magic"},
            "unknown method 'magic'; known: auto, hsd, lookup, mixed, ",
        ),
        (
            {"method": "speculative", "gamma": 3, "alpha": 1},
            "method 'speculative' has no option 'alpha', 'gamma'; known: "
            "num_speculative_tokens, tree, sampling_rule",
        ),
        ({"name": "x"}, "method 'speculative' has no option 'name'; known: num_speculative_tokens"),
        (
            {"method": "plain", "tree": None},
            "method 'plain' has no option 'tree'; known: schedule, prefill",
        ),
        ({"method": "parallelvlm", "hedges": 3}, "method 'parallelvlm' has no option 'hedges'"),
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
        ({"positions": "compact"}, "no option 'positions': kept tokens stay at their positions"),
        ({"draft": "me"}, "unknown draft 'me'; known: auto, model, self"),
        ({"kv": "prefill"}, "no option 'kv': draft 'self' takes the target's keys and values"),
        (
            {"pruner": {"name": "specvlm", "attention_mass": 2}},
            "attention_mass is a share between 0 and 1, not 2",
        ),
        (
            {"pruner": {"name": "window", "window": "top"}},
            "window is front, middle or end, not 'top'",
        ),
        (
            {"pruner": {"name": "specvlm", "attention_mass": "0.4"}},
            "attention_mass is a share between 0 and 1, not '0.4'",
        ),
        (
            {"pruner": {"name": "specvlm", "attention_mass": None}},
            "attention_mass is a share between 0 and 1, not None",
        ),
        ({"pruner": {"name": "random", "seed": 1.5}}, "seed is a whole number from 0, not 1.5"),
        ({"pruner": {"name": "random", "seed": -1}}, "seed is a whole number from 0, not -1"),
        ({"pruner": {"name": "random", "seed": None}}, "seed is a whole number from 0, not None"),
        ({"pruner": {"name": ["random"]}}, "unknown pruner ['random']; known: all"),
        (
            {"pruner": ["random"]},
            "a pruner is a name, a mapping of its name and options, or an object, not ['random']",
        ),
        ({"pruner": {"seed": 3}}, "the options of a pruner need its name: {'seed': 3}"),
        (
            {"pruner": {"name": "random", "window": "end"}},
            "pruner 'random' has no option 'window'; known: seed",
        ),
        (
            {"prefill": 3},
            "a prefill is a name, a mapping of its name and options, or an object, not 3",
        ),
        ({"prefill": "half"}, "unknown prefill 'half'; known: full"),
        ({"schedule": "zigzag"}, "unknown schedule 'zigzag'; known: parallel, serial"),
        ({"schedule": None}, "schedule must be one of parallel, serial, not None"),
        (
            {"gamma": 3},
            "method 'specvlm' has no option 'gamma'; known: num_speculative_tokens, tree",
        ),
        ({"tree": "oak"}, "unknown tree 'oak'"),
        ({"tree": "auto", "sampling_rule": "rejection"}, "depends on measured times"),
    ],
)
def test_senseless_pruning_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        from_dict({"method": "specvlm", **options})
    assert message in str(error.value)


def test_the_options_of_a_pruner() -> None:
    """They are nested in the method's."""
    for fields, expected in (
        ({"pruner": {"name": "window", "window": "end"}}, WindowPruner("end")),
        ({"pruner": {"name": "random", "seed": 5}}, RandomPruner(5)),
        ({"pruner": RandomPruner(5)}, RandomPruner(5)),
        ({"pruner": {"name": "specvlm", "attention_mass": 0.7}}, SpecVLMPruner(0.7)),
        ({"pruner": "specvlm"}, SpecVLMPruner(0.4)),
        ({}, SampledAttentionPruner(0.5)),
    ):
        method = SpecVLM(prune_ratio=0.3, **fields)  # type: ignore[arg-type]
        pruning = method.pruning
        assert (pruning.pruner, pruning.ratio) == (expected, 0.3)


def test_from_dict_leaves_its_argument_alone() -> None:
    options = {"method": "speculative", "tree": [[0]]}
    from_dict(options)
    assert options == {"method": "speculative", "tree": [[0]]}


def test_methods_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SpeculativeDecoding().tree = "eagle"  # type: ignore[misc]


def test_resolve() -> None:
    given = SpeculativeDecoding(tree="eagle")
    assert resolve(given) is given
    assert resolve(None) == Automatic()
    assert resolve("plain") == PlainDecoding()
    assert resolve({"num_speculative_tokens": 2}) == SpeculativeDecoding(num_speculative_tokens=2)


def model(name: str, vocab_size: int = 100, *modalities: str) -> Any:
    return SimpleNamespace(
        name=name,
        vocab_size=vocab_size,
        modalities=frozenset(modalities),
        retokenizer=None,
        device=torch.device("cpu"),
        text_config=SimpleNamespace(max_position_embeddings=2048),
        chains_only="",
        plain_only="",
        indexers=None,
        model=torch.nn.Module(),
    )


def test_the_default_follows_from_the_models() -> None:
    target, small, other = model("Big", 120), model("Small"), model("Other")
    other.retokenizer = object()
    for prefill in ("full", "spava"):
        method = Automatic(prefill=prefill)
        assert method.method_for(Models(target, small)) == Mixed(prefill=prefill)
        assert method.method_for(Models(target)) == Lookup(prefill=prefill)
        alone = SpeculativeDecoding(prefill=prefill)
        assert method.method_for(Models(target, other)) == alone
    target.plain_only = "its cache cannot be rolled back"
    assert Automatic().method_for(Models(target)) == PlainDecoding()
    with pytest.raises(UnsupportedModelError, match="cannot be rolled back"):
        Automatic().plan(Models(target, small))
    with pytest.raises(ConfigError, match="prefill"):
        Automatic(prefill="backwards")


def test_drafters() -> None:
    plan = PlainDecoding().plan(Models(model("Big")))
    assert isinstance(plan.drafter, NoDraft)
    assert not plan.uses_draft
    small = model("Small", 100)
    plan = SpeculativeDecoding(tree="eagle").plan(Models(model("Big", 120), small))
    drafter = plan.drafter
    assert plan.uses_draft
    assert isinstance(drafter, ModelDrafter)
    assert (len(drafter.topology), drafter.rows.vocab_size) == (25, 120)
    assert drafter.prompts.backbone is small
    with pytest.raises(ConfigError, match="method 'speculative' needs a draft model"):
        SpeculativeDecoding().plan(Models(model("Big")))
    with pytest.raises(IncompatiblePairError, match="Small cannot see"):
        SpeculativeDecoding().plan(
            Models(model("Big", 100, "image", "video"), model("Small", 100, "image"))
        )


def test_a_draft_without_vision_reads_words_unless_the_target_does_so_too() -> None:
    seeing, blind = model("Big", 100, "text", "image"), model("Small", 100, "text")
    seeing.model.config = blind.model.config = None
    for target, reader in ((seeing, TextPromptBuilder), (blind, DraftPromptBuilder)):
        drafter = SpeculativeDecoding().plan(Models(target, blind)).drafter
        assert isinstance(drafter, ModelDrafter)
        assert type(drafter.prompts) is reader
    with pytest.raises(IncompatiblePairError, match="'specvlm' prunes visual tokens"):
        SpecVLM().plan(Models(seeing, blind))
    with pytest.raises(IncompatiblePairError, match="with schedule 'parallel' lets it draft"):
        ParallelVLM().plan(Models(seeing, blind))


@pytest.mark.parametrize(
    ("draft", "has_draft", "reader"),
    [
        ("auto", True, DraftPromptBuilder),
        ("auto", False, SelfPromptBuilder),
        ("model", True, DraftPromptBuilder),
        ("self", True, SelfPromptBuilder),
        ("self", False, SelfPromptBuilder),
    ],
)
def test_the_model_that_drafts(draft: str, has_draft: bool, reader: type) -> None:
    models = Models(model("Big"), model("Small") if has_draft else None)
    plan = SpecVLM(draft=draft).plan(models)
    assert isinstance(plan.drafter, ModelDrafter)
    assert type(plan.drafter.prompts) is reader
    assert plan.uses_draft is (reader is DraftPromptBuilder)
    assert bool(plan.drafter.readings)


def test_a_method_that_needs_a_draft_model() -> None:
    with pytest.raises(
        ConfigError, match="method 'specvlm' with draft 'model' needs a draft model"
    ):
        SpecVLM(draft="model").plan(Models(model("Big")))


def test_a_plan_serves_one_session() -> None:
    """Drafters keep state."""
    method, models = SpeculativeDecoding(), Models(model("Big"), model("Small"))
    assert method.plan(models).drafter is not method.plan(models).drafter


def test_one_other_option() -> None:
    method = SpecVLM(pruner={"name": "random", "seed": 3})
    assert with_option(method, "prune_ratio", 0.5) == SpecVLM(
        pruner=RandomPruner(3), prune_ratio=0.5
    )
    assert with_option(method, "pruner.seed", 5) == SpecVLM(pruner=RandomPruner(5))
    for path in ("seed", "pruner.window", "pruner.seed.more", "kv.seed"):
        with pytest.raises(ConfigError, match=f"method 'specvlm' has no option '{path}'"):
            with_option(method, path, 1)
    with pytest.raises(ConfigError, match="seed is a whole number from 0, not -1"):
        with_option(method, "pruner.seed", -1)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("speculative", "first_guesses", True),
        ("specvlm", "first_guesses", "auto"),
        ("parallelvlm", "first_guesses", False),
        ("hsd", "first_guesses", True),
        ("hsd", "longest_window", 10),
        ("lookup", "share_answers", True),
        ("parallelvlm", "wait", 3),
    ],
)
def test_options_of_earlier_versions_are_refused(name: str, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"method '{name}' has no option '{option}'; known"):
        from_dict({"method": name, option: value})


@pytest.mark.parametrize("name", ["speculative", "specvlm", "parallelvlm"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "eagle"}, "takes num_speculative_tokens and no tree"),
        ({"tree": [[0], [0, 0]]}, "takes num_speculative_tokens and no tree"),
        ({"num_speculative_tokens": 0}, "at least 1"),
        ({"schedule": "sideways"}, "parallel, serial"),
        ({"schedule": "lockstep"}, "is schedule 'parallel' with num_speculative_tokens"),
    ],
)
def test_what_a_draft_that_runs_ahead_cannot_do(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"method": name, "schedule": "parallel", **options})


@pytest.mark.parametrize("name", ["speculative", "specvlm", "parallelvlm"])
def test_rejection_without_a_length_has_one_that_does_not_depend_on_time(name: str) -> None:
    options = {"method": name, "sampling_rule": "rejection"}
    for schedule in ("parallel", "serial"):
        assert from_dict({**options, "schedule": schedule}).num_speculative_tokens == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": {"name": "speculative", "tree": "eagle"}}, "the tree by measured costs"),
        ({"model": {"name": "speculative", "num_speculative_tokens": 3}}, "model takes no num"),
        ({"model": {"name": "speculative", "schedule": "parallel"}}, "schedule is 'serial'"),
        ({"model": "lookup"}, "one of self-sd, speculative, specvlm, not 'lookup'"),
        ({"model": "parallelvlm"}, "not 'parallelvlm'"),
        ({"model": "tabed"}, "not 'tabed'"),
        ({"model": "mixed"}, "not 'mixed'"),
        ({"copying": "speculative"}, "copying of method 'mixed' must be one of hsd, lookup, not"),
        ({"copying": {"name": "lookup", "num_speculative_tokens": 3}}, "copying takes no num"),
        ({"model": "magic"}, "unknown method 'magic'"),
        ({"copying": {"window": 2}}, "need its name"),
        (
            {"sampling_rule": "rejection"},
            "they would decide which tokens are drawn",
        ),
        ({"schedule": "parallel"}, "it compares the costs of its drafters in each round"),
    ],
)
def test_what_mixed_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        from_dict({"method": "mixed", **options})
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv": "steal"}, "unknown kv 'steal'; known: prefill, sparse"),
        ({"draft": "model"}, "has draft 'self', not 'model'"),
        ({"kv": "sparse", "schedule": "parallel"}, "use 'prefill' with schedule 'parallel'"),
    ],
)
def test_what_self_sd_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_dict({"method": "self-sd", **options})
