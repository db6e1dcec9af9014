"""Calls of tools in answers: how families of models write them, and what clients get of them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from draftlens.core.errors import InputError
from draftlens.core.forms import LAYOUT, Form
from draftlens.engine import Engine
from draftlens.media.conversation import Conversation, apply_template
from draftlens.request import Request
from draftlens.serve.errors import ApiError
from draftlens.serve.messages import Tool
from draftlens.serve.protocol import ChatRequest
from draftlens.serve.text import RowText, decoded_with_special_tokens

CALL_ID_LENGTH = 9
"""Characters of a call's id, as many as Mistral's chat templates demand."""


@dataclass(frozen=True)
class Call:
    """A call of a tool; `arguments` is JSON."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:CALL_ID_LENGTH])

    @property
    def given(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


def with_calls(message: dict[str, Any], calls: Sequence[Call]) -> dict[str, Any]:
    """An assistant's message with calls, whose content may be empty."""
    given = [call.given for call in calls]
    return {**message, "content": message["content"] or None, "tool_calls": given}


@dataclass(frozen=True)
class CallForm:
    """How a family writes calls.

    Args:
        shown: texts in the chat templates of the family.
        call: the field `tool_calls` of a response template of transformers.
        tokens: special tokens with which it marks calls; other ones are no part of an answer's
            text.
        is_open: whether the end of an answer may be that of a call.
        written: a call with `{name}` and `{arguments}`, where these are JSON; empty for other
            notations, in which no call can be demanded.
    """

    shown: tuple[str, ...]
    call: Mapping[str, Any]
    tokens: tuple[str, ...] = ()
    is_open: bool = False
    written: str = ""

    @property
    def template(self) -> dict[str, Any]:
        """The response template. Its anchor is not looked for, since no prompt is read with it."""
        fields = {
            "tool_calls": {"repeats": True, **self.call},
            "content": {"content": "text"},
        }
        return {"start_anchor": "\n", "fields": fields}


_NAMED = {"function": {"name": "{name}", "arguments": "{content}"}}
_JSON = {"content": "json", "content_args": {"allow_non_json": True}}

FORMS: tuple[CallForm, ...] = (
    # <tool_call><function=f><parameter=a>1</parameter></function></tool_call>: Qwen 3.5
    CallForm(
        ("<tool_call>", "<function="),
        {
            "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"
            },
            "transform": _NAMED,
        },
        ("<tool_call>", "</tool_call>"),
    ),
    # <tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>: GLM 4.5 and 4.6V
    CallForm(
        ("<tool_call>", "<arg_key>"),
        {
            "open_pattern": r"\s*<tool_call>\s*(?P<name>[^\s<]+)\s*",
            "close": "</tool_call>",
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<arg_key>(?P<key>.*?)</arg_key>"
                r"\s*<arg_value>(?P<value>.*?)</arg_value>"
            },
            "transform": _NAMED,
        },
        (
            "<tool_call>",
            "</tool_call>",
            "<arg_key>",
            "</arg_key>",
            "<arg_value>",
            "</arg_value>",
        ),
    ),
    # <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>: Hermes, Qwen 2 to 3
    CallForm(
        ("<tool_call>",),
        {"open_pattern": r"\s*<tool_call>", "close": "</tool_call>", **_JSON},
        ("<tool_call>", "</tool_call>"),
        written='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>',
    ),
    # <|tool_call>call:f{a:1}<tool_call|>: Gemma 4
    CallForm(
        ("<|tool_call>",),
        {
            "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {
                "allow_non_json": True,
                "unquoted_keys": True,
                "string_delims": [['<|"|>', '<|"|>']],
            },
            "transform": _NAMED,
        },
        ("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    # <|tool_call_start|>[f(a=1)]<|tool_call_end|>: LFM 2
    CallForm(
        ("<|tool_call_start|>",),
        {
            "open": "<|tool_call_start|>",
            "close": "<|tool_call_end|>",
            "content": "python-call-list",
        },
        ("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    # [TOOL_CALLS]f[ARGS]{"a": 1}: Mistral since November 2024
    CallForm(
        ("[TOOL_CALLS]", "[ARGS]"),
        {
            "open_pattern": r"\[TOOL_CALLS\](?P<name>[^\[\]{}]+)(?:\[CALL_ID\][^\[\]{}]+)?\[ARGS\]",
            "close_pattern": r"(?=\[TOOL_CALLS\])",
            "transform": _NAMED,
            **_JSON,
        },
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        is_open=True,
        written="[TOOL_CALLS]{name}[ARGS]{arguments}",
    ),
    # [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]: Mistral before
    CallForm(
        ("[TOOL_CALLS]",),
        {"open": "[TOOL_CALLS]", **_JSON},
        ("[TOOL_CALLS]",),
        is_open=True,
        written='[TOOL_CALLS][{"name": "{name}", "arguments": {arguments}}]',
    ),
    # {"name": "f", "parameters": {"a": 1}}: Llama 3
    CallForm(
        ('{"name": function name, "parameters"',),
        {"open_pattern": r'(?:<\|python_tag\|>)?(?=\{"name": )', **_JSON},
        ("<|python_tag|>",),
        is_open=True,
        written='{"name": "{name}", "parameters": {arguments}}',
    ),
)
"""The first form whose texts are all in a chat template is that of its model."""

LENIENT = {**LAYOUT, "lenient": True}
"""How the arguments of a demanded call are written."""

_SAMPLE: Mapping[str, Any] = MappingProxyType(
    {
        "type": "function",
        "function": {
            "name": "sample_of_a_tool",
            "description": "None.",
            "parameters": {"type": "object", "properties": {}},
        },
    }
)


class CallReader:
    """Reads calls in the answers of a model.

    Raises:
        ApiError: its chat template has no place for tools, its calls have an unknown form, or
            transformers is too old to read them.
    """

    def __init__(self, engine: Engine) -> None:
        processor = engine.target.processor
        self._tokenizer = processor.tokenizer
        if not _shows_tools(processor):
            raise _refusal("the model's chat template has no place for them")
        own = getattr(self._tokenizer, "response_template", None)
        form = None if own is not None else _form_of(_text_of(processor.chat_template))
        self._form = form
        self._is_open = form is None or form.is_open
        try:
            from transformers.utils.chat_parsing import ResponseParser
            from transformers.utils.chat_parsing.response_templates import load_response_template
        except ImportError:
            raise _refusal("this version of transformers does not read calls") from None
        template = load_response_template(own if form is None else form.template)
        self._parser = partial(ResponseParser, template)
        self._has_own = form is None
        self._decode = partial(decoded_with_special_tokens, self._tokenizer, self._skipped(form))

    def _skipped(self, form: CallForm | None) -> frozenset[int]:
        """Special tokens that are no part of an answer's text. A model's own template reads all."""
        if form is None:
            return frozenset()
        added = self._tokenizer.added_tokens_decoder.items()
        return frozenset(
            index for index, token in added if token.special and token.content not in form.tokens
        )

    def demanded(self, tools: Sequence[Tool]) -> Form:
        """The form of an answer that is one call of some tools. Raises `ApiError`."""
        if self._form is None or not self._form.written:
            cause = (
                "tool_choice is none or auto: the model's calls have a form that is not demanded"
            )
            raise ApiError(400, cause, "tool_choice", "unsupported_parameter")
        calls, arguments = [], []
        for number, tool in enumerate(tools):
            written = self._form.written.replace("{name}", json.dumps(tool.function.name)[1:-1])
            head, tail = map(self._terms, written.split("{arguments}"))
            schema = {"type": "object", **(tool.function.parameters or {}), "x-guidance": LENIENT}
            calls.append(f"{head} arguments_{number} {tail}")
            arguments.append(f"arguments_{number}: %json {json.dumps(schema)}")
        return Form.lark("\n".join(["start: " + " | ".join(calls), *arguments]))

    def _terms(self, text: str) -> str:
        """A text in a grammar, with its special tokens by their ids."""
        assert self._form is not None
        added = self._tokenizer.added_tokens_decoder.items()
        ids = {token.content: index for index, token in added if token.content in self._form.tokens}
        parts = re.split(f"({'|'.join(map(re.escape, ids))})", text) if ids else [text]
        return " ".join(
            f"<[{ids[part]}]>" if part in ids else json.dumps(part, ensure_ascii=False)
            for part in parts
            if part
        )

    def text_of(self, request: Request, body: ChatRequest) -> Callable[[], CallText]:
        """What makes the text of a row, which begins after the prompt of the request."""
        prefix = self._tokenizer.decode(request.inputs["input_ids"][0]) if self._has_own else ""
        tools = [tool.given for tool in body.tools or ()]
        parallel = body.parallel_tool_calls is not False

        def make() -> CallText:
            parser = self._parser(prefix, tools=tools)
            return CallText(RowText(self._decode, body.stop), parser, self._is_open, parallel)

        return make


class CallText:
    """The text of one row without its calls; see `RowText`. What looks like a call and cannot be
    read stays text.

    Args:
        row: the whole text.
        parser: of transformers, by a response template.
        is_open: whether the end of the answer may be that of a call.
        parallel: whether there may be several calls.

    Attributes:
        calls: so far.
    """

    def __init__(self, row: RowText, parser: Any, is_open: bool, parallel: bool) -> None:
        self.text = ""
        self.calls: list[Call] = []
        self.row = row
        self._parser = parser
        self._is_open = is_open
        self._parallel = parallel
        self._num_taken = 0
        self._pending = ""  # what the parser has got since the last text or call
        self._body = ""  # of the call that the parser reads
        self._has_failed = False  # the last call could not be read
        self._is_closed = False

    @property
    def stopped(self) -> bool:
        return self.row.stopped

    def add(self, ids: Sequence[int], from_draft: Sequence[bool]) -> list[tuple[str, bool]]:
        return self._read(self.row.add(ids, from_draft))

    def flush(self) -> list[tuple[str, bool]]:
        pieces = self._read(self.row.flush())
        self._is_closed = True
        rest = "".join(self._shown(self._parser.finalize)) if self._parser else ""
        rest += self._pending if self._has_failed else ""
        return [*pieces, *self._written(rest, False)]

    def take_calls(self) -> list[Call]:
        """The calls since the last time."""
        taken = self.calls[self._num_taken :]
        self._num_taken = len(self.calls)
        return taken

    def _read(self, pieces: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
        read: list[tuple[str, bool]] = []
        for text, drafted in pieces:
            self._pending += text
            shown = text
            if self._parser is not None:
                shown = "".join(self._shown(partial(self._parser.feed, text)))
            read += self._written(shown, drafted)
        return read

    def _written(self, text: str, drafted: bool) -> list[tuple[str, bool]]:
        self.text += text
        return [(text, drafted)] if text else []

    def _shown(self, step: Callable[[], Any]) -> Iterator[str]:
        """The text in what a step of the parser finds."""
        try:
            found = step()
        except (KeyError, TypeError, ValueError):  # a template of the model's own
            self._parser = None
            yield self._cut(len(self._pending))
            return
        events = found[1] if isinstance(found, tuple) else found
        for event in events:
            yield self._text_of(event)

    def _text_of(self, event: Mapping[str, Any]) -> str:
        kind, name = event["type"], event["field"]
        if kind == "region_open":
            self._body = ""
        elif kind == "region_chunk" and name == "tool_calls":
            self._body += event["text"]
        elif kind == "region_chunk":
            begin = self._pending.index(event["text"])
            before = self._cut(begin) if self._has_failed else ""
            self._pending = self._pending[self._pending.index(event["text"]) :]
            self._has_failed = False
            return before + self._cut(len(event["text"]))
        elif name == "tool_calls":
            return self._close(event["value"])
        return ""

    def _close(self, value: Any) -> str:
        """Note the calls that the parser has read; the text of what is no call."""
        text = self._cut(self._pending.index(self._body) + len(self._body))
        calls = [] if self._is_closed and not self._is_open else _calls_of(value)
        self._has_failed = not calls
        if not calls:
            return text
        self.calls += calls if self._parallel else calls[: 1 - len(self.calls)]
        return ""

    def _cut(self, count: int) -> str:
        text, self._pending = self._pending[:count], self._pending[count:]
        return text


def _calls_of(value: Any) -> list[Call]:
    """What a response template reads, as calls; none if it is no call."""
    calls = []
    for each in value if isinstance(value, list) else [value]:
        function = each.get("function", each) if isinstance(each, dict) else {}
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return []
        arguments = function.get("arguments", function.get("parameters", {}))
        if not isinstance(arguments, dict):
            return []
        calls.append(Call(function["name"], json.dumps(arguments, ensure_ascii=False)))
    return calls


def _form_of(chat_template: str) -> CallForm:
    for form in FORMS:
        if all(text in chat_template for text in form.shown):
            return form
    raise _refusal("the form of the model's calls is not known")


def _text_of(chat_template: Any) -> str:
    """All chat templates of a processor, which may have several by name."""
    if isinstance(chat_template, Mapping):
        return "".join(chat_template.values())
    return str(chat_template)


def _shows_tools(processor: Any) -> bool:
    """Whether the chat template renders tools."""
    message = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    try:
        text = apply_template(
            processor, Conversation([message], template={"tools": [dict(_SAMPLE)]})
        )
    except InputError:
        return False
    return str(_SAMPLE["function"]["name"]) in text


def _refusal(cause: str) -> ApiError:
    return ApiError(400, f"tools are not supported: {cause}", "tools", "unsupported_parameter")
