"""Log probabilities of verdicts, and the texts and bytes of tokens."""

from __future__ import annotations

import pytest
import torch
from batches import sequences
from families import VOCAB, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from text_tokenizers import all_tokenizers

from draftlens.core.logprobs import LogprobRecord, TokenTexts, logprobs_of, record_logprobs
from draftlens.core.result import Chunk, Result, TokenLogprob
from draftlens.core.stats import Stats
from draftlens.core.tree import Verdict

LOGITS = torch.randn(3, 5, 11, generator=torch.Generator().manual_seed(2))
VERDICT = Verdict(paths=((1, 3), (), (0,)), tokens=((4, 9, 2), (7,), (1, 1)))
INDICES = ((0, 2, 4), (0,), (0, 1))
"""The places of the choices in the passes."""


def rows(*records: LogprobRecord | None) -> list:  # type: ignore[type-arg]
    made = sequences(torch.zeros(3, 4, dtype=torch.long), [[0], [0], [0]])
    for row, record in zip(made, records, strict=True):
        row.logprobs = record
    return made


def test_each_token_is_measured_where_it_was_chosen() -> None:
    raw, processed = LogprobRecord(top=3), LogprobRecord(top=1, processed=True)
    found = logprobs_of(VERDICT, LOGITS, 2 * LOGITS, rows(raw, processed, LogprobRecord()))
    for row, scores in enumerate((LOGITS, LOGITS * 2, LOGITS)):
        log_p = scores[row].double().log_softmax(-1)
        for entry, index, token in zip(found[row], INDICES[row], VERDICT.tokens[row], strict=True):
            assert entry.token == token
            assert entry.logprob == pytest.approx(float(log_p[index, token]), abs=1e-5)
            likeliest = log_p[index].topk((3, 1, 0)[row])
            assert [other.token for other in entry.top] == likeliest.indices.tolist()
            values = [other.logprob for other in entry.top]
            assert values == pytest.approx(likeliest.values.tolist(), abs=1e-5)


def test_rows_that_record_none_have_none() -> None:
    found = logprobs_of(VERDICT, LOGITS, 2 * LOGITS, rows(None, None, LogprobRecord()))
    assert list(map(len, found)) == [0, 0, 2]
    assert logprobs_of(VERDICT, LOGITS, 2 * LOGITS, rows(None, None, None)) == ((), (), ())


def test_a_vocabulary_smaller_than_what_is_asked_for() -> None:
    found = logprobs_of(VERDICT, LOGITS, 2 * LOGITS, rows(LogprobRecord(top=20), None, None))
    assert sorted(other.token for other in found[0][0].top) == list(range(11))


def test_what_cannot_be_chosen_has_no_probability() -> None:
    scores = torch.full((3, 5, 11), -torch.inf)
    scores[..., 4] = 0.5
    record = LogprobRecord(top=2, processed=True)
    verdict = Verdict(((),) * 3, ((4,), (4,), (4,)))
    entry = logprobs_of(verdict, LOGITS, scores, rows(record, None, None))[0][0]
    assert (entry.logprob, entry.top[0].token) == (0.0, 4)
    assert entry.top[1].logprob == -torch.inf


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"logprobs": True}, (0, False)),
        ({"logprobs": "raw", "top_logprobs": None}, (0, False)),
        ({"logprobs": "processed", "top_logprobs": 4}, (4, True)),
    ],
)
def test_options(options: dict[str, object], expected: tuple[int, bool]) -> None:
    made = rows(None, None, None)
    record_logprobs(made, options)
    assert {(row.logprobs.top, row.logprobs.processed) for row in made} == {expected}
    assert len({id(row.logprobs) for row in made}) == 3


@pytest.mark.parametrize("kind", ["bpe", "sentencepiece"])
@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(text=st.text(max_size=12))
def test_bytes_add_up_to_the_text(kind: str, text: str) -> None:
    """Also where tokens are parts of characters, and with the spaces in front of words."""
    tools = all_tokenizers()[kind]
    texts = TokenTexts(tools)
    ids = tools.encode(f"the hello {text}", add_special_tokens=False)
    added = b"".join(texts.added_bytes(token) or b"" for token in ids)
    assert added.decode("utf-8", "replace").strip() == tools.decode(ids).strip()
    assert added.endswith(text.encode()) or kind == "sentencepiece"


def test_texts_keep_spaces_and_special_tokens_add_nothing() -> None:
    pieces = all_tokenizers()["sentencepiece"]
    texts = TokenTexts(pieces)
    (hello,) = pieces.encode("hello", add_special_tokens=False)
    assert texts.text(hello) == " hello"
    assert texts.added_bytes(hello) == b" hello"
    end = pieces.eos_token_id
    assert (texts.text(end), texts.added_bytes(end)) == ("</s>", None)
    half = pieces.convert_tokens_to_ids("<0xE2>")
    assert texts.added_bytes(half) == b"\xe2"
    assert texts.added_bytes(VOCAB * 1000) is None


def test_texts_are_filled_in() -> None:
    texts = TokenTexts(tokenizer())
    entry = TokenLogprob(0, -1.0, top=(TokenLogprob(1, -0.5),))
    expected = TokenLogprob(0, -1.0, texts.text(0), (TokenLogprob(1, -0.5, texts.text(1)),))
    assert texts.text(0) != texts.text(1) != ""
    chunk = Chunk((0,), (False,), logprobs=(entry,))
    assert texts.fill(chunk).logprobs == (expected,)
    result = Result([[0]], [[False]], Stats(), True, logprobs=[[entry]])
    assert texts.fill(result).logprobs == [[expected]]
    silent = Chunk((0,), (False,))
    assert texts.fill(silent) is silent
