"""Log probabilities are handed out with the text of their tokens, in OpenAI's forms."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any

import pytest
from text_tokenizers import all_tokenizers

from draftlens.core.logprobs import TokenTexts
from draftlens.core.result import TokenLogprob
from draftlens.serve.logprobs import LEAST, ChatLogprobs, CompletionLogprobs
from draftlens.serve.text import RowText

TOOLS = all_tokenizers()["bpe"]
TEXTS = TokenTexts(TOOLS)


def decode(ids: list[int]) -> str:
    text: str = TOOLS.decode(ids, skip_special_tokens=True)
    return text


def taken(ids: Sequence[int], stops: Sequence[str], size: int) -> list[tuple[str, list[str]]]:
    """The text that a row hands out, and the tokens with it, when its ids come `size` at a time."""
    row, logprobs = RowText(decode, stops), ChatLogprobs(TEXTS, decode)
    given = []
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        before = row.text
        row.add(part, [False] * len(part))
        logprobs.add([TokenLogprob(token, -1.0) for token in part])
        is_last = start + size >= len(ids)
        if is_last:
            row.flush()
        content = logprobs.take(row, ended=is_last)["content"]
        given.append((row.text[len(before) :], [each["token"] for each in content]))
    return given


@pytest.mark.parametrize("size", [1, 2, 3, 50])
@pytest.mark.parametrize(
    ("text", "stops"),
    [("one two three", []), ("a b c d", ["c"]), ("\u00fcber \u20ac 5", []), ("x", ["x"])],
)
def test_tokens_come_with_their_text(text: str, stops: list[str], size: int) -> None:
    """Before a stop text no token is missing, and of it there is none."""
    ids = TOOLS.encode(text, add_special_tokens=False)
    given = taken(ids, stops, size)
    shown = "".join(part for part, _ in given)
    assert shown == (text.split(stops[0])[0] if stops else text)
    tokens = [token for _, part in given for token in part]
    expected = []
    for count, token in enumerate(ids):
        if len(decode(ids[:count]).rstrip("\ufffd")) < len(shown):
            expected.append(token)
    assert len(tokens) == len(expected)
    said = ""
    for part, labels in given:
        said += part
        assert not labels or said


def test_the_end_token_comes_last() -> None:
    ids = [*TOOLS.encode("one two", add_special_tokens=False), TOOLS.eos_token_id]
    tokens = [token for _, part in taken(ids, [], 1) for token in part]
    assert tokens[-1] == TOOLS.eos_token
    stopped = [token for _, part in taken(ids, [" two"], 1) for token in part]
    assert TOOLS.eos_token not in stopped
    assert stopped == tokens[:1]


def test_the_form_of_messages() -> None:
    first, second = TOOLS.encode("\u20ac", add_special_tokens=False)[:2]
    row = RowText(decode)
    row.add([first], [False])
    logprobs = ChatLogprobs(TEXTS, decode)
    end = TokenLogprob(TOOLS.eos_token_id, -inf)
    logprobs.add([TokenLogprob(first, -0.25, top=(TokenLogprob(second, nan), end))])
    assert logprobs.take(row, ended=False) == {"content": [], "refusal": None}
    (entry,) = logprobs.take(row, ended=True)["content"]
    assert entry["logprob"] == -0.25
    assert bytes(entry["bytes"]) == "\u20ac".encode()[: len(entry["bytes"])]
    assert entry["token"] == "".join(f"\\x{value:02x}" for value in entry["bytes"])
    assert [other["logprob"] for other in entry["top_logprobs"]] == [LEAST, LEAST]
    assert entry["top_logprobs"][1]["token"] == TOOLS.eos_token
    assert entry["top_logprobs"][1]["bytes"] is None


def test_the_form_of_completions() -> None:
    ids = TOOLS.encode("one two", add_special_tokens=False)
    row = RowText(decode)
    row.add(ids, [False] * len(ids))
    logprobs = CompletionLogprobs(TEXTS, decode)
    best = (TokenLogprob(ids[0], -0.1), TokenLogprob(TOOLS.eos_token_id, -3.0))
    logprobs.add([TokenLogprob(token, -2.0, top=best) for token in ids])
    form: dict[str, Any] = logprobs.take(row, ended=True)
    labels = [TEXTS.text(token) for token in ids]
    assert form["tokens"] == labels
    assert form["token_logprobs"] == [-2.0] * len(ids)
    assert form["text_offset"] == [len("".join(labels[:place])) for place in range(len(ids))]
    assert form["top_logprobs"][0] == {labels[0]: -0.1, TOOLS.eos_token: -3.0}
    assert form["top_logprobs"][-1] == {**form["top_logprobs"][0], labels[-1]: -2.0}
