"""Wrong arguments of every entry point: each is refused in one sentence that names the argument.

Values that transformers takes and answers are taken here, too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from families import FAMILIES, TEXT, VOCAB, Family, inputs
from stock import draft, target

import draftlens
from draftlens.batch.map import MapOptions
from draftlens.cli.options import AnswerOptions
from draftlens.core.options import MOST_SHOWN, shown
from draftlens.media import Limits
from draftlens.models.adapter import Backbone
from draftlens.models.checks import max_positions
from draftlens.options import OPTIONS, checked_options

LLAVA: Family = FAMILIES[0]
VIDEO: Family = next(family for family in FAMILIES if family.name == "qwen2_5_vl")
HUGE = 10**9
NO_NUMBERS = ("4", b"4", [4], {}, None.__class__, object(), 1j)
NO_WHOLE = (*NO_NUMBERS, 1.5, nan, inf, -inf, True, False)
NO_REAL = (*NO_NUMBERS, nan, -inf, True)
NO_SWITCH = ("yes", "no", "", 2, -1, 0.5, nan, [], {}, object())
NO_IDS = ("a", "5", 1.5, nan, True, [[5]], ["a"], [1.5], {}, object())
NO_LISTS = (5, 1.5, "ab", object(), {5}, True)
NO_TEXTS = (5, 1.5, True, b"x", "", [], [""], [5], ["a", ""], object())

WRONG: Mapping[str, tuple[Any, ...]] = {
    "max_new_tokens": (0, -1, *NO_WHOLE),
    "max_length": (0, -1, *NO_WHOLE),
    "min_new_tokens": NO_WHOLE,
    "min_length": NO_WHOLE,
    "do_sample": NO_SWITCH,
    "temperature": (-1, -0.5, inf, *NO_REAL),
    "top_k": (-1, *NO_WHOLE),
    "top_p": (-0.1, 1.5, inf, *NO_REAL),
    "min_p": (-0.1, 1.5, inf, *NO_REAL),
    "top_h": (0, -0.1, 1.5, *NO_REAL),
    "typical_p": (0, -0.1, 1.5, *NO_REAL),
    "epsilon_cutoff": (-0.1, 1.5, *NO_REAL),
    "eta_cutoff": (-0.1, 1.5, *NO_REAL),
    "repetition_penalty": (0, -1.0, inf, *NO_REAL),
    "encoder_repetition_penalty": (0, -1.0, inf, *NO_REAL),
    "no_repeat_ngram_size": NO_WHOLE,
    "encoder_no_repeat_ngram_size": NO_WHOLE,
    "length_penalty": NO_REAL,
    "bad_words_ids": (*NO_LISTS, [], [5], [["a"]], [[1.5]]),
    "sequence_bias": (*NO_LISTS, [], {}, [5], [[5, 1.0]], [[[5], "a"]], {("a",): 1.0}),
    "suppress_tokens": (5, 1.5, "ab", object(), ["a"], [1.5], [[5]]),
    "begin_suppress_tokens": (5, 1.5, "ab", object(), ["a"], [1.5], [[5]]),
    "forced_bos_token_id": NO_IDS,
    "forced_eos_token_id": NO_IDS,
    "exponential_decay_length_penalty": (5, "ab", (2,), ("a", 1.0), (1.5, 1.0), (2, 1, 0)),
    "remove_invalid_values": NO_SWITCH,
    "renormalize_logits": NO_SWITCH,
    "form": (5, "x", [], b"{}", object()),
    "prefix_allowed_tokens_fn": (5, "x", [], object()),
    "logits_processor": (5, "x", [5], print, object()),
    "stopping_criteria": (5, "x", [5], print, object()),
    "stop_strings": NO_TEXTS,
    "max_time": (-1, *NO_REAL),
    "tokenizer": (5, "x", b"x", [], (1, 2), object()),
    "streamer": (5, "x", [], object(), print),
    "eos_token_id": NO_IDS,
    "pad_token_id": NO_IDS,
    "bos_token_id": NO_IDS,
    "num_beams": (0, -1, 2, HUGE, *NO_WHOLE),
    "num_return_sequences": (0, -1, 2, HUGE, *NO_WHOLE),
    "use_cache": NO_SWITCH,
    "allow_long_prompt": NO_SWITCH,
    "logprobs": ("yes", "scores", "", 2, -1, 0.5, nan, [], {}, object()),
    "top_logprobs": (-1, 21, *NO_WHOLE),
    "generation_config": (5, "x", {}, {"max_new_tokens": 3}, [], object()),
    "output_scores": (True, 1),
    "output_logits": (True, 1),
    "output_attentions": (True, 1),
    "output_hidden_states": (True, 1),
    "return_dict_in_generate": (True, 1),
}
"""Values of each option that nobody can mean."""

CASES = [(name, value) for name, values in WRONG.items() for value in values]


def named(value: Any) -> str:
    if isinstance(value, type) or callable(value):
        return type(value).__name__
    return re.sub(r" at 0x\w+", "", repr(value))[:24]  # the same in every process


def refused(call: Callable[[], Any], *named: str) -> str:
    """The sentence with which a call is refused; it names the argument."""
    with pytest.raises(draftlens.DraftlensError) as error:
        call()
    sentence = str(error.value)
    for name in named:
        assert name in sentence
    assert "\n" not in sentence
    assert len(sentence) < 400
    return sentence


@cache
def engine() -> draftlens.Engine:
    """A tiny target alone."""
    tools = LLAVA.tools
    tools.chat_template = tools.tokenizer.chat_template = (
        "{% for message in messages %}{% for item in message.content %}"
        "{{ '<image>' if item.type == 'image' else item.text }}{% endfor %}{% endfor %}"
    )
    return draftlens.Engine(target(LLAVA), processor=tools)


def given() -> dict[str, Any]:
    return inputs(LLAVA, "text", rows=(0,))


def answer(**options: Any) -> draftlens.Result:
    return draftlens.generate(target(LLAVA), given(), **{"max_new_tokens": 3, **options})


def test_every_option_has_wrong_values() -> None:
    assert WRONG.keys() == OPTIONS.keys()
    assert len(CASES) > 281


@pytest.mark.parametrize(("name", "value"), CASES, ids=named)
def test_a_wrong_option(name: str, value: Any) -> None:
    """By `draftlens.generate`, and by an engine before media are read."""
    sentence = refused(lambda: answer(**{name: value}), name)
    missing = "/no/such/clip.mp4"
    ours = refused(lambda: engine().stream("x", video=missing, **{name: value}), name)
    assert ours == sentence


@pytest.mark.parametrize("name", sorted(set(WRONG) - {"generation_config"}))
def test_a_wrong_value_in_a_generation_config(name: str) -> None:
    if not hasattr(hf.GenerationConfig(), name):
        pytest.skip("it is no field of a GenerationConfig")
    config = hf.GenerationConfig(max_new_tokens=3)
    value = True if name.startswith("output_") else WRONG[name][0]
    setattr(config, name, value)
    if name == "return_dict_in_generate":  # alone it changes nothing that a Result holds
        assert answer(generation_config=config).tokens
        return
    config.return_dict_in_generate = True
    refused(lambda: answer(generation_config=config), name)


TAKEN: Mapping[str, tuple[Any, ...]] = {
    "max_new_tokens": (3, 3.0, np.int64(3), np.float32(3), torch.tensor(3)),
    "max_length": (40, np.int64(40)),
    "min_new_tokens": (0, -1, 2, np.int64(2)),
    "min_length": (-1, 0, 3),
    "do_sample": (0, False, None, np.False_),
    "top_k": (0, None, HUGE),
    "top_p": (0, 0.5, 1, np.float64(0.5)),
    "typical_p": (1, 0.5),
    "epsilon_cutoff": (0, 0.1, 1),
    "repetition_penalty": (0.5, 1),
    "no_repeat_ngram_size": (-1, 0, 2),
    "length_penalty": (0, 2.0),
    "bad_words_ids": ([[5]], [[5, 6]]),
    "sequence_bias": ({(5,): 1.0}, [[[5], 1.0]]),
    "suppress_tokens": ([], [5], (5, 6), [-1], [HUGE]),
    "forced_eos_token_id": (5, [5, 6]),
    "logits_processor": ([],),
    "max_time": (5.0, inf),
    "eos_token_id": (5, [5, 6], [], -1, HUGE, None, np.int64(5)),
    "pad_token_id": (5, None),
    "use_cache": (False,),
}
"""Values that transformers answers."""


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, each) for name, values in TAKEN.items() for each in values],
    ids=named,
)
def test_what_transformers_answers_is_answered(name: str, value: Any) -> None:
    length: dict[str, Any] = {} if name == "max_length" else {"max_new_tokens": 3}
    options = {"do_sample": False, **length, name: value}
    stock = target(LLAVA).generate(**given(), **options)[:, given()["input_ids"].shape[1] :]
    ours = draftlens.generate(target(LLAVA), given(), **options)
    assert ours.tokens == stock.tolist()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": np.float32(0.5)},
        {"temperature": torch.tensor(0.5)},
        {"top_k": np.int64(3)},
        {"top_p": torch.tensor(0.5)},
        {"temperature": 2, "repetition_penalty": 2},
    ],
    ids=str,
)
def test_numbers_of_other_libraries_are_those_of_python(options: dict[str, Any]) -> None:
    plain = {
        name: value if isinstance(value, int) else value.item() for name, value in options.items()
    }
    plain = {name: float(each) if name != "top_k" else each for name, each in plain.items()}
    shared: dict[str, Any] = {"do_sample": True, "seed": 5}
    assert answer(**options, **shared).tokens == answer(**plain, **shared).tokens


def test_temperature_0_samples_nothing() -> None:
    """transformers ignores it in greedy decoding."""
    assert answer(temperature=0, do_sample=False).tokens == answer(do_sample=False).tokens
    for value in (0, 0.0):
        refused(lambda value=value: answer(temperature=value, do_sample=True), "temperature")
    config = hf.GenerationConfig(do_sample=True, max_new_tokens=3)
    config.temperature = 0.0
    refused(lambda: answer(generation_config=config), "temperature")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bad_words_ids", [[HUGE]]),
        ("bad_words_ids", [[-1]]),
        ("sequence_bias", {(HUGE,): 1.0}),
        ("sequence_bias", [[[VOCAB], 1.0]]),
        ("forced_bos_token_id", HUGE),
        ("forced_eos_token_id", [5, HUGE]),
        ("forced_eos_token_id", -1),
        ("exponential_decay_length_penalty", (2, 1.5)),
    ],
    ids=named,
)
def test_ids_that_the_model_does_not_have(name: str, value: Any) -> None:
    refused(lambda: answer(**{name: value}), name)


def test_a_length_that_the_prompt_exceeds() -> None:
    refused(lambda: answer(max_new_tokens=None, max_length=5), "max_length", "5", "32")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("max_new_token", "max_new_tokens"),
        ("temprature", "temperature"),
        ("do_smaple", "do_sample"),
        ("sample", "do_sample"),
        ("topk", "top_k"),
        ("n", "num_return_sequences"),
        ("draft_model", "draft"),
        ("stop", "stop_strings"),
        ("num_speculative_tokens", "method="),
        ("tree", "method="),
        ("foo", "inputs"),
        ("pixel_values", "inputs"),
        ("custom_generate", "inputs"),
        ("input_ids", "inputs"),
        ("attention_mask", "inputs"),
    ],
)
def test_unknown_names(name: str, meant: str) -> None:
    refused(lambda: answer(**{name: 5}), name, meant)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("image", "images"),
        ("videos", "video"),
        ("max_tokens", "max_new_tokens"),
        ("frames", "num_frames"),
        ("stop_sequences", "stop"),
        ("message", "messages"),
        ("methd", "method"),
    ],
)
def test_unknown_names_of_an_engine(name: str, meant: str) -> None:
    sentence = refused(lambda: engine().generate("x", **{name: 5}), repr(name), repr(meant))
    assert sentence.endswith(f"did you mean {meant!r}?")
    refused(lambda: engine().map([], "x", **{name: 5}), repr(name), repr(meant))


PIXELS = np.zeros((16, 16, 3), np.uint8)
MESSAGE = {"role": "user", "content": "x"}

QUESTIONS: list[tuple[str, Any]] = [
    *(("prompt", value) for value in (5, 1.5, True, b"x", [], [5], {}, object())),
    *(("video", value) for value in (5, True, b"x", {}, [None], [5], [PIXELS, None], "", [""])),
    ("video", io.BytesIO(b"x")),
    *(("images", value) for value in (5, True, b"x", {}, {"a"}, [None], [5], "", [""], [b"x"])),
    ("images", io.BytesIO(b"x")),
    ("images", iter([])),
    *(("messages", value) for value in (5, True, "x", {}, MESSAGE, [], [[]], [5], [None], [b"x"])),
    ("messages", [{"role": "user"}]),
    ("messages", [{**MESSAGE, "role": 5}]),
    ("messages", [[MESSAGE], []]),
    ("messages", [[MESSAGE], MESSAGE]),
    *(("num_frames", value) for value in (0, -1, None, *NO_WHOLE)),
    *(("limits", value) for value in (5, "5", {}, True)),
    *(("stop", value) for value in NO_TEXTS),
    *(("seed", value) for value in ("5", b"5", 1.5, nan, {}, [None], ["x"])),
    *(("method", value) for value in (5, 1.5, [5], "magic", b"x", True, {"method": 5}, object())),
    *(("prefill", value) for value in (5, "magic", {}, {"name": 5}, True)),
    *(("references", value) for value in (5, "x", [5], b"x", True, nan)),
]
"""Wrong arguments of an engine beside the options."""


@pytest.mark.parametrize(("name", "value"), QUESTIONS, ids=named)
def test_a_wrong_question(name: str, value: Any) -> None:
    question = {} if name in ("prompt", "messages") else {"prompt": "x"}
    refused(lambda: engine().generate(**question, max_new_tokens=2, **{name: value}), name)


@pytest.mark.parametrize(
    "content",
    [
        5,
        None,
        b"x",
        [5],
        [{"type": "text", "text": 5}],
        [{"type": "image", "image": 5}],
        [{"type": "image", "image": b"x"}],
        [{"type": "image"}],
        [{"type": "video", "video": 5}],
        [{"type": "video", "video": [None]}],
        [{"type": "sound", "sound": "x"}],
    ],
    ids=named,
)
def test_wrong_items_of_messages(content: Any) -> None:
    refused(lambda: engine().generate(messages=[{"role": "user", "content": content}]))


def test_nothing_is_asked() -> None:
    refused(lambda: engine().generate(), "prompt", "messages")


def test_pictures_in_all_their_forms() -> None:
    answers = [
        engine().generate("x", images=images, max_new_tokens=2).tokens
        for images in (PIXELS, [PIXELS], torch.from_numpy(PIXELS), (PIXELS,))
    ]
    assert answers == [answers[0]] * 4


IDS = torch.arange(5, 11)[None]
ONES = torch.ones_like(IDS)
TOKENS: dict[str, Any] = {
    "no mapping": 5,
    "a list": [IDS],
    "a number": {"input_ids": 5},
    "lists": {"input_ids": IDS.tolist()},
    "an array": {"input_ids": IDS.numpy()},
    "1-d": {"input_ids": IDS[0]},
    "3-d": {"input_ids": IDS[None]},
    "no tokens": {"input_ids": IDS[:, :0]},
    "no rows": {"input_ids": IDS[:0]},
    "negative": {"input_ids": IDS - 100},
    "float": {"input_ids": IDS.float()},
    "bool": {"input_ids": IDS.bool()},
    "bytes": {"input_ids": IDS.to(torch.uint8)},
    "complex": {"input_ids": IDS.to(torch.complex64)},
    "meta": {"input_ids": IDS.to("meta")},
    "a shorter mask": {"input_ids": IDS, "attention_mask": ONES[:, 1:]},
    "a longer mask": {"input_ids": IDS, "attention_mask": torch.ones(1, 9)},
    "a mask of more rows": {"input_ids": IDS, "attention_mask": torch.ones(2, 6)},
    "a flat mask": {"input_ids": IDS, "attention_mask": ONES[0]},
    "a mask on meta": {"input_ids": IDS, "attention_mask": ONES.to("meta")},
    "a mask of 5": {"input_ids": IDS, "attention_mask": 5},
    "a mask of zeros": {"input_ids": IDS, "attention_mask": ONES * 0},
}


@pytest.mark.parametrize("kind", TOKENS)
def test_wrong_tokens(kind: str) -> None:
    """Of the target, of the draft, and of a view."""
    wrong = TOKENS[kind]
    name = "attention_mask" if "mask" in kind else "input"
    refused(lambda: draftlens.generate(target(LLAVA), wrong, max_new_tokens=2), name)
    if kind == "a mask of zeros":
        return  # a draft's own affair
    good = {"input_ids": IDS, "attention_mask": ONES}

    def with_draft(**options: Any) -> None:
        draftlens.generate(target(LLAVA), good, draft=draft(LLAVA), max_new_tokens=2, **options)

    refused(lambda: with_draft(draft_inputs=wrong), "draft_inputs")
    refused(lambda: draftlens.SpeculativeGenerate(draft(LLAVA), wrong), "draft_inputs")
    views = {**good, "views": {"text": wrong}}
    refused(lambda: with_draft(draft_inputs=views, method="tabed"), "draft_inputs['views']")


def test_ids_beyond_the_vocabulary() -> None:
    refused(
        lambda: draftlens.generate(target(LLAVA), {"input_ids": IDS + VOCAB}, max_new_tokens=2),
        "input_ids",
        str(VOCAB - 1),
    )


def test_ids_of_32_bits_are_taken() -> None:
    small = draftlens.generate(target(LLAVA), {"input_ids": IDS.int()}, max_new_tokens=3)
    assert (
        small.tokens
        == draftlens.generate(target(LLAVA), {"input_ids": IDS}, max_new_tokens=3).tokens
    )


CALLS: list[tuple[str, Any]] = [
    *(("draft", value) for value in (5, "x", torch.nn.Linear(1, 1), object())),
    *(("method", value) for value in (5, "magic", True)),
    *(("seed", value) for value in ("5", 1.5, [1, 2])),
    *(("references", value) for value in (5, "x", True)),
    *(("prefill", value) for value in (5, "magic")),
    *(("prefill", {"name": "ring", "hosts": value}) for value in (0, -1, "2", 1.5, True)),
    *(("compile", value) for value in (5, "always", "a" * 10_000)),
    ("prefill", {"name": "ring", "hosts": "a" * 10_000}),
    ("references", "a" * 10_000),
]


@pytest.mark.parametrize(("name", "value"), CALLS, ids=named)
def test_further_arguments_of_both_entry_points(name: str, value: Any) -> None:
    """`draftlens.generate` and `SpeculativeGenerate`."""
    refused(lambda: answer(**{name: value}))

    def custom() -> None:
        arguments = {"draft": None, "method": "lookup", name: value}
        ours = draftlens.SpeculativeGenerate(**arguments)
        target(LLAVA).generate(**given(), max_new_tokens=2, custom_generate=ours)

    refused(custom)


@pytest.mark.parametrize(
    "options",
    [{"max_new_tokens": 1.5}, {"do_sample": True, "temperature": inf}, {"num_beams": 2}],
    ids=str,
)
def test_what_transformers_lets_pass_to_a_callers_own_generate(options: dict[str, Any]) -> None:
    ours = draftlens.SpeculativeGenerate(None, method="lookup")
    every = {"max_new_tokens": 3, **options}
    name = [*options][-1]
    refused(lambda: target(LLAVA).generate(**given(), **every, custom_generate=ours), name)


@pytest.mark.parametrize("value", [5, None, "x", torch.nn.Linear(1, 1), object()], ids=named)
def test_what_is_no_model(value: Any) -> None:
    refused(lambda: draftlens.generate(value, given(), max_new_tokens=2), "model")
    refused(lambda: draftlens.Engine(value, processor=LLAVA.tools), "model")


LOADING: list[tuple[str, Any]] = [
    *((role, value) for role in ("target", "draft") for value in (5, b"x", [], "", True, object())),
    ("target", None),
    *(("dtype", value) for value in (5, "float3", [])),
    *(("calibrate", value) for value in ("x", 5, None)),
    *(("progress", value) for value in ("x", 5, True)),
    *(("prefill", {"name": "ring", "hosts": value}) for value in (0, "2", 1.5, True, HUGE)),
    ("hosts", 2),
    *(("compile", value) for value in (5, "always", None)),
    *(("prefill", value) for value in (5, "magic")),
    *(("method", value) for value in (5, "magic")),
    *(("quantization", value) for value in (5, "3bit", {})),
    *(("device_map", value) for value in (5, "x")),
    *(("trust_remote_code", value) for value in (5, "x")),
    ("trust_remot_code", True),
]


@pytest.mark.parametrize(("name", "value"), LOADING, ids=named)
def test_wrong_arguments_of_load(name: str, value: Any) -> None:
    """Before anything is loaded: there is no such folder."""
    arguments = {"target": "/no/such/folder", name: value}
    word = "hosts" if isinstance(value, dict) and "hosts" in value else name
    sentence = refused(lambda: draftlens.load(**arguments), word.replace("_", " ")[:4])
    assert "no such folder" not in sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            (name, v)
            for name in ("num_frames", "batch", "readers")
            for v in (0, -1, None, *NO_WHOLE)
        ),
        ("readers", HUGE),
        *(("clip_seconds", value) for value in (0, -1, inf, None, *NO_REAL)),
        *(("kind", value) for value in (5, [], "sound", None)),
        *(("limits", value) for value in (5, {}, None)),
        *(("seed", value) for value in ("5", 1.5, nan, [])),
    ],
    ids=named,
)
def test_wrong_map_options(name: str, value: Any) -> None:
    refused(lambda: MapOptions(**{name: value}), name)


@pytest.mark.parametrize(
    "clips", [5, None, "clip.mp4", b"x", Path("clip.mp4"), object()], ids=named
)
def test_what_is_no_series_of_clips(clips: Any) -> None:
    refused(lambda: engine().map(clips, "x"), "clips")


def test_wrong_arguments_of_map() -> None:
    refused(lambda: engine().map([], 5), "prompt")  # type: ignore[arg-type]
    refused(lambda: engine().map([], "x", options=5), "options")  # type: ignore[arg-type]
    refused(lambda: engine().map([], "x", max_new_tokens=0), "max_new_tokens")


@pytest.mark.parametrize("value", ["5", b"5", None, [5], {}, True, nan, -1, 0, -inf], ids=named)
@pytest.mark.parametrize("name", ["max_bytes", "max_duration_s", "max_frames", "max_download_s"])
def test_wrong_limits(name: str, value: Any) -> None:
    refused(lambda: Limits(**{name: value}), name)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [nan, inf])
def test_the_command_line_shares_the_table(name: str, value: float) -> None:
    sentence = refused(lambda: AnswerOptions(**{name: value}).generation, name)
    assert sentence == refused(lambda: checked_options({name: value}), name)


def test_values_are_shortened() -> None:
    for value in ("x" * 10_000, list(range(10_000)), torch.zeros(1000), {"a" * 999: "b" * 999}):
        assert len(shown(value)) < 4 * MOST_SHOWN


TREES: list[tuple[dict[str, Any], str]] = [
    ({"num_speculative_tokens": HUGE}, "num_speculative_tokens"),
    ({"num_speculative_tokens": 1025}, "num_speculative_tokens"),
    ({"tree": []}, "tree"),
    ({"schedule": np.zeros((2, 2))}, "schedule"),
    ({"schedule": "a" * 10_000}, "schedule"),
    ({"method": "tabed", "schedule": "a" * 10_000}, "schedule"),
    ({"tree": ()}, "tree"),
    ({"tree": [[rank] for rank in range(1025)]}, "tree"),
    ({"method": "tabed", "num_speculative_tokens": HUGE}, "num_speculative_tokens"),
    ({"method": "tabed", "weights": {"name": "grid", "steps": HUGE}}, "steps"),
    ({"method": "lookup", "num_speculative_tokens": HUGE}, "num_speculative_tokens"),
    ({"method": "lookup", "max_branches": HUGE}, "max_branches"),
    ({"method": "hsd", "num_speculative_tokens": HUGE}, "num_speculative_tokens"),
    ({"method": "hsd", "max_branches": HUGE}, "max_branches"),
    ({"method": "hsd", "max_nodes": HUGE}, "max_nodes"),
    ({"method": "parallelvlm", "num_speculative_tokens": HUGE}, "num_speculative_tokens"),
    ({"method": "specvlm", "draft": "self", "kv": "gather"}, "kv"),
    ({"method": "plain", "schedule": "parallel"}, "schedule"),
    ({"method": "speculative", "schedule": "lockstep"}, "schedule"),
]


@pytest.mark.parametrize(("method", "name"), TREES, ids=lambda value: str(value)[:50])
def test_methods_without_an_end_or_a_meaning(method: dict[str, Any], name: str) -> None:
    refused(lambda: draftlens.from_dict(method), name)


def test_trees_beyond_a_model() -> None:
    """Its positions, its vocabulary, and the kinds of draft that it has."""
    short = LLAVA.build(max_position_embeddings=40)

    def drafting(method: dict[str, Any], target_model: Any = None) -> None:
        model = target_model or target(LLAVA)
        draftlens.generate(model, given(), draft=draft(LLAVA), method=method, max_new_tokens=3)

    for name in ("speculative", "lookup", "tabed", "specvlm", "parallelvlm"):
        method = {"method": name, "num_speculative_tokens": 40}
        refused(lambda method=method: drafting(method, short), "num_speculative_tokens", "40")
    drafting({"num_speculative_tokens": 39}, short)
    refused(lambda: drafting({"tree": [[rank] for rank in range(VOCAB + 1)]}), "tree", str(VOCAB))


def test_a_prompt_beyond_the_positions() -> None:
    """By all entry points; an option answers it as transformers does."""
    short = LLAVA.build(max_position_embeddings=20)
    prompt = given()
    numbers = ("32", "20")
    refused(lambda: draftlens.generate(short, prompt, max_new_tokens=3), *numbers)
    stock = short.generate(**prompt, max_new_tokens=3, do_sample=False)
    ours = draftlens.generate(short, prompt, max_new_tokens=3, allow_long_prompt=True)
    assert ours.tokens == stock[:, 32:].tolist()
    custom = draftlens.SpeculativeGenerate(None, method="lookup")
    refused(lambda: short.generate(**prompt, max_new_tokens=3, custom_generate=custom), *numbers)
    custom = draftlens.SpeculativeGenerate(None, method="lookup", allow_long_prompt=True)
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "custom_generate": custom}
    assert short.generate(**prompt, **options).tolist() == stock.tolist()
    refused(lambda: draftlens.Engine(short, processor=engine().target.processor).generate("x" * 99))


def test_padding_and_the_answer_do_not_count() -> None:
    """A prompt that fits is answered as far as the caller asks, as by transformers."""
    exact = LLAVA.build(max_position_embeddings=32)
    prompt = given()
    padded = {
        "input_ids": torch.nn.functional.pad(prompt["input_ids"], (5, 0)),
        "attention_mask": torch.nn.functional.pad(prompt["attention_mask"], (5, 0)),
    }
    assert padded["input_ids"].shape[1] > 32
    for given_inputs in (prompt, padded):
        stock = exact.generate(**given_inputs, max_new_tokens=4, do_sample=False)
        ours = draftlens.generate(exact, given_inputs, max_new_tokens=4, do_sample=False)
        assert ours.tokens == stock[:, given_inputs["input_ids"].shape[1] :].tolist()


def test_visual_tokens_that_share_a_position_count_once() -> None:
    """Under M-RoPE a prompt may have more tokens than the model has positions."""
    prompt = inputs(VIDEO, "images", rows=(2,))
    length = prompt["input_ids"].shape[1]
    prepared = Backbone.of(target(VIDEO)).prepare(prompt, max_new_tokens=1)
    positions = int(prepared.model_kwargs["position_ids"][1:].max()) + 1
    assert positions < length
    model = VIDEO.build(max_position_embeddings=positions)
    assert draftlens.generate(model, prompt, max_new_tokens=2).tokens
    smaller = VIDEO.build(max_position_embeddings=positions - 1)
    refused(lambda: draftlens.generate(smaller, prompt, max_new_tokens=2), str(positions))


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        ({"rope_type": "default"}, 1000),
        ({"rope_type": "linear", "factor": 2.0}, 2000),
        ({"rope_type": "dynamic", "factor": 2.0}, None),
        ({"rope_type": "yarn", "factor": 4.0}, 4000),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 250}, 1000),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 500}, 2000),
        ({"rope_type": "llama3", "factor": 64.0, "original_max_position_embeddings": 500}, 1000),
        ({"rope_type": "longrope", "factor": 4.0}, 1000),
        ({"full": {"rope_type": "linear", "factor": 8.0}, "local": {"rope_type": "default"}}, 8000),
        (None, 1000),
    ],
    ids=str,
)
def test_positions_with_stretched_rope(rope: Any, expected: int | None) -> None:
    config = hf.PreTrainedConfig()
    config.max_position_embeddings = 1000
    config.rope_parameters = rope
    assert max_positions(config) == expected


def test_models_without_positions_have_no_bound() -> None:
    assert max_positions(hf.PreTrainedConfig()) is None


def test_wrapped_models_are_unwrapped(tmp_path: Path) -> None:
    """DataParallel, DistributedDataParallel and `torch.compile`, as target and as draft."""
    model, small = target(LLAVA), draft(LLAVA)
    expected = answer(draft=small).tokens
    compiled = torch.compile(model)
    assert Backbone.of(compiled).model is model
    options: dict[str, Any] = {"max_new_tokens": 3}
    assert draftlens.generate(compiled, given(), draft=small, **options).tokens == expected
    parallel = torch.nn.DataParallel(model)
    assert draftlens.generate(parallel, given(), draft=torch.compile(small), **options).tokens == (
        expected
    )
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1
    )
    try:
        wrapped = torch.nn.parallel.DistributedDataParallel(LLAVA.build())
        assert Backbone.of(torch.compile(wrapped)).model is wrapped.module
        loaded = draftlens.Engine(wrapped, processor=engine().target.processor)
        assert loaded.target.backbone.model is wrapped.module
    finally:
        torch.distributed.destroy_process_group()
    refused(lambda: Backbone.of(torch.nn.Sequential(model)), "Sequential is no transformers model")


def test_a_folder_of_folders(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-2").mkdir()
    refused(lambda: draftlens.load(tmp_path), "holds no config.json")  # type: ignore[arg-type]
    (tmp_path / "checkpoint-2" / "config.json").write_text("{}")
    refused(lambda: draftlens.load(str(tmp_path)), "holds no config.json", "checkpoint-2")
    file = tmp_path / "model.bin"
    file.write_text("x")
    refused(lambda: draftlens.load(str(file)), "it is a file, not a folder")
    refused(lambda: draftlens.load("embedded", draft=str(tmp_path)), "draft", "no config.json")


@pytest.mark.parametrize("option", ["quantization", "draft_quantization"])
@pytest.mark.parametrize(
    ("word", "package"),
    [("4bit", "bitsandbytes"), ("8bit", "bitsandbytes"), ("int8", "torchao"), ("int4", "torchao")],
)
def test_quantization_names_what_to_install(
    word: str, package: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)

    def load() -> None:
        draftlens.load("embedded", compile=False, **{option: word})

    refused(load, word, f"pip install {package}")


@pytest.mark.parametrize("option", ["quantization", "draft_quantization"])
def test_rounded_passes_name_what_to_install(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default an engine of passes has these weights; the draft is not left without them."""
    monkeypatch.setattr("draftlens.passes.openvino.find_spec", lambda name: None)

    def load() -> None:
        draftlens.load("embedded", device="cpu", **{option: "int8"})

    refused(load, "int8 passes need", "pip install openvino")


def test_no_view_of_a_draft_can_be_read() -> None:
    """InternVL's ids of a clip do not show which words belong to it: the sentence says so."""
    family = next(family for family in FAMILIES if family.name == "internvl")
    method = {"method": "tabed", "views": ["text"], "num_speculative_tokens": 2}
    prompt = inputs(family, "video", rows=(0,))

    def call() -> None:
        draftlens.generate(
            target(family), prompt, draft=draft(family), method=method, max_new_tokens=4
        )

    with pytest.raises(draftlens.InputError, match="none of the views text can be read"):
        call()
    refused(call, "give messages", "draft_inputs['views']['text']")


def test_a_text_model_of_learned_positions_has_its_bound() -> None:
    """The configuration's own number counts where there is no RoPE."""
    assert max_positions(hf.LlamaConfig(**TEXT)) == TEXT["max_position_embeddings"]
