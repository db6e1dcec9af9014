"""Which tokens of a batch are trained on: the answers and their end tokens, whatever the model's
family.

The chat template tells where answers stand in a chat's text: what it makes of the chat up to a
question, with the generation prompt, is where the answer begins. Both ends of each answer are
marked there by a character that no text holds. The processor then turns placeholders into as many
tokens as it wants and hands the text to its tokenizer; a stand-in takes the marks out again, and
the tokenizer's own offsets say which tokens lie between them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jinja2 import TemplateError
from torch import Tensor

from draftlens.core.errors import InputError, UnsupportedModelError
from draftlens.media.conversation import Conversation, process

IGNORE = -100
"""The label of tokens that are not trained on, as in PyTorch's cross entropy."""

BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks around an answer: noncharacters, which Unicode keeps out of text that is passed between
programs."""

Message = Mapping[str, Any]
Span = tuple[int, int]


class AnswerProcessor:
    """A model's own processor that also says what is trained on.

    Args:
        processor: as `AutoProcessor` loads it.
        name: of the model, for messages.

    Raises:
        UnsupportedModelError: it has no chat template, or no fast tokenizer (the others know no
            offsets) with an end of sequence.
    """

    def __init__(self, processor: Any, name: str) -> None:
        self.processor, self.name = processor, name
        tokenizer = getattr(processor, "tokenizer", None)
        if not getattr(processor, "chat_template", None):
            raise UnsupportedModelError(f"the processor of {name} has no chat template")
        if (
            not getattr(tokenizer, "is_fast", False)
            or tokenizer is None
            or tokenizer.eos_token is None
        ):
            raise UnsupportedModelError(
                f"the processor of {name} has no fast tokenizer with an end of sequence"
            )
        added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special = frozenset({*tokenizer.all_special_ids, *added})
        self.end_id: int = tokenizer.eos_token_id
        self.end_token: str = tokenizer.eos_token

    def __call__(self, conversations: Sequence[Conversation]) -> dict[str, Any]:
        """A batch, padded on the right.

        Returns:
            What the processor makes of the conversations, and `labels` int64 ``[B, L]``: at answers
            and their end the token to learn, elsewhere `IGNORE`.

        Raises:
            InputError: the chat template or the processor refuses a conversation, or the template
                is none that answers can be found in.
            UnsupportedModelError: the processor does not hand its text to its tokenizer.
        """
        twin = copy.copy(self.processor)  # shallow: only these two attributes are its own
        twin.tokenizer = tokenizer = _MarkReader(self.processor.tokenizer)
        twin.apply_chat_template = lambda messages, **_: self.marked(messages)
        inputs = process(twin, conversations)
        if tokenizer.offsets is None or not torch.equal(tokenizer.input_ids, inputs["input_ids"]):
            raise UnsupportedModelError(
                f"{type(twin).__name__} does not take its token ids from its tokenizer"
            )
        rows = zip(
            inputs["input_ids"], tokenizer.offsets, tokenizer.texts, tokenizer.spans, strict=True
        )
        return {**inputs, "labels": torch.stack([self._labels(*row) for row in rows])}

    def marked(self, messages: Sequence[Message]) -> str:
        """The chat template's text with marks around each answer; an end of sequence is added if it
        has none.

        Raises:
            InputError: the template refuses the messages, changes an answer, or writes a chat so
                that its beginning is no prefix of the whole.
        """
        whole = self._render(messages, prompt=False)
        pieces, done = [], 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._render(messages[:index], prompt=True)
            upto = self._render(messages[: index + 1], prompt=False)
            if not (upto.startswith(before) and whole.startswith(upto)):
                raise InputError(
                    f"the chat template of {self.name} does not write a longer chat as a "
                    f"continuation of a shorter "
                    "one, so the answers in it cannot be told from the rest"
                )
            answer = "".join(item["text"] for item in message["content"]).strip()
            at = upto.find(answer, len(before))
            if at < 0:
                raise InputError(
                    f"the chat template of {self.name} changes the answer {answer[:40]!r}"
                )
            pieces += [whole[done : len(before)], BEGIN, whole[len(before) : at + len(answer)], END]
            done = at + len(answer)
        rest = whole[done:]
        return "".join(pieces) + (rest if rest.strip() else self.end_token)

    def _render(self, messages: Sequence[Message], prompt: bool) -> str:
        try:
            text: str = self.processor.apply_chat_template(
                list(messages), add_generation_prompt=prompt, tokenize=False
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise InputError(
                f"the chat template of {self.name} refuses the conversation: {error}"
            ) from error
        return text

    def _labels(self, ids: Tensor, offsets: Tensor, text: str, spans: Sequence[Span]) -> Tensor:
        """Labels int64 ``[L]`` of one row of ids ``[L]``, with offsets ``[L, 2]`` into its unmarked
        text.

        Behind an answer, the template's end token is learnt, and spaces in front of it. Where there
        is none (LLaVA-1.5 writes the next question at once), the label of whatever comes next is
        the end of sequence: there a target would end, and the prompt stays as it will be in use.
        """
        labels = torch.full_like(ids, IGNORE)
        starts, stops = offsets.unbind(-1)
        for begin, end in spans:
            inside = ((starts < end) & (stops > begin)).nonzero().flatten().tolist()
            behind = inside[-1] + 1 if inside else len(ids)
            if behind == len(ids):
                raise InputError(
                    f"the processor of {self.name} cuts off an answer: does it truncate?"
                )
            labels[inside[0] : behind] = ids[inside[0] : behind]
            space = behind
            while (
                int(ids[behind]) not in self.special
                and not text[starts[behind] : stops[behind]].strip()
            ):
                behind += 1
            if int(ids[behind]) in self.special:
                labels[space : behind + 1] = ids[space : behind + 1]
            else:
                labels[space] = self.end_id
        return labels


class _MarkReader:
    """Stands in for a tokenizer during one call of a processor: takes marks out of the text and
    remembers them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: list[str] = []
        self.spans: list[list[Span]] = []
        self.offsets: Tensor | None = None
        self.input_ids = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: Any = None, *args: Any, **options: Any) -> Any:
        if isinstance(text, str) or not any(BEGIN in one for one in text):
            return self._tokenizer(text, *args, **options)  # another text than the chat's
        self.texts, self.spans = map(list, zip(*map(unmark, text), strict=True))
        # On the right: positions then begin at 0 in every row, however the model counts them.
        options |= {"return_offsets_mapping": True, "padding_side": "right"}
        encoded = self._tokenizer(self.texts, *args, **options)
        self.offsets = torch.as_tensor(encoded.pop("offset_mapping"))
        self.input_ids = torch.as_tensor(encoded["input_ids"])
        return encoded


def unmark(text: str) -> tuple[str, list[Span]]:
    """A marked text as (the text without marks, where each marked part begins and ends in it)."""
    clean, spans = "", []
    for piece in text.split(BEGIN):
        inside, mark, behind = piece.partition(END)
        if mark:
            spans.append((len(clean), len(clean) + len(inside)))
        clean += inside + behind
    return clean, spans
