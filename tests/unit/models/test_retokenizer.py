"""Tokens of one tokenizer as those of another."""

from __future__ import annotations

import pytest
from language_models import embedded_tokenizer
from text_tokenizers import sentencepiece

from draftlens.models.retokenizer import Retokenizer

TEXTS = ("hello world", "the football is", "Ein Fuß", "€ 3.50 or more", "a - b", " the foot")


@pytest.fixture(scope="module")
def both() -> Retokenizer:
    return Retokenizer(embedded_tokenizer(), sentencepiece())


@pytest.mark.parametrize("text", TEXTS)
def test_what_the_draft_writes_is_the_same_text(both: Retokenizer, text: str) -> None:
    target, draft = embedded_tokenizer(), sentencepiece()
    for place in range(1, len(text)):
        tokens = target.encode(text[:place], add_special_tokens=False)
        known = both.draft_ids(tokens)
        written = draft.encode(text, add_special_tokens=False)
        if written[: len(known)] != known:
            continue
        found = both.continuation(tokens, known, written[len(known) :])
        assert target.decode([*tokens, *found]).rstrip("\N{REPLACEMENT CHARACTER}") in (
            text,
            text[:place],
        )


def test_new_tokens_follow_those_of_the_answer_as_in_the_whole_text() -> None:
    """An answer in other pieces than the tokenizer's own is followed by the new text alone."""
    for target, text in (
        (sentencepiece(), "hello football"),
        (embedded_tokenizer(), "the red ball"),
    ):
        same = Retokenizer(target, target)
        whole = target.encode(text, add_special_tokens=False)
        assert len(whole) > 2
        for place in range(1, len(whole)):
            assert same.continuation(whole[:place], whole[:place], whole[place:]) == whole[place:]
    letters = [token for letter in "the" for token in target.encode(letter)]
    assert len(letters) > len(target.encode("the"))
    known = same.draft_ids(letters)
    assert known == target.encode("the")
    assert same.continuation(letters, known, target.encode(" red")) == target.encode(" red")


def test_incomplete_characters_are_no_text(both: Retokenizer) -> None:
    target = embedded_tokenizer()
    tokens = target.encode("€", add_special_tokens=False)
    assert len(tokens) > 1
    assert both.draft_ids(tokens[:1]) == []
    assert both.continuation(tokens[:1], [], sentencepiece().encode("hello")) == []
    assert both.draft_ids([embedded_tokenizer().eos_token_id]) == []
