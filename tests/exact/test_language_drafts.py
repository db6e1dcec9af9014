"""A language model drafts for a model that sees: it reads the words of the prompt, and the tokens
are those of stock `generate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import torch
from conversations import Conversation, Turn, TurnsCase, check_turns
from families import FAMILIES, VOCAB, Family, inputs
from fuzzing import scripted_workers
from language_models import language_part
from stock import METHODS, NEW, noisy, ranks_of, reference, rounds, target
from test_matrix import Dictated
from test_turns import media_of

import draftlens
from draftlens import IncompatiblePairError
from draftlens.drafting.text_inputs import text_inputs
from draftlens.methods.base import from_dict

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
BY_NAME = {family.name: family for family in FAMILIES}
some_families = pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "smolvlm"])

CHAIN: Mapping[str, Any] = {"method": "speculative", "num_speculative_tokens": 3}
AHEAD: Mapping[str, Any] = {**CHAIN, "schedule": "parallel"}
SEEDS = [11, 12, 13]


@cache
def words_only(family: Family) -> Any:
    """The target's language model with some noise, which agrees with it now and then."""
    return language_part(noisy(target(family), 0.02))


def generate(family: Family, kind: str, **options: Any) -> draftlens.Result:
    given = options.pop("given", None) or inputs(family, kind)
    options = {"draft": words_only(family), "max_new_tokens": NEW, **options}
    return draftlens.generate(target(family), given, **options)


@pytest.mark.pairwise
@every_family
@pytest.mark.parametrize("kind", ["images", "mixed"])
@pytest.mark.parametrize("method", ["chain5", "eagle"])
def test_a_ragged_batch(family: Family, kind: str, method: str) -> None:
    if kind not in family.kinds:
        kind = "images"
    result = generate(family, kind, method=METHODS[method])
    assert result.tokens == reference(family, kind)
    assert result.lossless
    tree = from_dict(METHODS[method]).topology
    assert result.stats.accepted_by_depth == rounds(tree, ranks_of_the_words(family, kind))


@cache
def ranks_of_the_words(family: Family, kind: str) -> list[list[int]]:
    """How many tokens the draft likes better than each of the target's, by a pass of its own over
    the words and the answer."""
    answer = torch.tensor(reference(family, kind))
    words = text_inputs(target(family).config, inputs(family, kind))
    output = words_only(family).generate(
        **words,
        do_sample=False,
        max_new_tokens=NEW,
        logits_processor=[Dictated(answer, words["input_ids"].shape[1])],
        return_dict_in_generate=True,
        output_logits=True,
    )
    return ranks_of(torch.stack(output.logits, 1), answer)


def test_some_draft_tokens_are_accepted() -> None:
    accepted = Counter(
        {
            family.name: generate(family, family.richest, method=CHAIN).stats.accepted
            for family in FAMILIES
        }
    )
    assert sum(count > 0 for count in accepted.values()) >= 3


@some_families
@pytest.mark.parametrize("side", ["left", "right"])
def test_inputs_that_the_draft_cannot_read_are_not_given_to_it(name: str, side: str) -> None:
    """Pixels in its own inputs, padding on either side, and a mask of another type."""
    family = BY_NAME[name]
    own = inputs(family, family.richest, side=side)
    own["attention_mask"] = own["attention_mask"].float()
    result = generate(family, family.richest, method=CHAIN, draft_inputs=own)
    assert result.tokens == reference(family, family.richest)
    without = generate(family, family.richest, method=CHAIN)
    assert result.stats.accepted_by_depth == without.stats.accepted_by_depth


@some_families
@pytest.mark.parametrize("method", [None, CHAIN], ids=["auto", "chain"])
def test_inside_generate_of_transformers(name: str, method: Any) -> None:
    """No inputs of the draft are needed: words do not have to be encoded."""
    family = BY_NAME[name]
    custom = draftlens.SpeculativeGenerate(words_only(family), method=method)
    given = inputs(family, family.richest)
    target(family).generate(**given, max_new_tokens=NEW, do_sample=False, custom_generate=custom)
    assert custom.last is not None
    assert custom.last.tokens == reference(family, family.richest)
    if method is not None:
        assert custom.last.stats.drafted > 0


@some_families
@pytest.mark.parametrize("script", [1, 2])
def test_ahead_of_the_target(name: str, script: int) -> None:
    family = BY_NAME[name]
    with scripted_workers(script):
        result = generate(family, family.richest, method=AHEAD)
    assert result.tokens == reference(family, family.richest)
    assert result.stats.drafted > 0
    assert result.stats.worker_lost is None


@some_families
@pytest.mark.parametrize("method", [CHAIN, AHEAD], ids=["serial", "parallel"])
def test_sampled_tokens_are_those_of_plain_decoding(name: str, method: Any) -> None:
    family = BY_NAME[name]
    options = {"do_sample": True, "top_k": 40, "repetition_penalty": 1.1, "seed": SEEDS}
    plain = generate(family, family.richest, draft=None, **options)
    with scripted_workers(3):
        result = generate(family, family.richest, method=method, **options)
    assert result.tokens == plain.tokens


@some_families
@pytest.mark.parametrize("method", ["chain", "auto"])
def test_turns_with_the_prompt_cache(name: str, method: str) -> None:
    family = BY_NAME[name]
    talks = (
        Conversation((Turn(media_of(family)), Turn("", 4), Turn("i", 7)), seed=1),
        Conversation((Turn("i", 17), Turn("", 12), Turn("", 3)), seed=2),
    )
    chosen = CHAIN if method == "chain" else {"method": "speculative"}
    case = TurnsCase(name, talks, tuple(chosen.items()), "words", (9, 11, 9), 1 << 28)
    assert check_turns(case) > 0


@some_families
@pytest.mark.parametrize("size", [VOCAB - 13, VOCAB + 16])
def test_a_vocabulary_of_another_size(name: str, size: int) -> None:
    """Ids that the draft lacks, such as those of special tokens, and ids that the target lacks."""
    family = BY_NAME[name]
    draft = language_part(noisy(target(family), 0.02))
    draft.resize_token_embeddings(size, mean_resizing=False)
    result = generate(family, family.richest, draft=draft, method=METHODS["eagle"])
    assert result.tokens == reference(family, family.richest)


@pytest.mark.parametrize("method", ["specvlm", "parallelvlm"])
def test_it_has_no_visual_tokens_to_prune(method: str) -> None:
    with pytest.raises(IncompatiblePairError, match=r"prunes visual tokens.*'speculative' with"):
        generate(FAMILIES[0], "images", method=method)
    itself = {"method": method, "draft": "self", "num_speculative_tokens": 3}
    with scripted_workers(0):
        assert generate(FAMILIES[0], "images", method=itself).tokens == reference(
            FAMILIES[0], "images"
        )
