"""Calls of tools in answers, in the form of each family."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import tokenizer
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import load_response_template

from draftlens.core.forms import FormProcessor
from draftlens.serve.errors import ApiError
from draftlens.serve.messages import Message, Tool
from draftlens.serve.protocol import ChatRequest, parse
from draftlens.serve.templates import demanded_tools, template_options, tool_fields
from draftlens.serve.text import RowText
from draftlens.serve.tools import CALL_ID_LENGTH, FORMS, CallForm, CallReader, CallText, _form_of

QWEN_35, GLM, HERMES, GEMMA, LFM, MISTRAL, OLD_MISTRAL, LLAMA = FORMS

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    }
    for name in ("weather", "time")
]
WEATHER = ("weather", {"city": "Köln {x}", "days": 3})
TIME = ("time", {"city": "7"})
BOTH = [WEATHER, TIME]


def text_of(form: CallForm, stops: Sequence[str] = (), parallel: bool = True) -> CallText:
    """The text of a row whose tokens are characters."""
    row = RowText(lambda ids: "".join(map(chr, ids)), stops)
    parser = ResponseParser(load_response_template(form.template), "", tools=TOOLS)
    return CallText(row, parser, form.is_open, parallel)


def read(answer: str, form: CallForm, step: int, **options: Any) -> tuple[str, list[Any]]:
    """The text and the calls of an answer that comes in steps of some characters."""
    text = text_of(form, **options)
    pieces = []
    for begin in range(0, len(answer), step):
        ids = list(map(ord, answer[begin : begin + step]))
        pieces += text.add(ids, [False] * len(ids))
    pieces += text.flush()
    assert "".join(piece for piece, _ in pieces) == text.text
    return text.text, [(call.name, json.loads(call.arguments)) for call in text.calls]


def hermes(name: str, arguments: dict[str, Any]) -> str:
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def qwen(name: str, arguments: dict[str, Any]) -> str:
    inside = [f"<parameter={key}>\n{value}\n</parameter>" for key, value in arguments.items()]
    return "\n".join(["<tool_call>", f"<function={name}>", *inside, "</function>", "</tool_call>"])


def glm(name: str, arguments: dict[str, Any]) -> str:
    inside = [
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>"
        for key, value in arguments.items()
    ]
    return "\n".join([f"<tool_call>{name}", *inside, "</tool_call>"])


def gemma(name: str, arguments: dict[str, Any]) -> str:
    values = {
        key: f'<|"|>{value}<|"|>' if isinstance(value, str) else value
        for key, value in arguments.items()
    }
    inside = ",".join(f"{key}:{value}" for key, value in values.items())
    return f"<|tool_call>call:{name}{{{inside}}}<tool_call|>"


def mistral(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"


def lfm(*calls: tuple[str, dict[str, Any]]) -> str:
    inside = [
        f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        for name, arguments in calls
    ]
    return f"<|tool_call_start|>[{', '.join(inside)}]<|tool_call_end|>"


def old_mistral(*calls: tuple[str, dict[str, Any]]) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"[TOOL_CALLS]{json.dumps(listed)}"


ANSWERS = {
    "Qwen 3.5": (QWEN_35, "\n".join(qwen(*call) for call in BOTH), BOTH),
    "GLM": (GLM, "\n".join(glm(*call) for call in BOTH), BOTH),
    "Hermes": (HERMES, "\n".join(hermes(*call) for call in BOTH), BOTH),
    "Gemma": (GEMMA, "".join(gemma(*call) for call in BOTH), BOTH),
    "LFM": (LFM, lfm(*BOTH), BOTH),
    "Mistral": (MISTRAL, "".join(mistral(*call) for call in BOTH), BOTH),
    "old Mistral": (OLD_MISTRAL, old_mistral(*BOTH), BOTH),
    "Llama": (LLAMA, json.dumps({"name": "time", "parameters": TIME[1]}), [TIME]),
    "Llama, marked": (
        LLAMA,
        "<|python_tag|>" + json.dumps({"name": "time", "parameters": TIME[1]}),
        [TIME],
    ),
}


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_calls(name: str, step: int) -> None:
    form, answer, calls = ANSWERS[name]
    assert read(answer, form, step) == ("", calls)
    first = read(answer, form, step, parallel=False)
    assert first == ("", calls[:1])


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("form", [QWEN_35, GLM, HERMES], ids=["Qwen 3.5", "GLM", "Hermes"])
def test_text_around_calls(form: CallForm, step: int) -> None:
    one = {id(QWEN_35): qwen, id(GLM): glm, id(HERMES): hermes}[id(form)](*TIME)
    assert read(f"I look.\n\n{one}", form, step) == ("I look.", [TIME])
    assert read(f"First {one} then{one}.", form, step) == ("First then.", [TIME, TIME])


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_text_without_calls(name: str, step: int) -> None:
    text = 'A < b, [0] and {"a": 1}.\n  <tool> [TOOL] <|tool\n'
    assert read(text, ANSWERS[name][0], step) == (text, [])


@pytest.mark.parametrize("step", [1, 4, 1000])
@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (HERMES, "Look: <tool_call>\n{'name': broken}\n</tool_call> and then"),
        (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "time", "arguments": "7"}</tool_call>.'),
        (HERMES, '<tool_call>\n{"name": "time", "argum'),
        (HERMES, '<tool_call>\n{"name": "time", "arguments": {}}'),  # cut off before its end
        (QWEN_35, "<tool_call>\n<function=time>\n<parameter=city>\nKö"),
        (GLM, "<tool_call>time\n<arg_key>city</arg_key>\n<arg_val"),
        (GEMMA, '<|tool_call>call:time{city:<|"|>K'),
        (LFM, "<|tool_call_start|>[time(city)]<|tool_call_end|> and then"),
        (LFM, '<|tool_call_start|>[time(city="K")]'),
        (MISTRAL, '[TOOL_CALLS]time[ARGS]{"city": '),
        (OLD_MISTRAL, "[TOOL_CALLS]time"),
        (LLAMA, '{"name": "time", "parameters": {'),
    ],
)
def test_what_is_no_call_stays_text(form: CallForm, answer: str, step: int) -> None:
    assert read(answer, form, step) == (answer, [])


def test_calls_after_one_that_cannot_be_read() -> None:
    broken = "<tool_call>{]</tool_call>"
    for step in (1, 1000):
        text, calls = read(f"{broken}{hermes(*TIME)}\nDone", HERMES, step)
        assert calls == [TIME]
        assert text.startswith("<tool_call>{]")
        assert text.endswith("Done")


def test_stop_texts_end_the_answer_within_a_call() -> None:
    text, calls = read(f"I look.{hermes(*TIME)} More", HERMES, 1, stops=["arguments"])
    assert calls == []
    assert text == 'I look.<tool_call>\n{"name": "time", "'


def test_calls_are_handed_out_once() -> None:
    text = text_of(HERMES)
    ids = list(map(ord, hermes(*WEATHER)))
    text.add(ids, [False] * len(ids))
    (call,) = text.take_calls()
    assert call.name == "weather"
    assert len(call.id) == CALL_ID_LENGTH
    assert call.id.isalnum()
    assert text.take_calls() == []
    text.add(ids, [True] * len(ids))
    assert [each.id == call.id for each in text.take_calls()] == [False]
    assert RowText(str).take_calls() == ()


def test_pieces_say_whether_the_draft_supplied_them() -> None:
    text = text_of(HERMES)
    assert text.add([ord("a"), ord("b")], [True, True]) == [("ab", True)]
    assert text.add([ord("c")], [False]) == [("c", False)]


# How chat templates show the form of calls, shortened.
TEMPLATES = {
    "Qwen 3.5": (QWEN_35, "format:\n<tool_call>\n<function=example>\n<parameter=p>..."),
    "GLM": (GLM, "<tool_call>{function-name}\n<arg_key>{arg-key-1}</arg_key>..."),
    "Hermes": (HERMES, '<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": ...'),
    "Gemma": (GEMMA, "{{- '<|tool_call>call:' + function['name'] + '{' -}}"),
    "LFM": (LFM, "<|tool_call_start|>[...]<|tool_call_end|>"),
    "Mistral": (MISTRAL, "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"),
    "old Mistral": (OLD_MISTRAL, '{{- "[TOOL_CALLS] [" }}'),
    "Llama": (LLAMA, 'Respond in the format {"name": function name, "parameters": ...}'),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_form_is_that_of_the_template(name: str) -> None:
    form, template = TEMPLATES[name]
    assert _form_of(template) is form


class Tokenizer:
    def __init__(self, *added: SimpleNamespace) -> None:
        self.added_tokens_decoder = {ord(token.text): token for token in added}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, ids))


@dataclass
class Processor:
    chat_template: Any
    tokenizer: Any = field(default_factory=Tokenizer)
    shows: bool = True

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        return str(options.get("tools")) if self.shows else "text"


def request_of(prompt: str) -> Any:
    return SimpleNamespace(inputs={"input_ids": [list(map(ord, prompt))]})


def engine_of(processor: Processor) -> Any:
    return SimpleNamespace(target=SimpleNamespace(processor=processor))


def test_models_that_call_no_tools() -> None:
    for processor, sentence in (
        (Processor("<tool_call>", shows=False), "has no place for them"),
        (Processor("{{ tools }}"), "the form of the model's calls is not known"),
    ):
        with pytest.raises(ApiError, match=sentence) as refused:
            CallReader(engine_of(processor))
        assert (refused.value.status, refused.value.param) == (400, "tools")


def test_special_tokens_that_mark_calls_are_kept() -> None:
    tokenizer = Tokenizer(
        SimpleNamespace(text="!", content="<tool_call>", special=True),
        SimpleNamespace(text="?", content="<|im_end|>", special=True),
        SimpleNamespace(text="+", content="</tool_call>", special=False),
    )
    reader = CallReader(engine_of(Processor({"tool_use": "<tool_call>"}, tokenizer)))
    text = reader.text_of(request_of(""), chat(tools=TOOLS))()
    assert text.add(list(map(ord, "a!b?c+d")), [False] * 7) == [("a!bc+d", False)]


def test_a_models_own_response_template() -> None:
    """Its parser gets the prompt, which may have begun a field, and all special tokens."""
    tokenizer = Tokenizer()
    tokenizer.response_template = {  # type: ignore[attr-defined]
        "start_anchor": "assistant:",
        "fields": {
            "tool_calls": {
                "open": "@",
                "close": ";",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"content": "text"},
        },
    }
    reader = CallReader(engine_of(Processor("any", tokenizer)))
    text = reader.text_of(request_of("user: @ assistant:"), chat(tools=TOOLS))()
    ids = list(map(ord, 'Yes.@{"name": "time", "arguments": {"city": "7"}};'))
    text.add(ids, [False] * len(ids))
    assert (text.text, [call.name for call in text.calls]) == ("Yes.", ["time"])
    ids = list(map(ord, "@{broken; and more"))
    text.add(ids, [False] * len(ids))
    text.flush()
    assert (text.text, len(text.calls)) == ("Yes.;@{broken; and more", 1)


def chat(**fields: Any) -> ChatRequest:
    return parse(ChatRequest, {"messages": [{"role": "user", "content": "Hello"}], **fields})


def test_tools_reach_the_template_as_they_are_given() -> None:
    tool = {"function": {"parameters": {}, "strict": True, "name": "f"}, "type": "function"}
    body = chat(tools=[tool])
    (given,) = template_options(body)["tools"]
    assert json.dumps(given) == json.dumps(tool)  # also in its order
    assert chat(tools=[tool]).calls_tools
    for fields in ({}, {"tools": []}, {"tools": [tool], "tool_choice": "none"}):
        body = chat(**fields)
        assert not body.calls_tools
        assert "tools" not in template_options(body)
    named = {"type": "function", "function": {"name": "f"}}
    other = {"type": "function", "function": {"name": "g"}}
    for fields, demanded in (
        ({"tool_choice": "required"}, ["f", "g"]),
        ({"tool_choice": named}, ["f"]),
        ({"tool_choice": "auto"}, []),
    ):
        body = chat(tools=[tool, other], **fields)
        assert [each.function.name for each in demanded_tools(body)] == demanded
        assert template_options(body)["tools"] == [tool, other]
    for wrong in (
        {"tools": [other], "tool_choice": named},
        {"tool_choice": "required"},
        {"tools": [tool], "tool_choice": "required", "guided_regex": "a"},
    ):
        with pytest.raises(ApiError) as refused:
            template_options(chat(**wrong))
        assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [TOOLS[0]] * 129}, "tools"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"messages": [{"role": "assistant"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]},
            "messages.0.tool_calls.0.function",
        ),
    ],
)
def test_tools_and_calls_that_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert str(refused.value.param).startswith(param)


def test_messages_with_calls_and_results() -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    message = Message(role="assistant", tool_calls=[call])
    expected = {**call, "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}}
    assert tool_fields(message, "m") == {"tool_calls": [expected]}
    result = Message(role="tool", content="5", tool_call_id="1", name="f")
    assert tool_fields(result, "m") == {"tool_call_id": "1", "name": "f"}
    for arguments in ("[]", "{", "[" * 100_000):
        call["function"] = {"name": "f", "arguments": arguments}
        with pytest.raises(ApiError) as refused:
            tool_fields(Message(role="assistant", tool_calls=[call]), "messages.3")
        assert refused.value.param == "messages.3.tool_calls.0.function.arguments"


def reader_of(form: CallForm) -> CallReader:
    """A reader of a model that has the form's marks as special tokens."""
    words = copy.deepcopy(tokenizer())
    words.add_special_tokens({"additional_special_tokens": list(form.tokens)})
    reader = object.__new__(CallReader)
    reader._form, reader._tokenizer = form, words
    return reader


@pytest.mark.parametrize("form", [form for form in FORMS if form.written])
@pytest.mark.parametrize("seed", range(3))
def test_a_demanded_call_is_read_as_one(form: CallForm, seed: int) -> None:
    """Whatever the model likes of what is allowed; marks are the special tokens."""
    reader = reader_of(form)
    words = reader._tokenizer
    parameters = {
        "type": "object",
        "properties": {"days": {"enum": [1, 22]}, "city": {"type": "string", "maxLength": 4}},
        "required": ["days", "city"],
        "additionalProperties": False,
    }
    tools = [
        Tool.model_validate({"type": "function", "function": {"name": name, **more}})
        for name, more in (("time", {}), ("a.b_c-d", {"parameters": parameters}))
    ][1:]
    processor = FormProcessor(reader.demanded(tools), words).bound(0, [words.eos_token_id])
    rng = random.Random(seed)
    ids: list[int] = []
    while not ids or ids[-1] != words.eos_token_id:
        scores = processor(torch.tensor([ids], dtype=torch.long), torch.zeros(1, len(words)))
        ids.append(rng.choice((scores[0] == 0).nonzero().flatten().tolist()))
    marks = {words.convert_tokens_to_ids(mark) for mark in form.tokens if mark in form.written}
    assert marks <= set(ids)
    text, calls = read(words.decode(ids[:-1]), form, 1)
    ((name, arguments),) = calls
    assert text == ""
    assert name == "a.b_c-d"
    assert arguments["days"] in (1, 22)
    assert len(arguments["city"]) <= 4


def test_a_tool_without_parameters_takes_any() -> None:
    reader = reader_of(LLAMA)
    tool = Tool.model_validate({"type": "function", "function": {"name": "time"}})
    processor = FormProcessor(reader.demanded([tool]), reader._tokenizer).bound(0, [1])
    assert reader._tokenizer.decode(processor.forced(0, [])).endswith('"parameters": {')


@pytest.mark.parametrize("form", [form for form in FORMS if not form.written])
def test_calls_of_other_forms_are_not_demanded(form: CallForm) -> None:
    with pytest.raises(ApiError, match="not demanded") as refused:
        reader_of(form).demanded([])
    assert refused.value.param == "tool_choice"
