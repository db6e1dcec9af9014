"""Method hsd: the same tokens as stock `generate`, whatever the references say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from families import FAMILIES, SPECIAL, Family, inputs, tokenizer
from proposals import draft_ids_of, proposals_of
from stock import LONG, Divisible, NoEcho, reference, staggered, stock, target

import draftlens
from draftlens.core.references import references_of
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import DraftTree, attention_mask, batch_ancestors, batch_depths, path_to
from draftlens.decoding import Session, decode
from draftlens.documents.reading.formats.notation import WITH_HTML, WITH_MARKDOWN
from draftlens.methods.base import Models
from draftlens.methods.hsd.drafter import DocumentDrafter
from draftlens.methods.lookup.candidates import merge
from draftlens.models.adapter import Backbone

every_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
References = list[list[Any]]

METHODS: dict[str, dict[str, Any]] = {
    "text": {"method": "hsd", "num_speculative_tokens": 7},
    "tokens": {"method": "hsd", "num_speculative_tokens": 7, "matching": "tokens", "window": 1},
    "auto": {"method": "hsd", "window": 2},
    "bare": {"method": "hsd", "num_speculative_tokens": 4, "recovery": False, "heads": False},
}

TABLES = WITH_HTML.tables([["abc", "abd"], ["", "b|c", "<b>"]])
"""Nothing of it is said."""


@pytest.fixture
def proposed(monkeypatch: pytest.MonkeyPatch) -> list[DraftTree]:
    """Every tree of the test."""
    return proposals_of(DocumentDrafter, monkeypatch)


def text_of(ids: Sequence[int]) -> str:
    """The text of an answer, special tokens included."""
    text: str = tokenizer().decode(ids)
    return text


def edited(ids: Sequence[int], seed: int, every: int = 7) -> list[int]:
    """An answer with wrong, missing and additional tokens."""
    rng = random.Random(seed)
    text: list[int] = []
    for token in ids:
        if rng.randrange(every):
            text.append(token)
        else:
            text += rng.choice([[(token + 1) % 90], [], [token, rng.randrange(90)]])
    return text


def kinds_of_references(rows: Sequence[Sequence[int]], backbone: Backbone) -> dict[str, References]:
    """References of all kinds for each row."""
    pixels = sorted(backbone.pixel_ids)
    kinds: dict[str, References] = {}
    kinds["right"] = [[list(row)] for row in rows]
    kinds["edited"] = [
        [edited(row, seed), text_of(edited(row, -seed))] for seed, row in enumerate(rows)
    ]
    kinds["wrong"] = [[[5, 6, 7] * 10, "nothing of this is said"] for _ in rows]
    kinds["empty"] = [[], [[]], ["", "\n"]][: len(rows)]
    kinds["in pieces"] = [pieces_of(row) for row in rows]
    kinds["of another row"] = [[list(rows[number - 1])] for number in range(len(rows))]
    kinds["special"] = [
        [
            [token for right in row for token in (right, *pixels, backbone.vocab_size, -1)],
            "".join(SPECIAL) + text_of(row[:9]) + SPECIAL[0] + text_of(row[9:]),
        ]
        for row in rows
    ]
    kinds["tables"] = [[*TABLES, *as_tables(row)] for row in rows]
    kinds["formulas"] = [
        [*WITH_HTML.formulas(text_of(row[4:])), *WITH_HTML.formulas("a^2")] for row in rows
    ]
    kinds["earlier pages"] = [
        ["wrong words", *(edited(rows[other], other) for other in range(len(rows)))] for _ in rows
    ]
    return kinds


def as_tables(row: Sequence[int]) -> list[str]:
    """An answer as the cells of a table with rows of different lengths, in both notations."""
    cells = [text_of(row[start : start + 5]) for start in range(0, len(row), 5)]
    return WITH_MARKDOWN.tables([cells[:2], cells[2:3], cells[3:]])


def pieces_of(row: Sequence[int]) -> list[Any]:
    """An answer in pieces, as texts and ids, in another order."""
    parts = [list(row[start : start + 6]) for start in range(0, len(row), 6)]
    random.Random(1).shuffle(parts)
    return [text_of(part) if number % 2 else part for number, part in enumerate(parts)]


@every_family
def test_references_of_all_kinds_for_a_ragged_batch(
    family: Family, proposed: list[DraftTree]
) -> None:
    """What stands for pixels is never drafted, whatever a reference says."""
    model = target(family)
    backbone = Backbone.of(model)
    rows = reference(family, family.richest, LONG)
    names = list(METHODS)
    turn = FAMILIES.index(family)
    kinds = kinds_of_references(rows, backbone)
    for alike in (("right", "wrong", "empty"), ("tables", "formulas", "earlier pages")):
        for kind in set(alike) - {alike[turn % 3]}:
            del kinds[kind]
    for number, (kind, references) in enumerate(kinds.items()):
        result = draftlens.generate(
            model,
            inputs(family, family.richest),
            method=METHODS[names[(number + turn) % len(names)]],
            references=references,
            tokenizer=tokenizer(),
            max_new_tokens=LONG,
        )
        assert result.tokens == rows, kind
        assert result.lossless
        assert result.stats.tolerated == 0
        stats = result.stats
        assert stats.accepted == sum(map(sum, result.from_draft))
        by_reference = stats.accepted_by_reference
        for row, from_draft in enumerate(result.from_draft):
            assert sum(by_reference.get(row, {}).values()) == sum(from_draft)
    draft_tokens = draft_ids_of(proposed)
    assert not draft_tokens & backbone.pixel_ids
    assert all(0 <= draft_token < backbone.vocab_size for draft_token in draft_tokens)


@every_family
def test_answers_that_differ_a_little_from_their_references(family: Family) -> None:
    """After each difference the reference is found again at once."""
    rows = reference(family, family.richest, LONG)
    passes = {}
    for recovery in (False, True):
        result = draftlens.generate(
            target(family),
            inputs(family, family.richest),
            method={"method": "hsd", "num_speculative_tokens": 12, "recovery": recovery},
            references=[[edited(row, seed, every=9)] for seed, row in enumerate(rows)],
            tokenizer=tokenizer(),
            max_new_tokens=LONG,
        )
        assert result.tokens == rows
        passes[recovery] = result.stats.passes
    assert passes[True] < 0.6 * sum(map(len, rows))
    assert passes[True] <= passes[False]


@every_family
def test_endings_processors_and_criteria(family: Family) -> None:
    """Rows end at different moments inside accepted runs, and the end itself is drafted, unless
    there is no such id."""
    given = inputs(family, family.richest)
    rows = reference(family, family.richest, LONG)
    call: dict[str, Any] = {"method": METHODS["text"], "tokenizer": tokenizer()}
    ends = [*staggered(rows), 10**6]
    expected = stock(target(family), given, max_new_tokens=LONG, eos_token_id=ends)
    result = draftlens.generate(
        target(family),
        given,
        references=[[row[:-1]] for row in expected],
        max_new_tokens=LONG,
        eos_token_id=ends,
        **call,
    )
    assert result.tokens == expected
    options: dict[str, Any] = {
        "max_new_tokens": LONG,
        "repetition_penalty": 1.2,
        "logits_processor": [NoEcho()],
        "stopping_criteria": [Divisible(given["input_ids"].shape[1])],
    }
    expected = stock(target(family), given, **options)
    references = [[edited(row, seed, 5)] for seed, row in enumerate(expected)]
    result = draftlens.generate(target(family), given, references=references, **call, **options)
    assert result.tokens == expected


@pytest.mark.parametrize("family", FAMILIES[3:5], ids=str)
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_draws(family: Family, rule: str) -> None:
    """The tokens of plain decoding with the same seed, and fewer passes, under both rules."""
    given = inputs(family, family.richest)
    call: dict[str, Any] = {
        "method": {**METHODS["text"], "sampling_rule": rule},
        "tokenizer": tokenizer(),
        "do_sample": True,
        "temperature": 0.7,
        "seed": 3,
        "max_new_tokens": LONG,
    }
    model = target(family)
    plain = draftlens.generate(model, given, references=[[], [], []], **call)
    references = [[edited(row, seed)] for seed, row in enumerate(plain.tokens)]
    result = draftlens.generate(model, given, references=references, **call)
    assert result.tokens == plain.tokens
    assert result.stats.passes < 0.8 * plain.stats.passes


def test_without_references_it_is_lookup() -> None:
    family = FAMILIES[2]
    given = inputs(family, family.richest)
    results = [
        draftlens.generate(
            target(family),
            given,
            method={"method": name, "num_speculative_tokens": 4},
            max_new_tokens=LONG,
        )
        for name in ("lookup", "hsd")
    ]
    assert results[0].tokens == results[1].tokens == reference(family, family.richest, LONG)
    assert results[0].stats.accepted == pytest.approx(results[1].stats.accepted, abs=5)


def test_accepted_draft_tokens_know_their_reference() -> None:
    """Of three references one is wrong, and the others hold the answer in two pieces."""
    family = FAMILIES[3]
    rows = reference(family, family.richest, LONG)
    references = [[[5] * 9, list(row[:12]), list(row[12:])] for row in rows]
    result = draftlens.generate(
        target(family),
        inputs(family, family.richest),
        method=METHODS["text"],
        references=references,
        tokenizer=tokenizer(),
        max_new_tokens=LONG,
    )
    assert result.tokens == rows
    assert set(result.stats.accepted_by_reference) == {0, 1, 2}
    for counts in result.stats.accepted_by_reference.values():
        assert counts[1] >= 5
        assert counts[2] >= 5
        assert counts[0] == 0
    shown = result.stats.to_dict()["accepted_by_reference"]
    assert shown["1"]["2"] == result.stats.accepted_by_reference[1][2]


def up_to(ids: Sequence[int], walls: frozenset[int]) -> list[int]:
    """The ids in front of the first one that is never drafted."""
    for place, token in enumerate(ids):
        if token in walls:
            return list(ids[:place])
    return list(ids)


def test_rows_that_join_later() -> None:
    """While other rows run, and one of them has nothing to repeat but its prompt."""
    family = FAMILIES[4]
    model = target(family)
    rows = reference(family, family.richest, LONG)
    backbone = Backbone.of(model)
    plan = draftlens.HSD(num_speculative_tokens=5).plan(Models(backbone, None))
    session = Session(backbone, plan, Clock(Stats()))
    # The last one has regions, of which one may follow the other in several ways.
    texts = [[rows[0]], [], [rows[2][:2], rows[2][2:8], rows[2][8:]]]
    answers: list[list[int]] = [[], [], []]
    for number, regions in enumerate(texts):
        given = inputs(family, family.richest, (number,))
        prepared = backbone.prepare(given, max_new_tokens=LONG, do_sample=False)
        references = references_of([regions], 1, tokenizer())
        session.add(prepared, [0], {}, {"references": references})
        chunks = session.start()
        session.begin()
        if number < 2:  # the last one joins in the middle of the other answers
            chunks += session.accept(session.check(session.propose()))
        for chunk in chunks:
            answers[chunk.row] += chunk.tokens
    for chunk in decode(session):
        answers[chunk.row] += chunk.tokens
    assert answers == [list(row) for row in rows]
    assert session.stats.accepted > LONG


@pytest.mark.parametrize("family", FAMILIES[2:4], ids=str)
def test_large_trees(family: Family, proposed: list[DraftTree]) -> None:
    """The logits of one pass over such a tree are those of a pass for each token, nearly."""
    model = target(family)
    given = dict(inputs(family, family.richest, (0,)))
    rows = stock(model, given, max_new_tokens=100)
    call: dict[str, Any] = {
        "method": {"method": "hsd", "num_speculative_tokens": 64, "max_branches": 8, "window": 1},
        "references": [[edited(rows[0], seed, 6) for seed in range(8)]],
        "tokenizer": tokenizer(),
        "max_new_tokens": 100,
    }
    result = draftlens.generate(model, given, **call)
    assert result.tokens == rows
    assert max(len(tree.topologies[0]) for tree in proposed) > 128


def test_logits_of_256_nodes_behind_2000_tokens() -> None:
    """Each path of the tree has the logits of a causal pass over the prompt and that path; the
    largest difference is in docs/exactness.md."""
    family = next(family for family in FAMILIES if family.name == "qwen2_vl")
    backbone = Backbone.of(family.build(max_position_embeddings=4096))
    rng = random.Random(5)
    ids = torch.tensor([rng.choices(range(90), k=2000)])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    prompt = backbone.encode(backbone.prepare(given, max_new_tokens=400))
    cache = backbone.new_cache(prompt, 300)
    backbone.prefill(prompt, cache)
    stem = rng.choices(range(90), k=20)
    tree = merge([[*stem, *rng.choices(range(90), k=60)] for _ in range(5)], 256)
    assert len(tree) == 256
    tokens = torch.tensor([[3, *tree.tokens]])
    positions = prompt.next_position + batch_depths([tree.topology], ids.device)
    window = batch_ancestors([tree.topology], ids.device)
    mask = attention_mask(cache.lengths, window)
    logits = backbone.forward(tokens, positions, cache, mask)[0]
    largest = 0.0
    leaves = [node for node in range(256) if node not in tree.topology.children]
    for leaf in leaves:
        path = [0, *(node + 1 for node in path_to(tree.topology, leaf))]
        alone = backbone.followed_by(prompt, tokens[:, path])
        fresh = backbone.new_cache(alone, 1)
        expected = backbone.prefill(alone, fresh, None, len(path))[0]
        largest = max(largest, float((logits[path] - expected).abs().max()))
        assert torch.equal(logits[path].argmax(-1), expected.argmax(-1))
    assert len(leaves) >= 4
    assert 0 < largest < 5e-5


# --- tolerance -----------------------------------------------------------------------------------


def tolerated(family: Family, tolerance: float, **options: Any) -> draftlens.Result:
    """An answer whose references differ in single tokens from that of stock `generate`."""
    rows = reference(family, family.richest, LONG)
    return draftlens.generate(
        target(family),
        inputs(family, family.richest),
        method={**METHODS["text"], "tolerance": tolerance},
        references=[[edited(row, seed, 5)] for seed, row in enumerate(rows)],
        tokenizer=tokenizer(),
        **{"max_new_tokens": LONG, **options},
    )


@pytest.mark.parametrize("family", FAMILIES[:2], ids=str)
def test_tolerance_is_named_and_counted(family: Family) -> None:
    rows = reference(family, family.richest, LONG)
    exact = tolerated(family, 1.0)
    assert exact.tokens == rows
    assert exact.lossless
    lax = tolerated(family, 0.3)
    assert not lax.lossless
    assert lax.approximate == ("draft tokens accepted with tolerance 0.3",)
    assert lax.stats.tolerated > 0
    assert lax.tokens != rows
    assert lax.stats.accepted >= lax.stats.tolerated
    assert lax.stats.to_dict()["tolerated"] == lax.stats.tolerated


def test_every_tolerated_token_is_nearly_as_likely_as_the_best_one() -> None:
    """Judged again by plain forwards of the model over the whole answer."""
    family = FAMILIES[0]
    given = dict(inputs(family, "text", (0,)))
    row = stock(target(family), given, max_new_tokens=LONG)[0]
    result = draftlens.generate(
        target(family),
        given,
        method={**METHODS["text"], "tolerance": 0.3},
        references=[edited(row, 3, 3)],
        tokenizer=tokenizer(),
        max_new_tokens=LONG,
    )
    answer = torch.tensor(result.tokens)
    ids = torch.cat([given["input_ids"], answer], 1)
    with torch.no_grad():
        logits = target(family)(input_ids=ids).logits[0, -answer.shape[1] - 1 : -1]
    log_p = torch.log_softmax(logits.float(), -1)
    said = log_p.gather(-1, answer[0][:, None]).squeeze(-1)
    best = log_p.amax(-1)
    differs = log_p.argmax(-1) != answer[0]
    assert int(differs.sum()) == result.stats.tolerated > 0
    assert bool((best <= 0.3 * said + 1e-4).all())


def test_tolerance_is_for_greedy_decoding() -> None:
    with pytest.raises(draftlens.ConfigError, match="tokens are drawn: use tolerance=1"):
        tolerated(FAMILIES[0], 0.75, do_sample=True)
    with pytest.raises(draftlens.ConfigError, match="use one of them"):
        draftlens.HSD(tolerance=0.75, sampling_rule="rejection")
