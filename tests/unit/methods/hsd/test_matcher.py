"""Answers that are looked up in texts, and what follows there. Where an answer goes on in a text
that it has left, against a full table of edit distances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import all_tokenizers

from draftlens.methods.hsd.drafter import DocumentOptions, document_matcher
from draftlens.methods.hsd.matcher import BAND, Alignment, DocumentMatcher, difference
from draftlens.methods.hsd.reference_text import ReferenceDocument, TextReference
from draftlens.methods.lookup.candidates import Kind
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.methods.lookup.text import BREAK, WALL, AnswerTail, TextCodec, joined_text

repeatable = settings(derandomize=True, deadline=None, database=None, max_examples=40)
EOS = 0
every_tokenizer = pytest.mark.parametrize("name", list(all_tokenizers()))
VOCABULARY = Vocabulary(5000)


class Page:
    """One answer and its references.

    Args:
        texts: the references.
        name: of the tokenizer.
        options: of the matcher.
    """

    def __init__(self, texts: Sequence[str], name: str = "bpe", **options: Any) -> None:
        self.tokenizer = all_tokenizers()[name]
        self.codec = TextCodec(self.tokenizer)
        self.matcher: DocumentMatcher = document_matcher(
            texts, self.tokenizer, VOCABULARY, DocumentOptions(**options), eos=[EOS]
        )
        self.ids: list[int] = []

    def say(self, text: str) -> None:
        """The answer says this next."""
        ids = self.codec.continuation(joined_text(self.codec.pieces(self.ids))[-20:], text)
        self.ids += ids
        self.matcher.extend(ids)

    def continuations(self, length: int = 40) -> list[str]:
        """What is proposed, as texts; the end of the answer is `END`."""
        found = []
        for candidate in self.matcher.candidates(4, length):
            ids = [token for token in candidate.tokens if token != EOS]
            text = self.text_behind(ids)
            found.append(text + "END" * (EOS in candidate.tokens))
        return found

    def text_behind(self, ids: Sequence[int]) -> str:
        """The text that the answer gains by tokens."""
        whole = joined_text(self.codec.pieces([*self.ids, *ids]))
        return whole[len(joined_text(self.codec.pieces(self.ids))) :]


@every_tokenizer
def test_the_draft_token_goes_on_where_the_match_ends(name: str) -> None:
    page = Page(["the foot ball world"], name)
    page.say("the foot")
    assert page.continuations()[0].startswith(" ball world")
    page.say(" ")
    assert page.continuations()[0].startswith("ball world")
    page.say("ba")  # inside a word
    assert page.continuations()[0].startswith("ll world")


@every_tokenizer
def test_spaces_and_marks_of_the_answer_replace_those_of_the_text(name: str) -> None:
    page = Page(["hello world the foot"], name, heads=False, recovery=False)
    page.say("hello\nworld")
    assert page.continuations()[0].startswith(" the foot")
    page.say(".\n")
    assert page.continuations()[0].startswith("the foot")
    page.say("- the")
    assert page.continuations()[0] == " foot"


def test_a_tail_without_letters_is_looked_up_as_it_is() -> None:
    page = Page(["|a|b|\n|---|---|\n|c|"], heads=False, recovery=False, variants=False)
    page.say("zz\n|---|---|\n")
    assert page.continuations()[0].startswith("|c|")


def test_case_is_kept() -> None:
    page = Page(["Word one", "word two"], heads=False, recovery=False)
    page.say("the word")
    assert page.continuations()[0] == " two"


@pytest.mark.parametrize("text", ["日本語の本文", "é à ü ö"])
def test_an_answer_that_ends_inside_a_character(text: str) -> None:
    """Its first byte is said: the others follow, or nothing does."""
    codec = TextCodec(all_tokenizers()["bpe"])
    page = Page([f"hello {text}"], heads=False)
    ids = codec.encode(f"hello {text}")
    start = len(codec.encode("hello ")) if text[0] == "日" else len(codec.encode("hello"))
    for said in range(start, len(ids)):
        fresh = Page([f"hello {text}"], heads=False)
        fresh.matcher.extend(ids[:said])
        draft_tokens = [list(candidate.tokens) for candidate in fresh.matcher.candidates(4, 99)]
        assert ids[said:] in draft_tokens, said
    page.matcher.extend([*ids[: start + 1], ids[0]])
    page.matcher.candidates(4, 9)


def test_special_tokens_in_a_text_are_not_proposed() -> None:
    tokenizer = all_tokenizers()["bpe"]
    text = f"hello world{tokenizer.eos_token} the foot"
    page = Page([text], heads=False)
    page.say("hello")
    assert page.continuations()[0] == " world"
    document = ReferenceDocument.of(text, page.codec, VOCABULARY)
    assert BREAK in document.tokens
    page.say(" world")
    for candidate in page.matcher.candidates(4, 40):
        assert tokenizer.eos_token_id not in candidate.tokens
    page.say(" the")
    assert page.continuations()[0].startswith(" foot")


def test_ids_that_do_not_exist_are_walls() -> None:
    codec = TextCodec(all_tokenizers()["bpe"])
    ids = [*codec.encode("hello"), -1, 10**9, *codec.encode(" world")]
    document = ReferenceDocument(ids, codec, VOCABULARY)
    assert document.normalized.text == f"hello{WALL}{WALL}world"
    tail = AnswerTail(16, codec.decoder())
    tail.extend(codec.encode("hello world"))
    assert TextReference(document, codec).matches(tail, len(codec.encode("hello world"))) == []


@repeatable
@given(st.integers(0, 60), st.integers(1, 12), st.sampled_from(["bpe", "sentencepiece"]))
def test_a_draft_token_is_the_text_from_its_place_on(place: int, length: int, name: str) -> None:
    """Whole words and broken ones; the place after it is that of what was taken."""
    text = "the foot ball world, hello. the - foot\nfo ot ball"
    codec = TextCodec(all_tokenizers()[name])
    source = TextReference(ReferenceDocument.of(text, codec, VOCABULARY), codec)
    place = min(place, len(text))
    ids = codec.encode(text[:place])
    tail = AnswerTail(16, codec.decoder())
    tail.extend([*codec.encode("x"), *ids])
    continuation = source.continuation(place, length, tail)
    said = joined_text(codec.pieces([*codec.encode("x"), *ids, *continuation.tokens]))[1 + place :]
    assert text[place:].startswith(said)
    assert continuation.reaches_end == (said == text[place:] and len(continuation.tokens) <= length)
    assert source.place_after(place, continuation.tokens, said) == place + len(said)


# --- the position ---------------------------------------------------------------------------------


def followed(*texts: str) -> Page:
    """An answer that has followed the first text for two words."""
    page = Page(texts)
    page.say("the")
    page.continuations()
    page.say(" green ball")
    page.continuations()
    return page


def test_behind_a_wrong_draft_token_the_text_goes_on() -> None:
    """A word was substituted, inserted or left out; without recovery, n matches are awaited."""
    text = "the green ball rolls over a small hill near the old mill"
    for said, rest in (
        (" stops", " over a small hill"),
        (" there rolls", " over a small hill"),
        (" over", " a small hill"),
        (" rol1s", " over a small hill"),
    ):
        page = followed(text)
        page.say(said)
        assert any(continuation.startswith(rest) for continuation in page.continuations()), said


def test_a_trail_that_is_lost_proposes_nothing() -> None:
    page = followed("the green ball rolls over a small hill")
    page.say(" 123456789 123456789 123456789")
    assert page.matcher.position.source is None
    assert not any("hill" in continuation for continuation in page.continuations())


def test_regions_follow_each_other() -> None:
    page = Page(["first words", "second words", "third words"])
    page.say("# ")
    draft_tokens = page.continuations()
    assert draft_tokens[0].startswith("first words\n\nsecond words")
    page.say("first words")
    draft_tokens = page.continuations()
    assert draft_tokens[0].startswith("\n\nsecond words")
    assert any(continuation.startswith("\nsecond words") for continuation in draft_tokens)
    assert any(continuation.startswith("\n\nthird words") for continuation in draft_tokens)
    assert "END" in draft_tokens
    page.say("\n")
    assert page.continuations()[0].startswith("\nsecond words")
    page.say("third")  # out of order
    assert page.continuations()[0].startswith(" words")
    page.say(" words")
    assert page.continuations()[0].startswith("\nfirst") is False
    assert any("second words" in continuation for continuation in page.continuations())


def test_what_stood_between_regions_is_expected_again() -> None:
    page = Page(["first words", "second words", "third words"])
    page.say("first words")
    page.continuations()
    page.say("\n- second words")
    page.continuations()
    assert page.matcher.queue._left(page.matcher.tail, 0)[0] in ("\n- ", "\n\n")


def test_the_end_is_proposed_behind_the_last_region() -> None:
    page = Page(["first words"])
    page.say("first")
    assert page.continuations()[0] == " wordsEND"
    without = Page(["first words"], heads=False)
    without.say("first")
    assert without.continuations()[0] == " words"


def test_kinds_of_candidates_are_counted_apart() -> None:
    page = followed("the green ball rolls over a hill", "second words")
    page.say(" stops")
    kinds = {candidate.kind for candidate in page.matcher.candidates(4, 20)}
    assert Kind.RECOVERY in kinds
    (first, *_) = page.matcher.candidates(4, 60)
    assert first.head is not None
    assert first.evidence_at(first.boundary)[0] is Kind.HEAD
    assert first.evidence_at(first.boundary - 1)[0] is Kind.RECOVERY


def test_variants_meet_in_one_tree() -> None:
    page = Page(["the exam-\nple of a well-\nknown foot"])
    page.say("the")
    tree, candidates = page.matcher.tree(4, 30, 256)
    texts = [page.text_behind([t for t in c.tokens if t != EOS]) for c in candidates]
    assert any(text.startswith(" example of a wellknown foot") for text in texts)
    assert any(text.startswith(" exam-ple of a well-known foot") for text in texts)
    assert any(text.startswith(" exam-\nple of a well-\nknown foot") for text in texts)
    assert len(tree) < sum(len(candidate.tokens) for candidate in candidates)


thorough = settings(derandomize=True, deadline=None, database=None, max_examples=60)
words = st.text(alphabet="ab .", max_size=BAND - 4)


def slow_distance(one: Sequence[str], other: Sequence[str]) -> int:
    """The edit distance, recursion by recursion made into a table."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for row in range(len(one) + 1):
        for column in range(len(other) + 1):
            if not row or not column:
                table[row][column] = row + column
                continue
            table[row][column] = min(
                table[row - 1][column] + 1,
                table[row][column - 1] + 1,
                table[row - 1][column - 1] + difference(one[row - 1], other[column - 1]),
            )
    return table[-1][-1]


@thorough
@given(words, words, st.integers(0, 5))
def test_distances_equal_the_slow_twin(text: str, said: str, start: int) -> None:
    start = min(start, len(text))
    alignment = Alignment(text, start)
    alignment.extend(said)
    assert alignment.num_symbols == len(said)
    expected = {
        place: slow_distance(text[start:place], said) for place in range(start, len(text) + 1)
    }
    found = {place: distance for distance, place in alignment.places()}
    assert found == expected
    assert alignment.least == min(expected.values())


def test_what_may_have_happened_to_a_token() -> None:
    """Token ids: substituted, inserted, or tokens are missing."""
    alignment = Alignment([1, 2, 3, 4, 5, 6], 1)
    alignment.extend([9])
    places = alignment.places()
    assert places[:2] == [(1, 2), (1, 1)]
    alignment = Alignment([1, 2, 3, 4, 5, 6], 1)
    alignment.extend([4])
    assert (2, 4) in alignment.places()  # two are missing


def test_a_word_is_not_put_in_place_of_a_space() -> None:
    assert difference("a", "b") == 1
    assert difference("a", " ") == difference("-", "x") == 2
    assert difference(5, 6) == 1
    assert difference("a", "a") == difference(7, 7) == 0


def test_work_for_each_symbol_does_not_grow() -> None:
    alignment = Alignment("ab" * 500, 0)
    alignment.extend("ab" * 200)
    assert len(alignment._distances) <= 2 * BAND + 1
    assert (0, 400) in alignment.places()
    alignment.extend("x" * 2000)  # far beyond the end
    assert alignment.places()
