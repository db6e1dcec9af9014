"""Texts as tokens and tokens as texts, with tokenizers of several kinds."""

from __future__ import annotations

from copy import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import all_tokenizers

from draftlens.core.text import TextDecoder
from draftlens.methods.hsd.reference_text import variants_of
from draftlens.methods.lookup.text import (
    MOST_HELD_BACK,
    WALL,
    AnswerTail,
    NormalizedText,
    SlowDecoder,
    StreamDecoder,
    TextCodec,
    joined_text,
    normalize,
    normalize_character,
)

repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=50)
texts = st.text(alphabet="hello world fot\n-.éﬁ日本か\u3099\u00ad", max_size=30)
every_tokenizer = pytest.mark.parametrize("name", list(all_tokenizers()))


@every_tokenizer
@repeatable
@given(text=texts)
def test_pieces_make_the_text_again(name: str, text: str) -> None:
    """And they equal those of the slow decoder."""
    tokenizer = all_tokenizers()[name]
    codec = TextCodec(tokenizer)
    ids = codec.encode(text)
    assert joined_text(codec.pieces([*codec.encode("x"), *ids])) == "x" + text
    slow = TextDecoder(tokenizer.decode)
    assert [slow.add([token]) for token in ids] == codec.pieces(ids)


@every_tokenizer
@repeatable
@given(before=texts, text=texts)
def test_a_continuation_is_what_the_text_gains(name: str, before: str, text: str) -> None:
    codec = TextCodec(all_tokenizers()[name])
    ids = codec.encode(before)
    more = codec.continuation(before, text)
    assert joined_text(codec.pieces([*codec.encode("."), *ids, *more])) == f".{before}{text}"


def test_a_text_behind_another_one_has_no_space_of_its_own() -> None:
    codec = TextCodec(all_tokenizers()["sentencepiece"])
    tokens = all_tokenizers()["sentencepiece"].convert_ids_to_tokens
    assert tokens(codec.encode("hello world")) == ["hello", "▁world"]
    assert tokens(codec.continuation("fo", "ot the")) == ["ot", "▁the"]
    assert tokens(codec.continuation("the ", "foot")) == ["foot"]


def test_bytes_that_make_no_character_are_given_up() -> None:
    tokenizer = all_tokenizers()["bpe"]
    codec = TextCodec(tokenizer)
    first_byte = codec.encode("日")[0]
    decoder = codec.decoder()
    pieces = [decoder(first_byte) for _ in range(3 * MOST_HELD_BACK)]
    assert not joined_text(pieces).strip("\N{REPLACEMENT CHARACTER}")
    later = [decoder(token) for token in codec.encode("hello hello hello hello")]
    assert "hello hello" in joined_text(later)


@every_tokenizer
@repeatable
@given(before=texts, text=texts)
def test_a_copied_decoder_goes_on_alone(name: str, before: str, text: str) -> None:
    tokenizer = all_tokenizers()[name]
    codec = TextCodec(tokenizer)
    first, then = codec.encode(before), codec.encode(text)
    for decoder in (codec.decoder(), SlowDecoder(TextDecoder(tokenizer.decode))):
        whole = [decoder(token) for token in first]
        other = copy(decoder)
        pieces = [other(token) for token in then]
        assert pieces == [decoder(token) for token in then]
        assert len(whole) == len(first)


@every_tokenizer
def test_a_tail_with_further_tokens_is_another_one(name: str) -> None:
    codec = TextCodec(all_tokenizers()[name])
    first, further = codec.encode("hello wor"), codec.encode("ld foot")
    tail, whole = AnswerTail(4, codec.decoder()), AnswerTail(4, codec.decoder())
    tail.extend(first)
    whole.extend([*first, *further])
    before = (tail.tokens, tail.text(64), tail.pending)
    other = tail.followed_by(further)
    assert (other.tokens, other.text(64)) == (whole.tokens, whole.text(64))
    assert (other.word, other.normalized(9)) == (whole.word, whole.normalized(9))
    assert (tail.tokens, tail.text(64), tail.pending) == before


def test_a_stream_that_fails_begins_again() -> None:
    """The library refuses tokens whose text changes with those after them."""

    class Torn:
        def step(self, *_: object) -> str:
            raise Exception("Invalid prefix encountered")

    codec = TextCodec(all_tokenizers()["bpe"])
    decoder = StreamDecoder(all_tokenizers()["bpe"].backend_tokenizer)
    ids = codec.encode("hello world")
    assert decoder(ids[0])
    decoder._stream = Torn()
    assert decoder(ids[0]) == ""
    assert joined_text([decoder(token) for token in ids]) == "hello world"


def test_letters_and_digits() -> None:
    assert normalize("| **ﬁnal** re-sult: 2² |---|\n") == "finalresult22"
    assert normalize("日本語、カタカナ・ー 々") == "日本語カタカナー々"
    assert normalize("e\u0301 é É") == "eeE"
    assert normalize("soft\u00adhyphen, break\u0002ing") == "softhyphenbreaking"
    assert normalize(f"a{WALL}b") == f"a{WALL}b"


@repeatable
@given(texts)
def test_every_place_of_a_normalized_text_has_its_place_in_the_text(text: str) -> None:
    normalized = NormalizedText(text)
    assert normalized.text == normalize(text)
    for end in range(1, len(normalized.text) + 1):
        place = normalized.end_in_text(end)
        # The twin: the shortest beginning of the text that has so many letters.
        shortest = next(n for n in range(len(text) + 1) if len(normalize(text[:n])) >= end)
        is_whole = len(normalize(text[:shortest])) == end
        assert place == (shortest if is_whole else None)
    for place in range(len(text) + 1):
        assert normalized.is_rest_empty(place) == (not normalize(text[place:]))


@repeatable
@given(texts, st.text(alphabet="helo fi", min_size=1, max_size=3))
def test_occurrences_equal_the_slow_twin(text: str, window: str) -> None:
    normalized = NormalizedText(text)
    window = normalize(window)
    if window:
        ends = range(len(window), len(normalized.text) + 1)
        found = [end for end in ends if normalized.text[end - len(window) : end] == window]
        assert list(normalized.ends(window)) == found


def test_forms_of_a_printed_text() -> None:
    assert variants_of("one line") == ["one line"]
    assert variants_of("a well-\nknown\nﬁx") == [
        "a wellknown fix",
        "a well-known fix",
        "a well-\nknown\nﬁx",
    ]
    assert variants_of("a\n\nb\r\nc") == ["a\n\nb c", "a\n\nb\nc"]
    assert variants_of("exam\u0002ple")[0] == variants_of("exam\u0002\r\nple")[0] == "example"
    assert variants_of("exam\u00ad\nple and in\u00adside")[0] == "example and inside"
    assert variants_of("日本\n語 か\nな") == ["日本語 かな", "日本\n語 か\nな"]
    assert variants_of("") == [""]


def test_characters_are_normalized_once() -> None:
    before = normalize_character.cache_info().misses
    assert normalize("zzzz zzzz") == "zzzzzzzz"
    assert normalize_character.cache_info().misses <= before + 2
