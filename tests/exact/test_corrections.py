"""Calls that once gave another answer than stock `generate`, or ended in a traceback."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, Family, inputs, tokenizer
from stock import LONG, METHODS, NEW, Divisible, draft, reference, self_drafting, stock, target
from transformers import (
    DynamicCache,
    GenerationConfig,
    StoppingCriteria,
    StopStringCriteria,
)

import draftlens
from draftlens.core.tree import EAGLE_PATHS, EMPTY, Topology, chain, from_paths
from draftlens.drafting.adaptive.controller import RoundState, TreeController
from draftlens.hf_generate import frame as callers
from draftlens.models import adapter as backbones
from draftlens.models.adapter import Backbone
from draftlens.models.support import CACHE_ARGUMENT, with_cache
from draftlens.verify import run_stock

BY_NAME: dict[str, Family] = {family.name: family for family in FAMILIES}
FAMILY = BY_NAME["llava_onevision"]
QWEN = BY_NAME["qwen2_5_vl"]
SEVERAL = [FAMILY, QWEN, BY_NAME["qwen3_vl"], BY_NAME["llava"], BY_NAME["smolvlm"]]

several_families = pytest.mark.parametrize("family", SEVERAL, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])
every_drafter = pytest.mark.parametrize("drafter", ["noisy", "self"])
REJECTION = "rejection"


def generate(model: Any = None, **options: Any) -> draftlens.Result:
    """Answer three prompts with one picture each, with a draft."""
    defaults = {"draft": draft(FAMILY), "max_new_tokens": NEW}
    return draftlens.generate(
        model or target(FAMILY), inputs(FAMILY, "image"), **{**defaults, **options}
    )


def generate_behind(model: Any, small: Any) -> torch.Tensor:
    """The same prompts, after the model's own `generate`."""
    given = inputs(FAMILY, "image")
    ours = draftlens.SpeculativeGenerate(small, given)
    output: torch.Tensor = model.generate(
        **given, max_new_tokens=3, do_sample=False, custom_generate=ours
    )
    return output


def with_config(**fields: Any) -> Any:
    """The target with another generation config."""
    model = copy.deepcopy(target(FAMILY))
    model.generation_config.update(**fields)
    return model


# --- Caches of earlier turns


def cache_of_a_turn(empty: bool) -> DynamicCache:
    """A cache that the caller keeps from turn to turn."""
    cache = DynamicCache()
    if not empty:
        given = inputs(FAMILY, "text", rows=(0,))
        with torch.no_grad():
            target(FAMILY)(**given, **with_cache(cache), use_cache=True)
    return cache


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("call", [draftlens.generate, draftlens.stream])
@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_a_cache_of_an_earlier_turn_is_refused(name: str, call: Any, empty: bool) -> None:
    """Among the inputs and among the options, by its name in any version of transformers."""
    given, cache = inputs(FAMILY, "text", rows=(0,)), cache_of_a_turn(empty)
    options = {"draft": draft(FAMILY), "max_new_tokens": 3}
    with pytest.raises(draftlens.InputError, match=f"{CACHE_ARGUMENT} holds an earlier turn"):
        call(target(FAMILY), {**given, name: cache}, **options)
    with pytest.raises(draftlens.InputError, match=f"{CACHE_ARGUMENT} holds an earlier turn"):
        call(target(FAMILY), given, **{name: cache}, **options)


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("method", ["speculative", "plain"])
def test_a_cache_of_an_earlier_turn_is_refused_behind_generate(empty: bool, method: str) -> None:
    """Stock `generate` would fill an empty one."""
    given = inputs(FAMILY, "text", rows=(0,))
    ids = given["input_ids"]
    longer = {
        "input_ids": torch.cat([ids, ids], 1),
        "attention_mask": torch.ones_like(torch.cat([ids, ids], 1)),
    }
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), longer, method)
    with pytest.raises(draftlens.InputError, match=f"{CACHE_ARGUMENT} holds an earlier turn"):
        target(FAMILY).generate(
            **longer,
            **with_cache(cache_of_a_turn(empty)),
            max_new_tokens=3,
            custom_generate=ours,
        )


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_no_cache_is_none(name: str) -> None:
    """Among the inputs and among the options, by its name in any version of transformers."""
    given = inputs(FAMILY, "text")
    options = {"draft": draft(FAMILY), "max_new_tokens": NEW}
    result = draftlens.generate(target(FAMILY), {**given, name: None}, **options)
    assert result.tokens == reference(FAMILY, "text")
    result = draftlens.generate(target(FAMILY), given, **{name: None}, **options)
    assert result.tokens == reference(FAMILY, "text")


def test_no_cache_is_none_behind_generate() -> None:
    """Stock `generate` makes an empty one."""
    given = inputs(FAMILY, "text")
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), given)
    output = target(FAMILY).generate(
        **given, **with_cache(None), max_new_tokens=NEW, do_sample=False, custom_generate=ours
    )
    assert output[:, given["input_ids"].shape[1] :].tolist() == reference(FAMILY, "text")


# --- Options that are None


def test_no_end_of_sequence_id() -> None:
    """None overrides the id of the model's generation config: answers have the full length."""
    rows = reference(FAMILY, "image")
    model = with_config(eos_token_id=rows[0][3])
    given, options = inputs(FAMILY, "image"), {"max_new_tokens": NEW, "eos_token_id": None}
    assert len(generate(model).tokens[0]) == 4
    assert generate(model, **options).tokens == rows == stock(model, given, **options)
    assert run_stock(Backbone.of(model), given, do_sample=False, **options).tokens == rows


def test_a_generation_config_without_an_end_of_sequence_id() -> None:
    """Its None is filled from the model's generation config, as in stock `generate`."""
    eos = reference(FAMILY, "image")[0][3]
    model, config = with_config(eos_token_id=eos), GenerationConfig(max_new_tokens=NEW)
    result = draftlens.generate(
        model, inputs(FAMILY, "image"), draft=draft(FAMILY), generation_config=config
    )
    run = run_stock(Backbone.of(model), inputs(FAMILY, "image"), generation_config=config)
    assert result.tokens[0] == run.tokens[0] == reference(FAMILY, "image")[0][:4]
    assert [len(row) for row in run.tokens] == [len(row) for row in result.tokens]


def test_no_repetition_penalty() -> None:
    """None overrides the penalty of the model's generation config."""
    model = with_config(repetition_penalty=1.8)
    assert generate(model).tokens == stock(model, inputs(FAMILY, "image"), max_new_tokens=NEW)
    assert generate(model).tokens != reference(FAMILY, "image")
    unpunished = generate(model, repetition_penalty=None)
    assert unpunished.tokens == reference(FAMILY, "image")
    run = run_stock(
        Backbone.of(model), inputs(FAMILY, "image"), max_new_tokens=NEW, repetition_penalty=None
    )
    assert run.tokens == reference(FAMILY, "image")


def test_no_top_k() -> None:
    """None turns off the 50 that stock `generate` has by default."""
    options = {"do_sample": True, "temperature": 5.0, "seed": 4}
    everything = generate(top_k=None, **options)
    assert everything.tokens == generate(top_k=0, **options).tokens
    assert everything.tokens != generate(**options).tokens
    names = {}
    for name, given in {"none": {"top_k": None}, "default": {}}.items():
        stream = draftlens.stream(
            target(FAMILY), inputs(FAMILY, "image"), do_sample=True, max_new_tokens=2, **given
        )
        processors = stream._call.sequences[0].sampling.processors
        names[name] = [type(processor).__name__ for processor in processors]
    assert names == {"none": [], "default": ["TopKLogitsWarper"]}


@pytest.mark.parametrize("of", ["model", "call"])
def test_stop_strings_of_a_generation_config(of: str) -> None:
    """They are honoured wherever they come from, and None turns those of the model off."""
    rows = reference(FAMILY, "image", LONG)
    stop = next(text for text in tokenizer().batch_decode([[t] for t in rows[0][4:]]) if text)
    fields = {"stop_strings": [stop]}
    given, words = inputs(FAMILY, "image", rows=(0,)), tokenizer()
    model = with_config(**fields) if of == "model" else target(FAMILY)
    options: dict[str, Any] = {"max_new_tokens": LONG, "tokenizer": words}
    if of == "call":
        options["generation_config"] = GenerationConfig(**fields, max_new_tokens=LONG)
    expected = model.generate(**given, **options)[:, given["input_ids"].shape[1] :].tolist()
    result = draftlens.generate(model, given, draft=draft(FAMILY), **options)
    assert result.tokens == expected
    assert len(expected[0]) < LONG
    options.pop("tokenizer")
    with pytest.raises(draftlens.ConfigError, match="stop_strings need the model's tokenizer"):
        draftlens.generate(model, given, draft=draft(FAMILY), **options)
    result = draftlens.generate(model, given, draft=draft(FAMILY), **options, stop_strings=None)
    assert result.tokens == rows[:1]


# --- Strategies


def test_a_generation_config_that_samples() -> None:
    """It need not be repeated as an option."""
    options = {"do_sample": True, "temperature": 1.5, "top_k": 12, "max_new_tokens": NEW}
    config = GenerationConfig(**options)
    sampled = generate(seed=6, **options).tokens
    assert sampled != reference(FAMILY, "image")
    assert generate(seed=6, generation_config=config, max_new_tokens=NEW).tokens == sampled
    with_default = with_config(do_sample=True, temperature=1.5, top_k=12)
    assert generate(with_default, seed=6).tokens == sampled


def test_an_engine_with_a_generation_config_that_samples() -> None:
    """Its own default is greedy, which a config overrides."""
    engine = draftlens.load(device="cpu")
    options = {"do_sample": True, "temperature": 3.0, "max_new_tokens": 12}
    sampled = engine.generate("Hello", seed=6, **options)
    configured = engine.generate("Hello", seed=6, generation_config=GenerationConfig(**options))
    assert configured.tokens == sampled.tokens
    assert configured.tokens != engine.generate("Hello", max_new_tokens=12).tokens


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search"),
        ({"dola_layers": "high"}, "dola generation"),
        ({"constraints": ["any"]}, "constrained beam search"),
        ({"force_words_ids": [[3, 4]]}, "constrained beam search"),
    ],
    ids=["contrastive", "dola", "constraints", "force_words"],
)
@pytest.mark.parametrize("by", ["option", "config"])
def test_other_strategies(options: dict[str, Any], strategy: str, by: str) -> None:
    """Refused by both entries, whether an option or the model's own config requests them."""
    model = target(FAMILY)
    if by == "config":
        model = with_config(**options)
        options = {}
    with pytest.raises(draftlens.ConfigError, match=f"these options request {strategy}"):
        generate(model, **options)
    given = inputs(FAMILY, "image")
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), given)
    with pytest.raises(draftlens.ConfigError, match=f"these options request {strategy}"):
        model.generate(**given, max_new_tokens=3, custom_generate=ours, **options)


# --- Modes of the model


@pytest.mark.parametrize("part", ["target", "draft"])
@pytest.mark.parametrize("used_before", [False, True])
def test_training_mode(part: str, used_before: bool) -> None:
    """Refused for a new model, and for one that is put into training mode between two calls."""
    models = {"model": copy.deepcopy(target(FAMILY)), "draft": copy.deepcopy(draft(FAMILY))}
    if used_before:
        assert generate(**models).tokens == reference(FAMILY, "image")
    models["model" if part == "target" else "draft"].train()
    sentence = r"is in training mode, .*call its eval\(\) first"
    with pytest.raises(draftlens.UnsupportedModelError, match=sentence):
        generate(**models)
    with pytest.raises(draftlens.UnsupportedModelError, match=sentence):
        generate_behind(models["model"], models["draft"])


def test_training_mode_behind_a_backbone() -> None:
    """The mode is read at every call."""
    model = Backbone(copy.deepcopy(target(FAMILY)))
    small = Backbone(copy.deepcopy(draft(FAMILY)))
    given = inputs(FAMILY, "text")
    options = {"max_new_tokens": 3, "do_sample": False}
    ours = draftlens.SpeculativeGenerate(small, given)
    model.model.train()
    with pytest.raises(draftlens.UnsupportedModelError, match="training mode"):
        draftlens.generate(model, given, draft=small, **options)
    with pytest.raises(draftlens.UnsupportedModelError, match="training mode"):
        model.model.generate(**given, **options, custom_generate=ours)
    model.model.eval()
    small.model.train()
    with pytest.raises(draftlens.UnsupportedModelError, match="training mode"):
        draftlens.generate(model, given, draft=small, **options)
    with pytest.raises(draftlens.UnsupportedModelError, match="training mode"):
        model.model.generate(**given, **options, custom_generate=ours)


@pytest.mark.parametrize("family", [FAMILY, QWEN], ids=str)
def test_autocast(family: Family) -> None:
    """Matrix products in bfloat16 leave near-ties open, whatever dtype the weights have."""
    given = inputs(family, "image")
    options = {"draft": draft(family), "max_new_tokens": NEW}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = draftlens.generate(target(family), given, **options)
        plain = draftlens.generate(target(family), given, method="plain", max_new_tokens=NEW)
    assert list(map(len, result.tokens)) == [NEW] * 3
    assert result.approximate == ("near-ties in bfloat16",)
    assert not result.lossless
    assert plain.lossless
    assert draftlens.generate(target(family), given, **options).lossless


def test_a_new_model_under_autocast() -> None:
    """Its first check may run in bfloat16."""
    model = copy.deepcopy(target(FAMILY))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not generate(model).lossless


# --- Automatic trees


def test_a_long_pause_of_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row has ended, the other one then gains many tokens that the draft has not read, and the
    pass that makes up for them is wider than all that is left for the first row."""
    length, pause = 120, 70
    eagle = from_paths(EAGLE_PATHS)
    given = inputs(FAMILY, "text", rows=(2, 1))
    words = {key: value.clone() for key, value in given.items()}
    words["input_ids"][1, -9:] = words["input_ids"][1, -9:].flip(0)  # the draft reads another text
    stream: Any = None
    paused = 0

    def tree(self: TreeController, at: RoundState) -> Topology:
        nonlocal paused
        if not stream._call.sequences[0].finished:
            return chain(6)
        paused += 1
        return EMPTY if paused <= pause else eagle

    def caught_up(self: TreeController, hits: int, misses: int) -> Topology:
        return eagle if paused else chain(6)

    monkeypatch.setattr(TreeController, "tree", tree)
    monkeypatch.setattr(TreeController, "caught_up", caught_up)
    monkeypatch.setattr(TreeController, "grown", lambda self, confidences: True)
    monkeypatch.setattr(TreeController, "kept_depth", property(lambda self: 6))
    stream = draftlens.stream(
        target(FAMILY),
        given,
        draft=target(FAMILY),
        draft_inputs=words,
        method={"tree": "auto"},
        max_new_tokens=length,
    )
    widest = 0
    for _ in stream:
        pending = stream.session.drafter.rows.pending
        widest = max(widest, *map(len, pending), 0)
    assert stream.result.tokens == stock(target(FAMILY), given, max_new_tokens=length)
    assert widest > pause
    assert paused > pause


# --- Criteria without an end-of-sequence id


class AtLengths(StoppingCriteria):
    """Ends each row at a length of its own."""

    def __init__(self, prompt_length: int) -> None:
        self.lengths = prompt_length + torch.tensor([11, 4, 17])

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """One truth per row."""
        return self.lengths[: len(input_ids)] <= input_ids.shape[1]


class FirstRow(StoppingCriteria):
    """Reads row 0 only: met at its first token that 5 divides, from the third on."""

    def __init__(self, prompt_length: int, kind: str) -> None:
        self.prompt_length = prompt_length
        self.kind = kind

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """One truth for all rows, one for each row, or one for row 0 alone."""
        met = bool(input_ids[0, -1] % 5 == 0) and input_ids.shape[1] >= self.prompt_length + 3
        if self.kind == "bool":
            return met
        if self.kind == "rows":
            return torch.full((len(input_ids),), met)
        return torch.arange(len(input_ids)) < int(met)


class Together(StoppingCriteria):
    """Returns one truth value, about all rows together."""

    def __init__(self, prompt_length: int) -> None:
        self.prompt_length = prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> Any:
        """Met where 4 divides the sum of the last tokens, from the third on."""
        late = input_ids.shape[1] >= self.prompt_length + 3
        return late and bool(input_ids[:, -1].sum() % 4 == 0)


def stop_string(length: int) -> StoppingCriteria:
    """A letter that comes soon."""
    return StopStringCriteria(tokenizer(), ["a", "e", "k"])


CRITERIA = {
    "rows": Divisible,
    "together": Together,
    "lengths": AtLengths,
    "first_bool": lambda length: FirstRow(length, "bool"),
    "first_rows": lambda length: FirstRow(length, "rows"),
    "first_only": lambda length: FirstRow(length, "only"),
    "strings": stop_string,
}


@pytest.mark.pairwise
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("rows", [(0, 1), (0, 1, 2)], ids=len)
@pytest.mark.parametrize("ends", [False, True], ids=["no eos", "eos"])
@every_drafter
def test_a_criterion_in_a_batch(
    criterion: str, rows: tuple[int, ...], ends: bool, drafter: str
) -> None:
    """Without an end-of-sequence id, stock `generate` goes on writing the rows that have met a
    criterion until all have; with one it pads them."""
    given = inputs(FAMILY, "text", rows)
    length = given["input_ids"].shape[1]
    options: dict[str, Any] = {"max_new_tokens": LONG, "do_sample": False}
    if ends:
        options["eos_token_id"] = reference(FAMILY, "text", LONG)[1][8]
    expected = target(FAMILY).generate(
        **given, **options, stopping_criteria=[CRITERIA[criterion](length)]
    )
    method = METHODS["eagle" if drafter == "noisy" else "chain5"]
    ours = draftlens.SpeculativeGenerate(draft(FAMILY, drafter), given, method)
    output = target(FAMILY).generate(
        **given,
        **options,
        stopping_criteria=[CRITERIA[criterion](length)],
        custom_generate=ours,
    )
    assert torch.equal(output, expected)
    result = draftlens.generate(
        target(FAMILY),
        given,
        draft=draft(FAMILY, drafter),
        method=method,
        stopping_criteria=[CRITERIA[criterion](length)],
        **options,
    )
    pad = tokenizer().pad_token_id
    longest = expected.shape[1] - length
    padded = [row + [pad] * (longest - len(row)) for row in result.tokens]
    assert padded == expected[:, length:].tolist()
    assert result.stats.accepted > 0 or longest < 3


@pytest.mark.parametrize("criterion", CRITERIA)
def test_criteria_end_answers_early(criterion: str) -> None:
    """The criteria above are met in these prompts, not only the limit of tokens."""
    given = inputs(FAMILY, "text")
    result = draftlens.generate(
        target(FAMILY),
        given,
        max_new_tokens=LONG,
        stopping_criteria=[CRITERIA[criterion](given["input_ids"].shape[1])],
        eos_token_id=tokenizer().pad_token_id,
    )
    assert min(map(len, result.tokens)) < LONG


# --- The draft's own generation config


@cache
def with_an_unchanged_draft() -> draftlens.Result:
    return generate(method=METHODS["chain5"])


@pytest.mark.parametrize(
    "fields",
    [
        {"num_beams": 4, "num_return_sequences": 2},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"do_sample": True, "temperature": 0.3, "num_return_sequences": 3},
        {"stop_strings": ["a", "b"]},
        {"prompt_lookup_num_tokens": 3},
        {"assistant_early_exit": 1},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "high"},
        {"force_words_ids": [[3, 4]]},
        {"guidance_scale": 1.5},
        {"cache_implementation": "static"},
        {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
        {"max_length": 3, "min_length": 2},
        {"max_time": 1e-9},
        {"use_mtp": True},
        {"use_cache": False},
        {"eos_token_id": list(range(200)), "forced_eos_token_id": 3, "forced_bos_token_id": 4},
        {"min_new_tokens": 9, "repetition_penalty": 3.0, "suppress_tokens": list(range(90))},
        {"bad_words_ids": [[5], [6, 7]], "sequence_bias": [[[5], -3.0]]},
        {"token_healing": True},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_the_generation_config_of_the_draft_does_not_matter(fields: dict[str, Any]) -> None:
    """A draft is only read."""
    small = copy.deepcopy(draft(FAMILY))
    for name, value in fields.items():
        setattr(small.generation_config, name, value)
    result = generate(draft=small, method=METHODS["chain5"])
    expected = with_an_unchanged_draft()
    assert result.tokens == expected.tokens == reference(FAMILY, "image")
    assert result.from_draft == expected.from_draft


# --- Values that ended in a traceback


@pytest.mark.parametrize("seed", [np.int64(3), np.uint8(3), torch.tensor(3)], ids=repr)
def test_seeds_of_other_types(seed: Any) -> None:
    """A whole number is one, whatever its type."""
    options = {"do_sample": True, "temperature": 2.0}
    assert generate(seed=seed, **options).tokens == generate(seed=3, **options).tokens


@pytest.mark.parametrize("seed", ["x", "", 1.5, np.float64(2.0), [1, 2, 0.5], ["x"] * 3], ids=repr)
def test_seeds_that_are_no_whole_numbers(seed: Any) -> None:
    """Also where nothing is drawn."""
    for do_sample in (True, False):
        with pytest.raises(draftlens.ConfigError, match="seed must be a whole number, not"):
            generate(seed=seed, do_sample=do_sample)


@pytest.mark.parametrize("family", [QWEN, FAMILY], ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_float_attention_mask(family: Family, side: str) -> None:
    """Its answer is that of whole numbers, for target and draft alike."""
    given = inputs(family, "image", side=side)
    floating = {**given, "attention_mask": given["attention_mask"].float()}
    result = draftlens.generate(target(family), floating, draft=draft(family), max_new_tokens=NEW)
    assert result.tokens == reference(family, "image")
    boolean = {**given, "attention_mask": given["attention_mask"].bool()}
    result = draftlens.generate(target(family), boolean, draft=draft(family), max_new_tokens=NEW)
    assert result.tokens == reference(family, "image")


@pytest.mark.parametrize("family", [QWEN, FAMILY], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool], ids=str)
def test_a_mask_of_another_dtype_behind_generate(family: Family, dtype: torch.dtype) -> None:
    """Whatever stock makes of it."""
    given = inputs(family, "text")
    given["attention_mask"] = given["attention_mask"].to(dtype)
    options = {"max_new_tokens": NEW, "do_sample": False}
    expected = target(family).generate(**given, **options)
    ours = draftlens.SpeculativeGenerate(draft(family), given)
    output = target(family).generate(**given, **options, custom_generate=ours)
    assert torch.equal(output, expected)


def test_padding_on_the_right_behind_generate() -> None:
    """Stock `generate` warns and continues after the padding; ours would answer otherwise."""
    given = inputs(FAMILY, "text", side="right")
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), given)
    with pytest.raises(draftlens.InputError, match="padding on the left"):
        target(FAMILY).generate(**given, max_new_tokens=3, custom_generate=ours)
    result = draftlens.generate(target(FAMILY), given, draft=draft(FAMILY), max_new_tokens=NEW)
    assert result.tokens == reference(FAMILY, "text")


@methods
def test_no_limit_to_speak_of(method: str) -> None:
    """An answer that ends by itself takes the memory of its own length."""
    rows = reference(FAMILY, "image", LONG)
    eos = [row[10] for row in rows]
    result = generate(max_new_tokens=10**9, eos_token_id=eos, method=METHODS[method])
    assert result.tokens == generate(eos_token_id=eos).tokens
    assert max(map(len, result.tokens)) <= 11
    assert 0 < result.stats.target_cache_bytes < 4e6
    assert 0 < result.stats.draft_cache_bytes < 4e6


def test_a_prompt_id_that_the_draft_lacks() -> None:
    """The draft reads another token in its place and drafts on."""
    small_vocabulary = 200
    given = inputs(FAMILY, "image")
    given["input_ids"][:, -4] = 205
    small = FAMILY.build(seed=7, vocab_size=small_vocabulary)
    expected = stock(target(FAMILY), given, max_new_tokens=NEW)
    for method in ("chain5", "eagle"):
        result = draftlens.generate(
            target(FAMILY), given, draft=small, method=METHODS[method], max_new_tokens=NEW
        )
        assert result.tokens == expected
        assert result.stats.drafted > 0


def test_a_row_without_tokens() -> None:
    """Refused with the number of the row."""
    given = inputs(FAMILY, "text")
    given["attention_mask"][1] = 0
    with pytest.raises(draftlens.InputError, match="hides every token of row 1"):
        draftlens.generate(target(FAMILY), given, draft=draft(FAMILY), max_new_tokens=3)
    good = inputs(FAMILY, "text")
    with pytest.raises(draftlens.InputError, match="hides every token of row 1"):
        draftlens.generate(
            target(FAMILY), good, draft=draft(FAMILY), draft_inputs=given, max_new_tokens=3
        )
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), good)
    with pytest.raises(draftlens.InputError, match="hides every token of row 1"):
        target(FAMILY).generate(**given, max_new_tokens=3, custom_generate=ours)


def test_a_generate_with_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of transformers that keeps the streamer elsewhere is refused."""
    monkeypatch.setattr(callers, "_ARGUMENTS", (*callers._ARGUMENTS, "speaker"))
    given = inputs(FAMILY, "text")
    ours = draftlens.SpeculativeGenerate(draft(FAMILY), given)
    with pytest.raises(draftlens.UnsupportedModelError, match="no speaker in generate"):
        target(FAMILY).generate(**given, max_new_tokens=3, custom_generate=ours)


# --- Seeds of rows

SEEDS = [3, 5, 9]
RULES: dict[str, dict[str, Any]] = {
    "coupled-chain": {"num_speculative_tokens": 3},
    "coupled-tree": {"tree": "eagle"},
    "rejection-chain": {"num_speculative_tokens": 3, "sampling_rule": REJECTION},
    "rejection-tree": {"tree": "eagle", "sampling_rule": REJECTION},
}
SAMPLING: dict[str, Any] = {"do_sample": True, "temperature": 1.2, "top_k": 20}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", [FAMILY, QWEN], ids=str)
def test_each_row_has_the_samples_of_its_seed(family: Family, rule: str) -> None:
    """In a batch as alone."""
    options = {
        "draft": draft(family),
        "method": RULES[rule],
        "max_new_tokens": NEW,
        **SAMPLING,
    }
    batch = draftlens.generate(target(family), inputs(family, "image"), seed=SEEDS, **options)
    for row, seed in enumerate(SEEDS):
        given = inputs(family, "image", rows=(row,))
        alone = draftlens.generate(target(family), given, seed=seed, **options)
        assert alone.tokens[0] == batch.tokens[row]
        listed = draftlens.generate(target(family), given, seed=[seed], **options)
        assert listed.tokens == alone.tokens


@pytest.mark.parametrize("rule", RULES)
def test_rows_that_end_have_the_samples_of_their_seeds(rule: str) -> None:
    """A row that ends does not change the others."""
    eos = reference(FAMILY, "text", LONG)[1][2:9]
    options = {
        "draft": draft(FAMILY),
        "method": RULES[rule],
        "max_new_tokens": LONG,
        "eos_token_id": eos,
        **SAMPLING,
    }
    batch = draftlens.generate(target(FAMILY), inputs(FAMILY, "text"), seed=SEEDS, **options)
    assert len(set(map(len, batch.tokens))) > 1
    for row, seed in enumerate(SEEDS):
        given = inputs(FAMILY, "text", rows=(row,))
        alone = draftlens.generate(target(FAMILY), given, seed=seed, **options)
        assert alone.tokens[0] == batch.tokens[row]


@pytest.mark.parametrize("seeds", [[], [1], [1, 2], [1, 2, 3, 4]], ids=len)
def test_another_number_of_seeds(seeds: list[int]) -> None:
    """One for each row, or a single one."""
    with pytest.raises(draftlens.ConfigError, match=f"{len(seeds)} seeds are given for 3 rows"):
        generate(seed=seeds, do_sample=True)


@pytest.mark.parametrize("rule", [None, *RULES])
def test_equal_prompts_of_a_batch_have_different_samples(rule: str | None) -> None:
    """One seed serves the whole call, and one list of equal seeds makes equal rows."""
    given = inputs(FAMILY, "text", rows=(0, 0, 0))
    options: dict[str, Any] = {"max_new_tokens": 9, **SAMPLING}
    if rule is not None:
        options |= {"draft": draft(FAMILY), "method": RULES[rule]}
    rows = draftlens.generate(target(FAMILY), given, seed=4, **options).tokens
    assert len({tuple(row) for row in rows}) == 3
    rows = draftlens.generate(target(FAMILY), given, seed=[4, 4, 4], **options).tokens
    assert rows[0] == rows[1] == rows[2]


# --- Answers longer than the reserved buffers


@pytest.mark.pairwise
@several_families
@pytest.mark.parametrize("method", ["plain", "chain3", "eagle", "odd"])
@pytest.mark.parametrize("rows", [(0,), (0, 1, 2)], ids=len)
def test_buffers_grow(
    family: Family, method: str, rows: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a pass of the target and of the draft, with rows of equal and of different lengths."""
    monkeypatch.setattr(backbones, "BLOCK", 4)
    kind = family.richest
    given = inputs(family, kind, rows)
    expected = stock(target(family), given, max_new_tokens=LONG)
    stream = draftlens.stream(
        target(family),
        given,
        draft=None if method == "plain" else draft(family),
        method=METHODS.get(method, method),
        max_new_tokens=LONG,
    )
    first = next(stream)
    cache = stream.session.cache
    assert cache is not None
    reserved = cache.capacity
    assert reserved == max(stream.session.prompt_lengths) + 4
    assert first.row == 0
    assert stream.run().tokens == expected
    assert cache.capacity > reserved
    assert cache.capacity >= max(cache.lengths)


@pytest.mark.parametrize("kv", ["prefill", "gather", "sparse"])
def test_buffers_of_a_model_that_drafts_for_itself_grow(
    kv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where keys and values are copied from the target's."""
    monkeypatch.setattr(backbones, "BLOCK", 4)
    method = {"prune_ratio": 0.5, "tree": "eagle", **self_drafting(kv)}
    assert generate(draft=None, method=method).tokens == reference(FAMILY, "image")


# --- Threads


@pytest.mark.parametrize("name", ["qwen3_vl", "llava_onevision"])
def test_a_probed_prefill_beside_plain_forwards(name: str) -> None:
    """One thread prunes by the target's attention while the other one decodes."""
    family = BY_NAME[name]
    given, model, small = (
        inputs(family, family.richest),
        copy.deepcopy(target(family)),
        copy.deepcopy(draft(family)),
    )

    def answer(method: Any) -> list[list[list[int]]]:
        return [
            draftlens.generate(model, given, draft=small, method=method, max_new_tokens=NEW).tokens
            for _ in range(4)
        ]

    with ThreadPoolExecutor(2) as pool:
        pruned = pool.submit(answer, {"method": "specvlm", "prune_ratio": 0.5})
        plain = pool.submit(answer, {"method": "speculative", "tree": "eagle"})
        for tokens in (*pruned.result(), *plain.result()):
            assert tokens == reference(family, family.richest)


@pytest.mark.parametrize("wrong", ["embedded", None, 3], ids=repr)
def test_a_name_in_place_of_a_model(wrong: Any) -> None:
    """Names are for `draftlens.load`."""
    with pytest.raises(draftlens.UnsupportedModelError):
        draftlens.generate(wrong, inputs(FAMILY, "text"), max_new_tokens=3)
