"""`SpeculativeGenerate` inside the caller's own `model.generate`: the same tensor, padding
included."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from families import FAMILIES, Family, inputs, tokenizer
from stock import LONG, METHODS, NEW, Divisible, NoEcho, draft, reference, staggered, stock, target
from streamers import Recorder
from transformers.generation.utils import GenerateDecoderOnlyOutput

import draftlens

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
methods = pytest.mark.parametrize("method", ["chain5", "eagle"])


def compare(
    family: Family, given: dict[str, Any], method: str = "chain5", **options: Any
) -> draftlens.Result:
    """Call `generate` with and without us; our statistics."""
    options = {"max_new_tokens": NEW, "do_sample": False, **options}
    ours = draftlens.SpeculativeGenerate(draft(family), given, METHODS[method])
    expected = target(family).generate(**given, **options)
    assert torch.equal(target(family).generate(**given, **options, custom_generate=ours), expected)
    assert ours.last is not None
    return ours.last


@pytest.mark.pairwise("callers")
@every_family
@methods
def test_the_whole_tensor(family: Family, method: str) -> None:
    """Prompt, answers and the padding of rows that end early."""
    eos = staggered(reference(family, family.richest, LONG))
    given = inputs(family, family.richest)
    result = compare(family, given, method, eos_token_id=eos, max_new_tokens=LONG)
    assert 0 < result.stats.accepted < result.stats.drafted


@every_family
def test_a_dict(family: Family) -> None:
    """`return_dict_in_generate`."""
    given = inputs(family, family.richest)
    output = target(family).generate(
        **given,
        max_new_tokens=NEW,
        do_sample=False,
        return_dict_in_generate=True,
        custom_generate=draftlens.SpeculativeGenerate(draft(family), given),
    )
    assert isinstance(output, GenerateDecoderOnlyOutput)
    assert output.sequences[:, given["input_ids"].shape[1] :].tolist() == reference(
        family, family.richest
    )


@every_family
def test_criteria_and_processors(family: Family) -> None:
    """The caller's own objects."""
    given = inputs(family, family.richest)
    criteria = [Divisible(given["input_ids"].shape[1])]
    compare(
        family,
        given,
        "eagle",
        stopping_criteria=criteria,
        logits_processor=[NoEcho()],
        repetition_penalty=1.2,
        eos_token_id=staggered(reference(family, family.richest, LONG)),
        max_new_tokens=LONG,
    )


@pytest.mark.pairwise("callers")
@every_family
@methods
def test_criteria_without_an_eos(family: Family, method: str) -> None:
    """Stock `generate` goes on writing rows that a criterion has ended until all have met one."""
    given = inputs(family, family.richest)
    criteria = [Divisible(given["input_ids"].shape[1])]
    result = compare(family, given, method, stopping_criteria=criteria, max_new_tokens=LONG)
    assert len(set(map(len, result.tokens))) == 1


@pytest.mark.pairwise("callers")
@every_family
@methods
def test_a_streamer(family: Family, method: str) -> None:
    """All ids in order, and one end."""
    given, told, heard = inputs(family, family.richest, rows=(0,)), Recorder(), Recorder()
    options = {"max_new_tokens": NEW, "do_sample": False}
    target(family).generate(**given, **options, streamer=told)
    ours = draftlens.SpeculativeGenerate(draft(family), given, METHODS[method])
    target(family).generate(**given, **options, streamer=heard, custom_generate=ours)
    assert heard.ids == told.ids
    assert heard.ends == told.ends == 1
    assert heard.puts < told.puts


@pytest.mark.pairwise("callers")
@every_family
@methods
def test_a_streamer_of_our_own_generate(family: Family, method: str) -> None:
    """As stock `generate` tells it: the prompt, all ids in order, one end."""
    given, told, heard = inputs(family, family.richest, rows=(0,)), Recorder(), Recorder()
    target(family).generate(**given, max_new_tokens=NEW, do_sample=False, streamer=told)
    draftlens.generate(
        target(family),
        given,
        draft=draft(family),
        method=METHODS[method],
        max_new_tokens=NEW,
        streamer=heard,
    )
    assert heard.ids == told.ids
    assert heard.ends == told.ends == 1
    assert heard.puts < told.puts


def test_a_streamer_is_ended_by_a_consumer_that_stops() -> None:
    """Its reader waits for the end in another thread."""
    given, heard = inputs(FAMILIES[0], "image", rows=(0,)), Recorder()
    stream = draftlens.stream(
        target(FAMILIES[0]), given, draft=draft(FAMILIES[0]), max_new_tokens=NEW, streamer=heard
    )
    next(stream)
    assert not heard.ends
    del stream
    assert heard.ends == 1


@every_family
def test_a_streamer_of_a_call_around_ours_is_left_alone(family: Family) -> None:
    """`draftlens.generate` inside somebody's streamed `generate` tells that streamer nothing."""
    given, recorder = inputs(family, "text", rows=(0,)), Recorder()

    def inner(model: Any, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        draftlens.generate(model, given, draft=draft(family), max_new_tokens=5)
        return input_ids

    target(family).generate(**given, max_new_tokens=5, streamer=recorder, custom_generate=inner)
    assert recorder.ids == given["input_ids"][0].tolist()


@every_family
def test_text_needs_no_draft_inputs(family: Family) -> None:
    """Nothing has been replaced in them."""
    given = inputs(family, "text")
    ours = draftlens.SpeculativeGenerate(draft(family))
    output = target(family).generate(
        **given, max_new_tokens=NEW, do_sample=False, custom_generate=ours
    )
    assert output[:, given["input_ids"].shape[1] :].tolist() == reference(family, "text")


@every_family
def test_pictures_need_draft_inputs(family: Family) -> None:
    """Refused with a sentence that says so."""
    given = inputs(family, "image")
    with pytest.raises(draftlens.ConfigError, match="draft_inputs"):
        target(family).generate(
            **given, max_new_tokens=3, custom_generate=draftlens.SpeculativeGenerate(draft(family))
        )


def encoded(family: Family, given: dict[str, Any]) -> dict[str, Any]:
    """The same inputs with the pictures' features in place of their pixels."""
    body = target(family).base_model
    names = [
        name for name in inspect.signature(body.get_image_features).parameters if name in given
    ]
    with torch.no_grad():
        features = body.get_image_features(
            **{name: given[name] for name in names}, return_dict=True
        )
    left = {key: value for key, value in given.items() if not key.startswith("pixel")}
    return {**left, "mm_encoder_outputs": {"image": features}}


@every_family
def test_features_that_the_caller_encoded(family: Family) -> None:
    """Both ways in take `mm_encoder_outputs`, and leave them as they are."""
    given = inputs(family, "image")
    features = encoded(family, given)
    assert stock(target(family), features, max_new_tokens=NEW) == reference(family, "image")
    result = draftlens.generate(
        target(family), features, draft=draft(family), draft_inputs=given, max_new_tokens=NEW
    )
    assert result.tokens == reference(family, "image")
    ours = draftlens.SpeculativeGenerate(draft(family), given, METHODS["odd"])
    output = target(family).generate(
        **features, max_new_tokens=NEW, do_sample=False, custom_generate=ours
    )
    assert output[:, given["input_ids"].shape[1] :].tolist() == reference(family, "image")


@every_family
def test_sampling(family: Family) -> None:
    """The draws of plain decoding with the same seed."""
    given = inputs(family, family.richest)
    options = {"max_new_tokens": NEW, "do_sample": True, "temperature": 0.8, "top_k": 12}
    ours = draftlens.SpeculativeGenerate(draft(family), given, seed=11)
    output = target(family).generate(**given, **options, custom_generate=ours)
    expected = draftlens.generate(target(family), given, seed=11, **options)
    assert output[:, given["input_ids"].shape[1] :].tolist() == expected.tokens


@pytest.mark.parametrize(
    "asked", ["output_scores", "output_logits", "output_attentions", "output_hidden_states"]
)
def test_what_is_not_returned_is_refused(asked: str) -> None:
    """Silently leaving it out would surprise the caller later."""
    family = FAMILIES[0]
    given, speculate = (
        inputs(family, "text"),
        draftlens.SpeculativeGenerate(draft(family), inputs(family, "text")),
    )
    options = {
        "max_new_tokens": 3,
        "do_sample": False,
        "custom_generate": speculate,
        "return_dict_in_generate": True,
    }
    with pytest.raises(draftlens.ConfigError, match=f"does not return what {asked} would add"):
        target(family).generate(**given, **options, **{asked: True})


@pytest.mark.parametrize("drafts", ["auto", "self"])
@every_family
def test_tabed_without_a_draft_model(family: Family, drafts: str) -> None:
    """The target drafts for itself, and reads the words of its own inputs."""
    for kind in (family.richest, "video" if "video" in family.kinds else "image"):
        given = inputs(family, kind)
        ours = draftlens.SpeculativeGenerate(None, method={"method": "tabed", "draft": drafts})
        output = target(family).generate(
            **given, max_new_tokens=LONG, do_sample=False, custom_generate=ours
        )
        assert output[:, given["input_ids"].shape[1] :].tolist() == reference(family, kind, LONG)
        assert ours.last is not None
        assert ours.last.stats.accepted > 0


def test_views_are_read_without_a_draft_model() -> None:
    """Other words lead to other draft tokens, and to the same answer."""
    family = {family.name: family for family in FAMILIES}["qwen2_vl"]
    given = inputs(family, "images", (0,))
    method = {"method": "tabed", "draft": "self", "weights": [0, 1], "rest": False}
    hits = []
    for views in (None, {"text": inputs(family, "text", (1,))}):
        ours = draftlens.SpeculativeGenerate(
            draft_inputs=None if views is None else {"views": views}, method=method
        )
        output = target(family).generate(
            **given, max_new_tokens=NEW, do_sample=False, custom_generate=ours
        )
        assert output[0, given["input_ids"].shape[1] :].tolist() == reference(family, "images")[0]
        assert ours.last is not None
        hits.append(ours.last.stats.accepted_by_depth)
    assert hits[0] != hits[1]


@pytest.mark.parametrize("method", ["plain", "lookup", "specvlm"])
def test_views_that_nothing_reads_are_refused(method: str) -> None:
    family = FAMILIES[0]
    given = inputs(family, "image", (0,))
    views = {"text": inputs(family, "text", (0,))}
    ours = draftlens.SpeculativeGenerate(draft_inputs={"views": views}, method=method)
    with pytest.raises(draftlens.ConfigError, match="does not read views"):
        target(family).generate(**given, max_new_tokens=3, custom_generate=ours)


@pytest.mark.parametrize("method", [None, "plain", "lookup", "hsd", "specvlm"])
def test_methods_without_a_draft(method: str | None) -> None:
    """No argument stands for the draft that there is not."""
    family = FAMILIES[0]
    given = inputs(family, "image")
    ours = draftlens.SpeculativeGenerate(method=method)
    output = target(family).generate(
        **given, max_new_tokens=NEW, do_sample=False, custom_generate=ours
    )
    assert output[:, given["input_ids"].shape[1] :].tolist() == reference(family, "image")


@every_family
def test_stop_strings(family: Family) -> None:
    """The callable's tokenizer stands in for the one that `generate` loses."""
    given, words = inputs(family, "images"), tokenizer()
    stop = [words.decode(reference(family, "images")[0][9:11])]
    expected = target(family).generate(
        **given, max_new_tokens=NEW, do_sample=False, stop_strings=stop, tokenizer=words
    )
    assert expected.shape[1] <= given["input_ids"].shape[1] + NEW
    for tools in (words, family.tools):
        ours = draftlens.SpeculativeGenerate(
            draft(family), given, METHODS["eagle"], tokenizer=tools
        )
        found = target(family).generate(
            **given, max_new_tokens=NEW, do_sample=False, stop_strings=stop, custom_generate=ours
        )
        assert torch.equal(found, expected)
        assert ours.last is not None
        assert ours.last.texts == [
            words.decode(row, skip_special_tokens=True) for row in ours.last.tokens
        ]


def test_a_stop_string_ends_a_single_row() -> None:
    family, words = FAMILIES[0], tokenizer()
    given = inputs(family, "image", (0,))
    stop = words.decode(reference(family, "image")[0][9:11])
    ours = draftlens.SpeculativeGenerate(draft(family), given, tokenizer=words)
    options = {"max_new_tokens": NEW, "do_sample": False, "stop_strings": stop}
    found = target(family).generate(**given, **options, custom_generate=ours)
    assert torch.equal(found, target(family).generate(**given, **options, tokenizer=words))
    assert found.shape[1] < given["input_ids"].shape[1] + NEW


def test_stop_strings_without_a_tokenizer_are_refused_with_the_way_that_works() -> None:
    family = FAMILIES[0]
    given = inputs(family, "image", (0,))
    ours = draftlens.SpeculativeGenerate(draft(family), given)
    with pytest.raises(draftlens.ConfigError, match=r"SpeculativeGenerate\(\.\.\., tokenizer="):
        target(family).generate(
            **given,
            max_new_tokens=3,
            stop_strings="a",
            tokenizer=tokenizer(),
            custom_generate=ours,
        )


def test_text_with_a_tokenizer() -> None:
    """Of our own `generate` and `stream`; without one there is none."""
    family, words = FAMILIES[0], tokenizer()
    given = inputs(family, "image")
    options: dict[str, Any] = {"draft": draft(family), "max_new_tokens": NEW}
    for tools in (words, family.tools):
        result = draftlens.generate(target(family), given, tokenizer=tools, **options)
        assert result.tokens == reference(family, "image")
        assert result.texts == [
            words.decode(row, skip_special_tokens=True) for row in result.tokens
        ]
        assert result.text == result.texts[0] != ""
        stream = draftlens.stream(target(family), given, tokenizer=tools, **options)
        pieces = ["", "", ""]
        for chunk in stream:
            pieces[chunk.row] += chunk.text
        assert pieces == result.texts
    assert draftlens.generate(target(family), given, **options).text == ""
