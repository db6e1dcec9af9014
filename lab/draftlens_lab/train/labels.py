"""The labels of a batch: answers and their end tokens, for models of any family.

The chat template determines the position of an answer in the text of a chat: the answer begins
after the text of the preceding messages with the generation prompt. Both ends of each answer are
marked there with a character that does not occur in text. The processor then expands placeholders
and passes the text to its tokenizer. A wrapper around the tokenizer removes the marks, and the
tokenizer's offsets give the tokens that lay between them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.media.conversation import Conversation, process

IGNORE = -100
"""The label of tokens that are not trained on, as in PyTorch's cross entropy."""

BEGIN = "\ufdd0"
"""The mark before an answer: a noncharacter, which Unicode excludes from interchanged text."""

END = "\ufdd1"
"""The mark after an answer, also a noncharacter."""

Message = Mapping[str, Any]
Span = tuple[int, int]


@dataclass(frozen=True)
class UnmarkedText:
    """A text without its marks.

    Args:
        text: the text without marks.
    """

    text: str
    spans: list[Span]


class AnswerProcessor:
    """A model's processor that also makes labels."""

    def __init__(self, processor: Any, name: str) -> None:
        tokenizer = getattr(processor, "tokenizer", None)
        if not getattr(processor, "chat_template", None):
            raise UnsupportedModelError(f"the processor of {name} has no chat template")
        is_fast = getattr(tokenizer, "is_fast", False)
        if tokenizer is None or not is_fast or tokenizer.eos_token is None:
            raise UnsupportedModelError(
                f"the processor of {name} has no fast tokenizer with an end of sequence"
            )
        added = tokenizer.added_tokens_decoder.items()
        added_special = {index for index, token in added if token.special}
        self.processor = processor
        self.name = name
        self.special_ids = frozenset(added_special.union(tokenizer.all_special_ids))
        self.end_id: int = tokenizer.eos_token_id
        self.end_token: str = tokenizer.eos_token

    def __call__(self, conversations: Sequence[Conversation]) -> dict[str, Any]:
        """Make a batch, padded on the right.

        Returns:
            The processor's tensors, and ``labels`` int64 ``[B, L]``: the token to learn at answers
            and their ends, `IGNORE` elsewhere.
        """
        # The copy is shallow: only these two attributes differ from the original's.
        twin = copy.copy(self.processor)
        tokenizer = _MarkReader(self.processor.tokenizer)
        twin.tokenizer = tokenizer
        twin.apply_chat_template = lambda messages, **_: self.mark_answers(messages)
        inputs = process(twin, conversations)
        input_ids = inputs["input_ids"]
        if tokenizer.offsets is None or not torch.equal(tokenizer.input_ids, input_ids):
            raise UnsupportedModelError(
                f"{type(twin).__name__} does not take its token ids from its tokenizer"
            )
        rows = zip(input_ids, tokenizer.offsets, tokenizer.texts, strict=True)
        labels = torch.stack([self._labels(ids, offsets, text) for ids, offsets, text in rows])
        return {**inputs, "labels": labels}

    def mark_answers(self, messages: Sequence[Message]) -> str:
        """The chat template's text, with marks around each answer.

        An end of sequence is appended if the text ends with an answer.
        """
        whole = self._render(messages)
        pieces: list[str] = []
        position = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin, end = self._answer_span(whole, messages[: index + 1])
            pieces += [whole[position:begin], BEGIN, whole[begin:end], END]
            position = end
        rest = whole[position:]
        pieces.append(rest if rest.strip() else self.end_token)
        return "".join(pieces)

    def _answer_span(self, whole: str, messages: Sequence[Message]) -> Span:
        prompt = self._render(messages[:-1], add_generation_prompt=True)
        chat = self._render(messages)
        if not (chat.startswith(prompt) and whole.startswith(chat)):
            raise InputError(
                f"the chat template of {self.name} does not write a longer chat as a continuation "
                f"of a shorter one, so its answers cannot be located"
            )
        answer = "".join(item["text"] for item in messages[-1]["content"]).strip()
        position = chat.find(answer, len(prompt))
        if position < 0:
            raise InputError(f"the chat template of {self.name} changes the answer {answer[:40]!r}")
        return len(prompt), position + len(answer)

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        try:
            text: str = self.processor.apply_chat_template(
                list(messages), add_generation_prompt=add_generation_prompt, tokenize=False
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InputError(
                f"the chat template of {self.name} refuses the conversation: {error}"
            ) from error
        return text

    def _labels(self, ids: Tensor, offsets: Tensor, unmarked: UnmarkedText) -> Tensor:
        """Labels int64 ``[L]`` of one row of ids ``[L]`` with offsets ``[L, 2]`` into its text.

        After an answer, the template's end token is learnt, with any spaces before it. A template
        without an end token, such as LLaVA-1.5's, continues with the next question. There the token
        after the answer gets the end of sequence as its label, because a target stops at this
        position, and the prompt remains the same as in use.
        """
        labels = torch.full_like(ids, IGNORE)
        for span in unmarked.spans:
            tokens = _tokens_of(offsets, span)
            if not tokens or tokens[-1] + 1 == len(ids):
                raise InputError(
                    f"the processor of {self.name} cuts off an answer: does it truncate?"
                )
            after = tokens[-1] + 1
            labels[tokens[0] : after] = ids[tokens[0] : after]
            end_token = self._skip_space(ids, offsets, unmarked.text, after)
            if int(ids[end_token]) in self.special_ids:
                labels[after : end_token + 1] = ids[after : end_token + 1]
            else:
                labels[after] = self.end_id
        return labels

    def _skip_space(self, ids: Tensor, offsets: Tensor, text: str, index: int) -> int:
        """The index of the next token, from `index` on, that is special or not white space."""
        while int(ids[index]) not in self.special_ids:
            start, stop = offsets[index].tolist()
            if text[start:stop].strip():
                break
            index += 1
        return index


class _MarkReader:
    """A tokenizer for one call of a processor: it removes the marks from the text and stores them.

    Other attributes are those of the wrapped tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: list[UnmarkedText] = []
        self.offsets: Tensor | None = None
        self.input_ids = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(text, str) or not any(BEGIN in row for row in text):
            return self._tokenizer(text, *args, **options)  # not the text of the chats
        self.texts = [spans_of(row) for row in text]
        # With padding on the right, positions begin at 0 in every row for all models.
        options |= {"return_offsets_mapping": True, "padding_side": "right"}
        encoded = self._tokenizer([row.text for row in self.texts], *args, **options)
        self.offsets = torch.as_tensor(encoded.pop("offset_mapping"))
        self.input_ids = torch.as_tensor(encoded["input_ids"])
        return encoded


def _tokens_of(offsets: Tensor, span: Span) -> list[int]:
    """The indices of the tokens with offsets ``[L, 2]`` that overlap with a span of the text."""
    begin, end = span
    starts, stops = offsets.unbind(-1)
    indices: list[int] = ((starts < end) & (stops > begin)).nonzero().flatten().tolist()
    return indices


def spans_of(text: str) -> UnmarkedText:
    """Remove the marks from a text and return the spans that they enclosed."""
    unmarked = ""
    spans = []
    for piece in text.split(BEGIN):
        inside, mark, outside = piece.partition(END)
        if mark:
            spans.append((len(unmarked), len(unmarked) + len(inside)))
        unmarked += inside + outside
    return UnmarkedText(unmarked, spans)
