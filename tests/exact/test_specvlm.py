"""Method `specvlm`: whatever the draft does not see, the answer is stock `generate`'s and the draft
is as good as said.

The rounds are compared with a slow twin: each row's kept tokens and its answer in one pass, without
cache or batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import combinations, cycle, product
from typing import Any, NamedTuple

import pytest
import torch
from families import FAMILIES, Family, inputs
from stock import (
    ALL_KINDS,
    LONG,
    METHODS,
    NEW,
    draft,
    ranks_of,
    reference,
    rounds,
    self_drafting,
    staggered,
    stock,
    target,
)
from transformers import DynamicCache

import draftlens
from draftlens import ConfigError, UnsupportedModelError
from draftlens.decoding.session import Session
from draftlens.drafting.pruning import Pruning
from draftlens.methods.base import from_dict
from draftlens.models.adapter import Backbone
from draftlens.models.attention.scores import AttentionProbe
from draftlens.models.prompt import Prompt
from draftlens.models.support import with_cache
from draftlens.pruning import PRUNERS

BY_NAME = {family.name: family for family in FAMILIES}
TREES = ("chain5", "eagle", "odd")
SOURCES = ("prefill", "gather", "sparse")
DRAFTS = ("noisy", "random", *SOURCES)
"""A draft model, another that is always wrong, or the target itself by any way to its keys and
values."""

WHOLLY = (("qwen2_5_vl", "video"), ("qwen3_vl", "mixed"), ("llava", "image"))
"""M-RoPE, deepstack and neither: where every pruner is tried."""

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
itself = pytest.mark.parametrize("drafts", SOURCES)


class Case(NamedTuple):
    """One run of the matrix."""

    family: str
    kind: str
    pruner: str
    ratio: float
    drafts: str
    tree: str
    rows: tuple[int, ...]

    def __str__(self) -> str:
        return "-".join(map(str, (*self[:-1], "ragged" if len(self.rows) > 1 else "one")))


def covering() -> Iterator[Case]:
    """Three pruners or all of them for each kind of input; the rest so that all pairs of values
    meet soon."""
    names, met = cycle(PRUNERS), set[Any]()
    rest = list(product((0, 0.5, 0.9, 1), DRAFTS, TREES, ((0, 1, 2), (0,))))
    for family, kind in ALL_KINDS:
        wholly = (family.name, kind) in WHOLLY
        for pruner in PRUNERS if wholly else [next(names) for _ in range(3)]:
            cases = [Case(family.name, kind, pruner, *values) for values in rest]
            best = max(cases, key=lambda case: len(set(combinations(enumerate(case), 2)) - met))
            met.update(combinations(enumerate(best), 2))
            yield best


CASES = tuple(covering())


def method(drafts: str, tree: str, **fields: Any) -> dict[str, Any]:
    """Options of the method."""
    drafting = {"method": "specvlm", "draft": "model"}
    mine = self_drafting(drafts) if drafts in SOURCES else drafting
    return {"tree": None, **METHODS[tree], **mine, **fields}


def open_stream(
    family: Family, kind: str, drafts: str, tree: str, **given: Any
) -> draftlens.Stream:
    """A call of the library: `rows` and options of `generate`, and of the method."""
    rows, seed = given.pop("rows", (0, 1, 2)), given.pop("seed", None)
    fields = {
        name: given.pop(name)
        for name in from_dict({"method": "specvlm"}).__dataclass_fields__
        if name in given
    }
    small = draft(family, drafts) if drafts in ("noisy", "random") else None
    options = {"max_new_tokens": NEW, **given}
    chosen = method(drafts, tree, **fields)
    return draftlens.stream(
        target(family), inputs(family, kind, rows), draft=small, method=chosen, seed=seed, **options
    )


def run(family: Family, kind: str, drafts: str, tree: str, **given: Any) -> draftlens.Result:
    """The same to its end."""
    return open_stream(family, kind, drafts, tree, **given).run()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[list[list[int]]]:
    """What the pruner left, call by call: per row the indices of prompt tokens."""
    heard: list[list[list[int]]] = []
    keep = Pruning.keep

    def listen(self: Pruning, *args: Any) -> list[torch.Tensor]:
        rows = keep(self, *args)
        heard.append([row.tolist() for row in rows])
        return rows

    monkeypatch.setattr(Pruning, "keep", listen)
    return heard


def visual_tokens(family: Family, kind: str) -> list[int]:
    """How many of each row's tokens stand for pixels, by the ids that its processor writes."""
    names = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
    config = {**family.model.config_class().to_dict(), **family.config}
    ids = {config[name] for name in names if isinstance(config.get(name), int)}
    return [
        sum(token in ids for token in row) for row in inputs(family, kind)["input_ids"].tolist()
    ]


def expected_keep(case: Case, count: int) -> int:
    """Visual tokens that stay of `count`, in fractions; `sparse` has a pruner of its own."""
    by_ratio = int(count * (1 - Fraction(str(case.ratio))))
    return (
        by_ratio
        if case.drafts == "sparse"
        else {"none": count, "all": 0}.get(case.pruner, by_ratio)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_and_the_rounds(case: Case, kept: list[list[list[int]]]) -> None:
    """Tokens, counts and every round."""
    family, kind, rows = BY_NAME[case.family], case.kind, case.rows
    fields = {"pruner": case.pruner, "prune_ratio": case.ratio}
    result = run(family, kind, case.drafts, case.tree, rows=rows, **fields)
    assert result.tokens == reference(family, kind)[: len(rows)]
    assert result.lossless
    counts = visual_tokens(family, kind)[: len(rows)]
    assert result.stats.visual == sum(counts)
    assert result.stats.kept == sum(expected_keep(case, count) for count in counts)
    many = target(family).config.get_text_config().num_hidden_layers
    assert len(kept) == (1 + many if case.drafts == "sparse" else 1)
    ranks = [twin(family, kind, row, [choice[row] for choice in kept], case) for row in rows]
    assert result.stats.accepted_by_depth == rounds(from_dict(METHODS[case.tree]).topology, ranks)


def test_the_cases_cover_all_pairs() -> None:
    """Any two choices meet in some case, but that each family has six pruners at least."""
    for one, other in combinations(("ratio", "drafts", "tree", "rows", "pruner", "family"), 2):
        if (one, other) == ("pruner", "family"):
            continue
        met = {(getattr(case, one), getattr(case, other)) for case in CASES}
        ones, others = ({getattr(case, name) for case in CASES} for name in (one, other))
        assert met == set(product(ones, others)), (one, other)
    assert {case.pruner for case in CASES} == set(PRUNERS)
    for family in FAMILIES:
        assert len({case.pruner for case in CASES if case.family == family.name}) >= 6
    assert {(case.family, case.kind) for case in CASES} == {
        (family.name, kind) for family, kind in ALL_KINDS
    }
    for pair in WHOLLY:
        assert {case.pruner for case in CASES if case[:2] == pair} == set(PRUNERS)


@torch.no_grad()
def twin(family: Family, kind: str, row: int, kept: list[list[int]], case: Case) -> list[int]:
    """How many tokens the draft likes better than each of the target's, the answer read along with
    what it sees.

    Args:
        kept: tokens of the prompt that stay; under `sparse` then those that each layer sees.
    """
    model = draft(family, case.drafts) if case.drafts in ("noisy", "random") else target(family)
    backbone = Backbone.of(model)
    prompt = backbone.encode(backbone.prepare(inputs(family, kind, (row,)), max_new_tokens=1))
    answer = torch.tensor(reference(family, kind)[row : row + 1])
    length, new = prompt.lengths[0], answer.shape[1] - 1
    # All tokens in one causal pass. What was pruned is hidden: from the answer alone, or from
    # everyone.
    hidden_from = length if case.drafts in ("gather", "sparse") else 0
    masks = [seen(length + new, set(range(length)) - set(choice), hidden_from) for choice in kept]
    positions, following = prompt.position_ids, prompt.next_position
    last = kept[0][-1]
    with masked(backbone.decoder, masks[1:]):
        output = backbone.decoder(
            inputs_embeds=torch.cat([prompt.embeds, backbone.embed(answer[:, :-1])], 1),
            attention_mask=masks[0],
            position_ids=torch.cat([positions, following + torch.arange(new)], -1),
            use_cache=False,
            **extra(prompt, new),
        )
    logits = backbone.head(output.last_hidden_state[:, [last, *range(length, length + new)]])
    return ranks_of(logits, answer)[0]


def seen(length: int, hidden: set[int], hidden_from: int) -> torch.Tensor:
    """A causal mask ``[1, 1, L, L]`` where the queries from a place on do not see some keys, but
    for themselves."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    mask[hidden_from:, sorted(hidden)] = False
    return mask.fill_diagonal_(True)[None, None]


@contextmanager
def masked(decoder: Any, masks: list[torch.Tensor]) -> Iterator[None]:
    """Layers with masks of their own, if there are any."""
    hooks = [
        layer.register_forward_pre_hook(
            lambda module, args, kwargs, mask=mask: (args, {**kwargs, "attention_mask": mask}),
            with_kwargs=True,
        )
        for layer, mask in zip(decoder.layers, masks, strict=bool(masks))
    ]
    yield
    for hook in hooks:
        hook.remove()


def extra(prompt: Prompt, new: int) -> dict[str, Any]:
    """Further arguments of the language model for a prompt and `new` words after it."""
    given = dict(prompt.extra)
    if "visual_pos_masks" in given:
        given["visual_pos_masks"] = torch.nn.functional.pad(given["visual_pos_masks"], (0, new))
    return given


UV_CASES: tuple[tuple[float, dict[str, Any]], ...] = (
    (0.5, {}),
    (1, {}),
    (0.5, {"text": "after"}),
    (0.5, {"layer": 1, "variation": False}),
    (0.5, {"criterion": "attention"}),
)
"""Prune ratio and options of pruner `uv`."""


@pytest.mark.pairwise("drafts")
@every_family
@pytest.mark.parametrize("drafts", ["noisy", "prefill"])
@pytest.mark.parametrize(("ratio", "options"), UV_CASES, ids=str)
def test_every_family_pruned_by_similarity(
    family: Family,
    drafts: str,
    ratio: float,
    options: dict[str, Any],
    kept: list[list[list[int]]],
) -> None:
    """A ragged batch says what stock `generate` says, and each row keeps what it keeps alone."""
    pruner = {"name": "uv", **options}
    result = run(family, family.richest, drafts, "chain5", pruner=pruner, prune_ratio=ratio)
    assert result.tokens == reference(family, family.richest)
    counts = visual_tokens(family, family.richest)
    assert result.stats.kept == sum(int(count * (1 - ratio)) for count in counts)
    (together,) = kept
    if ratio == 1 or drafts != "noisy":
        return
    fields = {"pruner": pruner, "prune_ratio": ratio, "max_new_tokens": 2}  # one draft is enough
    for row in range(3):
        run(family, family.richest, drafts, "chain5", rows=(row,), **fields)
    assert [rows[0] for rows in kept[1:]] == together


@every_family
@pytest.mark.parametrize(
    ("pruner", "tree"), [("specvlm", "eagle"), ("none", "chain5"), ("grid", "odd")]
)
def test_pruning_nothing_is_speculative_decoding(family: Family, pruner: str, tree: str) -> None:
    """The same rounds and the same work."""
    result = run(
        family,
        family.richest,
        "noisy",
        tree,
        prune_ratio=0.7 if pruner == "none" else 0,
        pruner=pruner,
    )
    given = inputs(family, family.richest)
    plain = draftlens.generate(
        target(family), given, draft=draft(family), method=METHODS[tree], max_new_tokens=NEW
    )
    assert result.tokens == plain.tokens == reference(family, family.richest)
    assert result.from_draft == plain.from_draft
    for name in ("accepted_by_depth", "target_forwards", "draft_forwards", "passes", "drafted"):
        assert getattr(result.stats, name) == getattr(plain.stats, name), name
    assert result.stats.visual == result.stats.kept > 0
    assert plain.stats.visual == plain.stats.kept == 0


@pytest.mark.pairwise("drafts")
@every_family
@itself
@pytest.mark.parametrize("tree", TREES)
def test_a_model_that_drafts_for_itself_and_sees_all_is_always_right(
    family: Family, drafts: str, tree: str
) -> None:
    """Every level of a tree is accepted; of the odd tree the likeliest draft token alone, which is
    a leaf."""
    result = run(family, "images", drafts, tree, prune_ratio=0)
    assert result.tokens == reference(family, "images")
    assert result.stats.mean_acceptance_length == {"chain5": 6, "eagle": 6, "odd": 2}[tree]


@pytest.mark.pairwise("drafts")
@every_family
@itself
def test_no_picture_is_left(family: Family, drafts: str) -> None:
    """Text alone is read again; gathered keys of text come from a pass that saw the pictures, and
    so remember them."""
    given = inputs(family, "image")
    darker = {
        name: value * 0.5 if name.startswith("pixel_values") else value
        for name, value in given.items()
    }
    caches = []
    for pictures in (given, darker):
        stream = draftlens.stream(
            target(family),
            pictures,
            method=method(drafts, "chain5", prune_ratio=1),
            max_new_tokens=NEW,
        )
        next(stream)
        stream.session.begin()
        drafter: Any = stream.session.drafter
        assert stream.session.stats.kept == 0
        text = [
            int(n)
            for n in given["attention_mask"].sum(1) - torch.tensor(visual_tokens(family, "image"))
        ]
        assert drafter.rows.prompt_lengths == drafter.rows.cache.lengths == text
        caches.append(
            [
                layer.keys[row, :, :n]
                for layer in drafter.rows.cache.layers
                for row, n in enumerate(text)
            ]
        )
    same = all(torch.equal(one, other) for one, other in zip(*caches, strict=True))
    assert same is (drafts == "prefill")


@every_family
@itself
def test_drafting_for_itself_copies_no_weights(
    family: Family, drafts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter's model is the target, and no parameter is made."""
    model = target(family)
    given = inputs(family, family.richest)
    made: list[Any] = []
    make = torch.nn.Parameter.__new__

    def noticed(kind: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return make(kind, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Parameter, "__new__", noticed)
    copy.deepcopy(next(model.parameters()))
    assert len(made) == 1  # so a copy would be noticed
    stream = draftlens.stream(model, given, method=method(drafts, "eagle"), max_new_tokens=5)
    stream.run()
    drafter: Any = stream.session.drafter
    assert len(made) == 1
    assert drafter.rows.backbone is stream.session.target
    assert drafter.rows.backbone.model is model


@pytest.mark.pairwise("drafts")
@every_family
@itself
def test_forwards_of_a_model_that_drafts_for_itself(family: Family, drafts: str) -> None:
    """Gathering needs no second prefill; a prefill reads the kept tokens and no more."""
    widths: list[int] = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        widths.append(kwargs["inputs_embeds"].shape[1])

    stream = open_stream(family, family.richest, drafts, "chain5", prune_ratio=0.5)
    hook = stream.session.target.decoder.register_forward_pre_hook(count, with_kwargs=True)
    stats, session = stream.session.stats, stream.session
    drafter: Any = session.drafter
    prefills: list[int] = []
    try:
        for _ in stream:
            if stats.target_forwards and not prefills:  # later, rows that have ended leave
                longest = max(session.prompt_lengths)
                # `Backbone.encode` stops a forward where the language model would begin.
                prefills = [longest, longest]
                prefills += [max(drafter.rows.prompt_lengths)] if drafts == "prefill" else []
    finally:
        hook.remove()
    assert widths[: len(prefills)] == prefills
    assert len(widths) == len(prefills) + stats.target_forwards + stats.draft_forwards
    assert stats.target_forwards < sum(map(len, stream.result.tokens)) / 3


@pytest.mark.pairwise("drafts")
@every_family
@pytest.mark.parametrize("drafts", ["noisy", "prefill"])
@torch.no_grad()
def test_the_drafts_keys(family: Family, drafts: str, kept: list[list[list[int]]]) -> None:
    """Those of each row alone, unpadded, with what was pruned hidden instead of left out."""
    session = started(family, family.richest, drafts, prune_ratio=0.6, pruner="grid")
    session.begin()
    drafter: Any = session.drafter
    backbone = drafter.rows.backbone
    for row, places in enumerate(kept[0]):
        given = inputs(family, family.richest, (row,))
        prompt = backbone.encode(backbone.prepare(given, max_new_tokens=1))
        length, made = prompt.lengths[0], DynamicCache()
        backbone.decoder(
            inputs_embeds=prompt.embeds,
            attention_mask=seen(length, set(range(length)) - set(places), 0),
            position_ids=prompt.position_ids,
            **with_cache(made),
            **extra(prompt, 0),
        )
        for ours, theirs in zip(drafter.rows.cache.layers, made.layers, strict=True):
            assert torch.allclose(
                ours.keys[row, :, : len(places)], theirs.keys[0][:, places], atol=1e-4
            )
            assert torch.allclose(
                ours.values[row, :, : len(places)], theirs.values[0][:, places], atol=1e-4
            )


def started(family: Family, kind: str, drafts: str, **given: Any) -> Session:
    """A session whose target has read the prompt and whose drafter has not."""
    session = open_stream(family, kind, drafts, "chain5", **given).session
    session.start()
    return session


@pytest.mark.pairwise("drafts")
@every_family
@pytest.mark.parametrize("drafts", ["prefill", "gather", "sparse", "noisy"])
def test_the_targets_cache_is_left_alone(family: Family, drafts: str) -> None:
    """Whoever prunes, and however."""
    session = started(family, family.richest, drafts)
    before = [(layer.keys.clone(), layer.values.clone()) for layer in session.cache.layers]
    lengths = list(session.cache.lengths)
    session.begin()
    assert session.cache.lengths == lengths
    for (keys, values), layer in zip(before, session.cache.layers, strict=True):
        assert torch.equal(keys, layer.keys)
        assert torch.equal(values, layer.values)


@pytest.mark.pairwise("drafts")
@every_family
@pytest.mark.parametrize("drafts", ["gather", "sparse"])
def test_gathered_keys_are_the_targets(
    family: Family, drafts: str, kept: list[list[list[int]]]
) -> None:
    """Layer by layer and row by row; under `sparse` each layer takes tokens of its own."""
    session = started(family, family.richest, drafts, prune_ratio=0.6)
    session.begin()
    drafter: Any = session.drafter
    many = len(session.cache.layers)
    assert len(drafter.rows.cache.layers) == many > 1
    choices = kept[1:] if drafts == "sparse" else kept * many
    assert (choices[0] != choices[1]) is (drafts == "sparse")
    for ours, theirs, rows in zip(
        drafter.rows.cache.layers, session.cache.layers, choices, strict=True
    ):
        for row, places in enumerate(rows):
            assert torch.equal(ours.keys[row, :, : len(places)], theirs.keys[row][:, places])
            assert torch.equal(ours.values[row, :, : len(places)], theirs.values[row][:, places])
    assert drafter.rows.cache.lengths == [len(places) for places in kept[0]]


@every_family
def test_the_drafts_cache_is_smaller(family: Family) -> None:
    """Pruned tokens take no memory; room for the answer and one tree does."""
    for drafts in ("noisy", *SOURCES):
        stream = open_stream(family, "image", drafts, "chain5", prune_ratio=1)
        stream.run()
        drafter: Any = stream.session.drafter
        counts = zip(
            inputs(family, "image")["attention_mask"].sum(1).tolist(),
            visual_tokens(family, "image"),
            strict=True,
        )
        assert (
            drafter.rows.cache.capacity
            <= max(length - visual for length, visual in counts) + NEW + 6
        )


@pytest.mark.parametrize(("family", "kind"), ALL_KINDS, ids=str)
def test_the_probe_changes_nothing(family: Family, kind: str) -> None:
    """Logits and cache of a probed prefill are those of any other, to the last bit."""
    backbone = Backbone.of(target(family))
    prompt = backbone.encode(backbone.prepare(inputs(family, kind), max_new_tokens=1))
    made = []
    for probe in (None, AttentionProbe(prompt.visual, prompt.lengths)):
        cache = backbone.new_cache(prompt, 3)
        logits = backbone.prefill(prompt, cache, probe)
        made.append(
            [logits, *(side for layer in cache.layers for side in (layer.keys, layer.values))]
        )
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert cache.lengths == prompt.lengths


@pytest.mark.pairwise("drafts")
@every_family
@pytest.mark.parametrize(
    ("drafts", "tree"), [("noisy", "eagle"), ("prefill", "chain5"), ("gather", "odd")]
)
def test_coupled_sampling(family: Family, drafts: str, tree: str) -> None:
    """The tokens of plain sampling with the same seed."""
    options = {
        "do_sample": True,
        "seed": 17,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "max_new_tokens": NEW,
    }
    given = inputs(family, family.richest)
    plain = draftlens.generate(target(family), given, **options)
    assert len({tuple(row) for row in plain.tokens}) == len(plain.tokens)
    small = draft(family) if drafts == "noisy" else None
    chosen = {
        key: value for key, value in method(drafts, tree, prune_ratio=0.5).items() if key != "seed"
    }
    result = draftlens.generate(target(family), given, draft=small, method=chosen, **options)
    assert result.tokens == plain.tokens
    assert 0 < result.stats.accepted < result.stats.drafted


@pytest.mark.pairwise("drafts")
@every_family
@itself
def test_rejection_sampling_with_itself_rejects_nothing(family: Family, drafts: str) -> None:
    """With nothing pruned the draft has the target's probabilities."""
    options = {"prune_ratio": 0, "sampling_rule": "rejection", "do_sample": True, "seed": 3}
    result = run(family, family.richest, drafts, "chain5", **options)
    assert result.stats.accepted == result.stats.drafted


@pytest.mark.parametrize("name", ["llava_onevision", "qwen3_vl", "internvl"])
@pytest.mark.parametrize(
    ("drafts", "tree"), [("noisy", "eagle"), ("prefill", "eagle"), ("gather", "chain5")]
)
def test_rows_end_at_different_times(name: str, drafts: str, tree: str) -> None:
    """Several end-of-sequence ids: one row ends early, one late, one never."""
    family = BY_NAME[name]
    options = {"eos_token_id": staggered(reference(family, family.richest, LONG))}
    options["max_new_tokens"] = LONG
    expected = stock(target(family), inputs(family, family.richest), **options)
    assert len({len(row) for row in expected}) == 3
    result = run(family, family.richest, drafts, tree, **options)
    assert result.tokens == expected
    assert result.stats.emitted == sum(map(len, expected))


@pytest.mark.parametrize("name", ["llava_next", "qwen2_vl"])
@itself
def test_the_end_lies_inside_an_accepted_run(name: str, drafts: str) -> None:
    """What was drafted right after an end-of-sequence token, or after the last token allowed, is
    not said."""
    family = BY_NAME[name]
    rows = reference(family, family.richest)
    # 1 token, then runs of 5 draft tokens and a bonus.
    middle = next(
        i
        for i, token in enumerate(rows[0])
        if i % 6 in (2, 3, 4) and i > 6 and token not in rows[0][:i]
    )
    eos = rows[0][middle]
    result = run(family, family.richest, drafts, "chain5", prune_ratio=0, eos_token_id=eos)
    expected = stock(
        target(family), inputs(family, family.richest), max_new_tokens=NEW, eos_token_id=eos
    )
    assert result.tokens == expected
    assert result.tokens[0] == rows[0][: middle + 1]
    assert result.from_draft[0][middle - 1 :] == [True, True]
    for most in (1, 2, 4, 9):
        result = run(family, family.richest, drafts, "eagle", prune_ratio=0, max_new_tokens=most)
        assert result.tokens == [row[:most] for row in rows]
        assert result.stats.target_forwards == -(-(most - 1) // 6)


@every_family
def test_a_consumer_that_stops(family: Family) -> None:
    """The draft's cache agrees with what was said."""
    for drafts, tree, chunks in (
        ("noisy", "eagle", 7),
        ("prefill", "odd", 4),
        ("gather", "chain5", 10),
    ):
        stream = open_stream(
            family, family.richest, drafts, tree, prune_ratio=0.8, max_new_tokens=LONG
        )
        for _ in range(chunks):
            next(stream)
        drafter: Any = stream.session.drafter
        for row, sequence in enumerate(stream.session.sequences):
            said = sequence.tokens
            pending = drafter.rows.pending[row]
            assert drafter.rows.cache.lengths[row] == drafter.rows.prompt_lengths[row] + len(
                said
            ) - len(pending)
        assert stream.run().tokens == reference(family, family.richest, LONG)


@every_family
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_draft_with_inputs_of_its_own(family: Family, side: str) -> None:
    """Other pictures of other sizes, padded on either side: scores are carried over, the counts are
    the draft's."""
    kind = "video" if family.video else "images"
    result = draftlens.generate(
        target(family),
        inputs(family, kind),
        draft=draft(family),
        draft_inputs=inputs(family, kind, side=side, seed=1),
        method=method("noisy", "eagle", prune_ratio=0.5),
        max_new_tokens=NEW,
    )
    assert result.tokens == reference(family, kind)
    assert result.stats.accepted > 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("qwen3_vl", "llava_onevision"), ("llava_next", "qwen2_5_vl"), ("smolvlm", "internvl")],
)
@pytest.mark.parametrize("pruner", ["specvlm", "grid", "uv"])
def test_a_draft_of_another_family(ours: str, theirs: str, pruner: str) -> None:
    """It has other visual tokens, and the target's scores reach them all the same."""
    family, other = BY_NAME[ours], BY_NAME[theirs]
    result = draftlens.generate(
        target(family),
        inputs(family, "image"),
        draft=target(other),
        draft_inputs=inputs(other, "image"),
        method=method("noisy", "eagle", pruner=pruner),
        max_new_tokens=13,
    )
    assert result.tokens == [row[:13] for row in reference(family, "image")]
    assert result.stats.visual == sum(visual_tokens(other, "image"))


def test_eager_models() -> None:
    """Their prefill is read by `sdpa` when it is probed; the answer is the same, and they stay
    eager."""
    family = BY_NAME["qwen3_vl"]
    model = family.build()
    model.set_attn_implementation("eager")
    for drafts in ("prefill", "gather"):
        result = draftlens.generate(
            model,
            inputs(family, "mixed"),
            method=method(drafts, "eagle", prune_ratio=0.5),
            max_new_tokens=NEW,
        )
        assert result.tokens == reference(family, "mixed")
    assert model.get_decoder().config._attn_implementation == "eager"


def test_who_drafts() -> None:
    """`auto` takes the draft model if there is one; `self` does not look at it; `model` needs
    one."""
    family = FAMILIES[0]
    given, small = inputs(family, "image"), draft(family, "random")
    for chosen, has_draft, expected in (
        *(("auto", True, small), ("auto", False, target(family)), ("self", True, target(family))),
        *(("self", False, target(family)), ("model", True, small)),
    ):
        stream = draftlens.stream(
            target(family),
            given,
            draft=small if has_draft else None,
            method={"method": "specvlm", "draft": chosen},
            max_new_tokens=3,
        )
        drafter: Any = stream.session.drafter
        assert drafter.rows.backbone.model is expected
    with pytest.raises(ConfigError, match="'specvlm' with draft 'model' needs a draft model"):
        draftlens.stream(
            target(family), given, method={"method": "specvlm", "draft": "model"}, max_new_tokens=3
        )


def test_a_draft_that_is_told_nothing_else_than_text() -> None:
    """There is nothing to carry scores over to; pruners that need none do not mind."""
    family = BY_NAME["qwen2_5_vl"]
    call = {"draft": draft(family), "draft_inputs": inputs(family, "text"), "max_new_tokens": 9}
    with pytest.raises(
        UnsupportedModelError, match="only one of target and draft has visual tokens"
    ):
        draftlens.generate(
            target(family), inputs(family, "video"), method={"method": "specvlm"}, **call
        )
    chosen = {"method": "specvlm", "pruner": "uniform"}
    result = draftlens.generate(target(family), inputs(family, "video"), method=chosen, **call)
    assert result.tokens == [row[:9] for row in reference(family, "video")]
    assert result.stats.visual == result.stats.kept == 0


def test_times_of_pruning_are_its_own() -> None:
    """They are counted once."""
    family = FAMILIES[0]
    phases = run(family, "image", "prefill", "eagle").stats.phases
    assert phases["prune"] > 0
    assert phases["draft_prefill"] > 0
    assert run(family, "image", "prefill", "eagle", max_new_tokens=1).stats.phases["prune"] == 0
