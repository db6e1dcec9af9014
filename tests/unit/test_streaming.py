"""Text of a stream: whole characters, every row its own, and nothing lost."""

from __future__ import annotations

import itertools
import random

import pytest
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from draftlens.core.result import Chunk
from draftlens.models.known_pairs import EMBEDDED, path_of
from draftlens.streaming import with_text

TEXT = "a é € 😀 日本 �b"


def decode(ids: list[int]) -> str:
    """A byte-level tokenizer: one token per byte."""
    return bytes(ids).decode("utf-8", "replace")


def chunks_of(data: bytes, sizes: list[int], row: int = 0) -> list[Chunk]:
    cuts = list(itertools.accumulate(sizes, initial=0))
    parts = [tuple(data[a:b]) for a, b in itertools.pairwise(cuts)]
    return [Chunk(part, (True,) * len(part), row=row) for part in parts if part]


@pytest.mark.parametrize("seed", range(20))
def test_characters_split_over_tokens_and_chunks_come_whole(seed: int) -> None:
    rng, data = random.Random(seed), TEXT.encode()
    given = chunks_of(data, [rng.randint(1, 4) for _ in range(len(data))])
    told = list(with_text(iter(given), decode))
    assert "".join(chunk.text for chunk in told) == TEXT
    for count in range(1, len(told)):
        assert TEXT.startswith("".join(chunk.text for chunk in told[:count]))
    assert [(chunk.tokens, chunk.from_draft, chunk.row) for chunk in told[: len(given)]] == [
        (chunk.tokens, chunk.from_draft, chunk.row) for chunk in given
    ]


def test_text_comes_as_soon_as_it_is_whole() -> None:
    told = with_text(iter(chunks_of("x€y".encode(), [1, 1, 1, 1, 1])), decode)
    assert [chunk.text for chunk in told] == ["x", "", "", "€", "y"]


def test_rows_do_not_mix() -> None:
    one, other = "é😀a".encode(), "日b€".encode()
    mixed = itertools.chain.from_iterable(
        itertools.zip_longest(
            chunks_of(one, [1] * len(one)), chunks_of(other, [1] * len(other), row=1)
        )
    )
    told = list(with_text((chunk for chunk in mixed if chunk), decode))
    assert "".join(chunk.text for chunk in told if chunk.row == 0) == "é😀a"
    assert "".join(chunk.text for chunk in told if chunk.row == 1) == "日b€"


@pytest.mark.parametrize("end", ["�", "😀"])
def test_an_answer_that_ends_inside_a_character_loses_nothing(end: str) -> None:
    data = ("a" + end).encode()
    data = data if end == "�" else data[:-1]
    told = list(
        with_text(iter([*chunks_of(b"b", [1], row=1), *chunks_of(data, [1] * len(data))]), decode)
    )
    assert "".join(chunk.text for chunk in told if chunk.row == 0) == decode(list(data)) == "a�"
    assert (told[-1].tokens, told[-1].from_draft, told[-1].row) == ((), (), 0)
    assert sum(not chunk.tokens for chunk in told) == 1


def test_the_stream_of_the_library_would_lose_the_end() -> None:
    """Why `DecodeStream` of tokenizers does not decode answers."""
    tokenizer = AutoTokenizer.from_pretrained(path_of(EMBEDDED, "target"))
    ids = tokenizer("a €", add_special_tokens=False).input_ids[:-1]
    library = DecodeStream(skip_special_tokens=True)
    pieces = [library.step(tokenizer.backend_tokenizer, token) or "" for token in ids]
    assert "".join(pieces) == "a "
    chunks = [Chunk((token,), (False,)) for token in ids]
    told = list(with_text(iter(chunks), tokenizer.decode))
    assert "".join(chunk.text for chunk in told) == tokenizer.decode(ids) == "a �"


def test_the_shown_stream_takes_a_chunk_without_tokens() -> None:
    from draftlens.cli.show import shaded

    assert str(shaded("�", (), (), lambda ids: [])) == "�"


def test_spaces_that_a_tokenizer_drops_at_a_texts_start_are_not_lost_between_chunks() -> None:
    """As SentencePiece tokenizers do: what a token adds depends on whether something stands before
    it."""
    words = {1: " one", 2: " two", 3: "fold", 4: " three"}

    def decode_ids(ids: list[int]) -> str:
        return "".join(words[i] for i in ids).removeprefix(" ")

    chunks = [
        Chunk((1,), (False,)),
        Chunk((2, 3), (True, False)),
        Chunk((4,), (False,)),
        Chunk((2,), (False,)),
    ]
    assert [chunk.text for chunk in with_text(iter(chunks), decode_ids)] == [
        "one",
        " twofold",
        " three",
        " two",
    ]


def test_each_token_is_decoded_a_bounded_number_of_times() -> None:
    """However long the answer grows."""
    decoded = 0

    def decode_ids(ids: list[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return "x" * len(ids)

    texts = [
        chunk.text for chunk in with_text(iter([Chunk((7, 7), (True, False))] * 500), decode_ids)
    ]
    assert texts == ["xx"] * 500
    assert decoded <= 3 * 1000
