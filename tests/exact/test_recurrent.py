"""Models with recurrent or convolution states answer what stock `generate` answers, as targets and
as drafts, however many draft tokens of a row are accepted."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from conversations import answer as answer_of
from links import ScriptedLink
from stock import Noise, noisy, stock
from stock_families import STOCK_FAMILIES, StockFamily, model_of, prompts, unlike
from transformers import TopKLogitsWarper
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

import draftlens
from draftlens.core.sampling import row_seeds
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import chain
from draftlens.decoding import Plan, Session, decode
from draftlens.decoding.admission import NAMESPACE, PartSize
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.base import Models, from_dict
from draftlens.methods.parallelvlm.drafters import ParallelDrafter
from draftlens.methods.parallelvlm.loop import decode as decode_ahead
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import OwnPrompt
from draftlens.models.adapter import Backbone
from draftlens.models.prompt_cache import PromptCache
from draftlens.models.prompt_reading import READERS

NEW = 30
LENGTHS = (12, 19, 15)


def has_states(family: StockFamily) -> bool:
    kinds = DynamicCache(config=family.language).layers
    return any(isinstance(kind, LinearAttentionLayer) for kind in kinds)


RECURRENT = [family for family in STOCK_FAMILIES if not family.cause and has_states(family)]
every_family = pytest.mark.parametrize("family", RECURRENT, ids=str)
every_kind = pytest.mark.parametrize(
    "family", unlike(RECURRENT, lambda config: tuple(config.layer_types)), ids=str
)
every_input = pytest.mark.parametrize(
    ("family", "pictures"),
    [(family, seen) for family in RECURRENT for seen in sorted({False, bool(family.tokens)})],
    ids=str,
)
CHAIN = {"method": "speculative", "num_speculative_tokens": 4}


def test_the_families() -> None:
    names = {family.name for family in RECURRENT}
    assert names >= {"Qwen3_5", "Qwen3_5Moe", "MiniCPMV4_6", "Lfm2Vl", "Lfm3Vl"}


@cache
def draft_of(family: StockFamily) -> Any:
    """Agrees with about half of what the model says."""
    return noisy(model_of(family), 0.02)


@cache
def expected(family: StockFamily, pictures: bool) -> list[list[int]]:
    return stock(model_of(family), prompts(family, LENGTHS, pictures), max_new_tokens=NEW)


def answer(family: StockFamily, pictures: bool = False, **options: Any) -> Any:
    given = prompts(family, LENGTHS, pictures)
    return draftlens.generate(model_of(family), given, max_new_tokens=NEW, **options)


def check_rounds(stats: Stats) -> None:
    """Some rounds accept all, some nothing, and some a part."""
    depths = set(stats.accepted_by_depth)
    assert {0, max(depths)} < depths
    assert 0 < stats.accepted < stats.drafted


@every_input
def test_ragged_batches_with_chains(family: StockFamily, pictures: bool) -> None:
    result = answer(family, pictures, draft=draft_of(family), method=CHAIN)
    assert result.tokens == expected(family, pictures)
    assert result.lossless
    assert not result.notes
    check_rounds(result.stats)


@every_family
def test_one_row(family: StockFamily) -> None:
    """Passes over a single row take other paths than batches."""
    model, given = model_of(family), prompts(family, (19,), bool(family.tokens))
    expected = stock(model, given, max_new_tokens=NEW)
    for length in (1, 3, 7):
        method = {"method": "speculative", "num_speculative_tokens": length}
        result = draftlens.generate(
            model, given, draft=draft_of(family), method=method, max_new_tokens=NEW
        )
        assert result.tokens == expected
        assert 0 < result.stats.accepted < result.stats.drafted


METHODS: dict[str, dict[str, Any]] = {
    "auto": {"method": "speculative"},
    "mixed": {"method": "mixed"},
    "tabed": {"method": "tabed", "views": ["multimodal"], "num_speculative_tokens": 3},
    "specvlm": {"method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5},
    "random": {
        "method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5, "pruner": "random"
    },
    "self": {
        "method": "specvlm", "num_speculative_tokens": 3, "prune_ratio": 0.5, "draft": "self"
    },
}  # fmt: skip


@every_kind
@pytest.mark.parametrize("name", METHODS)
def test_methods_that_draft_with_a_model(family: StockFamily, name: str) -> None:
    pictures = bool(family.tokens)
    draft = None if name == "self" else draft_of(family)
    result = answer(family, pictures, draft=draft, method=METHODS[name])
    assert result.tokens == expected(family, pictures)
    assert name in ("auto", "mixed") or result.stats.drafted


def test_a_draft_in_another_process() -> None:
    family = RECURRENT[0]
    method = {"method": "speculative", "schedule": "parallel", "num_speculative_tokens": 3}
    result = answer(family, True, draft=draft_of(family), method=method)
    assert result.tokens == expected(family, True)
    assert result.stats.accepted


@every_kind
@pytest.mark.parametrize("method", ["hsd", "lookup"])
def test_copied_tokens(family: StockFamily, method: str) -> None:
    """Rounds with and without draft tokens follow each other after partial acceptances."""
    rows = expected(family, False)
    # Every sixth token is another one, and one passage is missing.
    texts = [[token if place % 6 else 5 for place, token in enumerate(row, 1)][:20] for row in rows]
    references = [[text] for text in texts]
    options = {"method": method, "num_speculative_tokens": 5}
    result = answer(family, method=options, references=references)
    assert result.tokens == rows
    check_rounds(result.stats)
    assert result.stats.accepted >= 20
    automatic = answer(family, method=method, references=references)
    assert automatic.tokens == rows


@every_kind
@pytest.mark.parametrize("method", ["hsd", "lookup"])
def test_copied_tokens_do_not_branch(family: StockFamily, method: str) -> None:
    """Where two texts go on differently, the preferred one is proposed."""
    rows = expected(family, False)
    references = [
        [row, [token if place % 6 else 6 for place, token in enumerate(row)]] for row in rows
    ]
    result = answer(family, method=method, references=references)
    assert result.tokens == rows
    # Other texts and the ends of answers may follow the end of one.
    pieces = [[row[:7], row[7:14], row[13:], row[5:9]] for row in rows]
    ends = {"eos_token_id": [rows[0][20], rows[1][25]]}
    given = prompts(family, LENGTHS)
    result = answer(family, method=method, references=pieces, **ends)
    assert result.tokens == stock(model_of(family), given, max_new_tokens=NEW, **ends)
    options = {"method": method, "num_speculative_tokens": 4, "max_branches": 3}
    result = answer(family, method=options, references=references)
    assert result.tokens == rows
    assert result.stats.accepted


def test_a_draft_that_runs_ahead_forgets_what_is_decided() -> None:
    """It keeps the states before the tokens that may still be rejected."""
    family = RECURRENT[0]
    models = Models(Backbone.of(model_of(family)), Backbone.of(draft_of(family)))
    assert models.draft is not None
    link = ScriptedLink(models.draft, seed=5)
    session = session_ahead(models, link)
    given = prompts(family, LENGTHS)
    prepared = session.target.prepare(given, max_new_tokens=80)
    session.add(prepared, [1, 2, 3], given)
    most = 0
    for _ in decode_ahead(session):
        caches = [each._speculated_rows.draft_rows.cache for each in link.worker._sessions.values()]
        most = max([most, *(len(cache._passes) for cache in caches if cache is not None)])
    assert 3 < most < 24


@every_family
def test_ends_inside_accepted_tokens(family: StockFamily) -> None:
    """Rows end at different times by one of several ids, and leave."""
    model, rows = model_of(family), expected(family, False)
    ends = [rows[0][9], rows[1][17]]
    given = prompts(family, LENGTHS)
    options = {"eos_token_id": ends, "max_new_tokens": NEW}
    result = draftlens.generate(model, given, draft=draft_of(family), method=CHAIN, **options)
    assert result.tokens == stock(model, given, **options)
    assert len({len(row) for row in result.tokens}) > 1
    assert 0 < result.stats.accepted < result.stats.drafted


@every_kind
def test_sampled_answers(family: StockFamily) -> None:
    pictures = bool(family.tokens)
    given = prompts(family, LENGTHS, pictures)
    processors = [
        TopKLogitsWarper(40),
        Noise(given["input_ids"].shape[1], row_seeds(5, len(LENGTHS))),
    ]
    rows = stock(model_of(family), given, logits_processor=processors, max_new_tokens=NEW)
    sampled = {"do_sample": True, "top_k": 40, "seed": 5}
    result = answer(family, pictures, draft=draft_of(family), method=CHAIN, **sampled)
    assert result.tokens == rows
    check_rounds(result.stats)


@every_kind
def test_rejection_sampling_of_each_row_alone(family: StockFamily) -> None:
    """What is drawn for a row depends on no other row, and so on no state of another one."""
    method = {**CHAIN, "sampling_rule": "rejection"}
    options = {"do_sample": True, "draft": draft_of(family), "method": method, "seed": [3, 4, 5]}
    together = answer(family, **options)
    assert 0 < together.stats.accepted < together.stats.drafted
    given = prompts(family, LENGTHS)
    for row, length in enumerate(LENGTHS):
        own = {name: value[row : row + 1, -length:] for name, value in given.items()}
        alone = draftlens.generate(
            model_of(family), own, max_new_tokens=NEW, **{**options, "seed": [3 + row]}
        )
        assert alone.tokens == [together.tokens[row]]


def session_ahead(models: Models, link: ScriptedLink | None = None) -> Session:
    """Whose draft moves ahead of the target by a script."""
    assert models.draft is not None
    vocab_size, schedule = models.target.vocab_size, Schedule(3)
    serial = ModelDrafter(DraftPromptBuilder(models.draft), chain(schedule.longest), vocab_size)
    link = link or ScriptedLink(models.draft, seed=3)
    drafter = ParallelDrafter(link, OwnPrompt(None), schedule, vocab_size, serial)
    return Session(models.target, Plan(drafter), Clock(Stats()))


@cache
def joining(family: StockFamily) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Calls that join a batch, and what stock answers to all of their rows."""
    calls = [
        prompts(family, LENGTHS, bool(family.tokens)),
        prompts(family, (70,)),
        prompts(family, (9, 11)),
    ]
    model = model_of(family)
    return calls, [row for given in calls for row in stock(model, given, max_new_tokens=NEW)]


@every_kind
@pytest.mark.parametrize("ahead", [False, True], ids=["serial", "ahead"])
def test_rows_that_join_and_leave(family: StockFamily, ahead: bool) -> None:
    """Also long prompts that are read in parts beside running rows."""
    models = Models(Backbone.of(model_of(family)), Backbone.of(draft_of(family)))
    if ahead:
        session = session_ahead(models)
    else:
        session = Session(models.target, from_dict(CHAIN).plan(models), Clock(Stats()))
    calls, answers = joining(family)
    rows: list[Any] = []

    def add(given: dict[str, Any]) -> None:
        prepared = session.target.prepare(given, max_new_tokens=NEW)
        seeds = list(range(len(rows), len(rows) + len(prepared.input_ids)))
        rows.extend(session.add(prepared, seeds, given))

    add(calls[0])
    chunks = decode_ahead(session) if ahead else decode(session)
    list(islice(chunks, 6))
    add(calls[1])
    list(islice(chunks, 5))
    session.remove(rows[0])
    list(islice(chunks, 5))
    add(calls[2])
    for _ in chunks:
        pass
    assert [row.tokens for row in rows[1:]] == answers[1:]
    assert 2 < len(rows[0].tokens) < NEW
    assert answers[0][: len(rows[0].tokens)] == rows[0].tokens
    assert 0 < session.stats.accepted < session.stats.drafted


@every_kind
def test_trees_are_refused(family: StockFamily) -> None:
    """By name and as a list, for a target and for a draft."""
    for tree in ("eagle", [[0], [1], [0, 0]]):
        with pytest.raises(
            draftlens.ConfigError, match=r"one chain of tokens.*tree must be a chain"
        ):
            answer(family, draft=draft_of(family), method={"method": "speculative", "tree": tree})
    chain = {"method": "speculative", "tree": [[0], [0, 0]]}
    assert answer(family, draft=draft_of(family), method=chain).tokens == expected(family, False)


@every_kind
def test_several_views_and_blocks_are_refused(family: StockFamily) -> None:
    with pytest.raises(draftlens.UnsupportedModelError, match="several views"):
        answer(family, bool(family.tokens), draft=draft_of(family), method="tabed")
    with pytest.raises(draftlens.UnsupportedModelError, match=r"not (read in blocks|divided)"):
        answer(family, prefill="spava")


@every_kind
def test_keys_of_each_layer_are_refused(family: StockFamily) -> None:
    method = {"method": "self-sd", "kv": "sparse", "num_speculative_tokens": 3}
    with pytest.raises(draftlens.UnsupportedModelError, match="keys and values of their own"):
        answer(family, bool(family.tokens), method=method)


def test_two_threads() -> None:
    """Each collects the inputs of its own passes."""
    family = RECURRENT[0]

    def run(_: int) -> list[list[int]]:
        tokens: list[list[int]] = answer(family, draft=draft_of(family), method=CHAIN).tokens
        return tokens

    with ThreadPoolExecutor(2) as pool:
        for tokens in pool.map(run, range(6)):
            assert tokens == expected(family, False)
    for module in model_of(family).modules():
        assert not module._forward_pre_hooks


def chat(family: StockFamily, rows: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A batch of texts, padded on the left."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    given = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    if family.types is not None:
        given[family.types] = torch.zeros_like(ids)
    return given


@cache
def stock_turn(family: StockFamily, rows: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    tokens: list[list[int]] = stock(model_of(family), chat(family, rows), max_new_tokens=NEW)
    return tokens


@every_kind
@pytest.mark.parametrize("method", [None, CHAIN, {"method": "specvlm", "draft": "self"}], ids=str)
def test_turns_of_a_chat(family: StockFamily, method: Any) -> None:
    """A later turn reads what is new, also beside a row without a past; a prompt that comes again
    reads its last token; a chat that is edited goes on from the last states before it; what shares
    a part of a prompt only reads all of it."""
    cached = PromptCache(1 << 28)
    target = Backbone(model_of(family))
    draft = Backbone(draft_of(family)) if method == CHAIN else None
    for each in (target, draft):
        if each is not None:
            each.prompt_cache = cached
    made = torch.Generator().manual_seed(4)
    # The readers of a probe are read again.
    least = READERS if method and method["method"] == "specvlm" else 1

    def words(count: int) -> list[int]:
        ids: list[int] = torch.randint(5, 150, (count,), generator=made).tolist()
        return ids

    def ask(rows: list[list[int]]) -> Any:
        given = chat(family, rows)
        result = answer_of((target, draft), given, method or "plain", max_new_tokens=NEW)
        assert result.tokens == stock_turn(family, tuple(map(tuple, rows)))
        assert cached.nbytes == cached.counted()
        return result

    first, other = words(21), words(17)
    said = ask([first, other]).tokens
    again = ask([first])
    assert again.stats.cached_tokens == 21 - least
    second = [*first, *said[0], *words(18)]
    assert ask([words(9), second]).stats.cached_tokens == 21 + NEW - 1
    assert ask([[*first, *said[0][:5], *words(12)]]).stats.cached_tokens == 21 - least
    assert ask([[*other[:9], *words(11)]]).stats.cached_tokens == (0 if least == 1 else 1)
    assert ask([[*other, *said[1], *words(20)]]).stats.cached_tokens == 17 + NEW - 1
    bytes_of_ends = sum(
        sum(states.nbytes for values in segment.end for states in values if states is not None)
        for tree in cached._trees.values()
        for segment in tree.segments()
    )
    assert 0 < bytes_of_ends < cached.nbytes


@every_kind
def test_turns_with_hidden_states(family: StockFamily) -> None:
    """The prompt of the first turn is not read again; its answer, of which the cache has no hidden
    states, is."""
    target = Backbone(model_of(family))
    target.prompt_cache = PromptCache(1 << 28)
    made = torch.Generator().manual_seed(4)
    rows: list[int] = []
    cached = []
    for count in (21, 9):
        rows += torch.randint(5, 150, (count,), generator=made).tolist()
        method = {"method": "specvlm", "draft": "self", "pruner": "uv"}
        given = chat(family, [rows])
        result = answer_of((target, None), given, method, max_new_tokens=NEW)
        assert result.tokens == stock_turn(family, (tuple(rows),))
        cached.append(result.stats.cached_tokens)
        rows = [*rows, *result.tokens[0]]
    assert cached == [0, 20]  # the last token is read again for its logits


def test_a_long_prompt_read_in_parts_is_kept() -> None:
    """Beside running rows."""
    family = RECURRENT[0]
    target = Backbone(model_of(family))
    target.prompt_cache = PromptCache(1 << 28)
    long = torch.randint(5, 150, (70,), generator=torch.Generator().manual_seed(4)).tolist()
    for cached_tokens in (0, 69):
        plan = from_dict({"method": "plain"}).plan(Models(target))
        session = Session(target, plan, Clock(Stats()))
        rows = []
        for seed, given in enumerate((prompts(family, (12,)), chat(family, [long]))):
            prepared = target.prepare(given, max_new_tokens=NEW)
            rows += session.add(prepared, [seed], given, {NAMESPACE: ""})
            if not seed:
                chunks = decode(session)
                list(islice(chunks, 3))
        for _ in chunks:
            pass
        assert rows[1].cached_tokens == cached_tokens
        assert rows[1].tokens == stock(target.model, given, max_new_tokens=NEW)[0]


@pytest.mark.parametrize("name", ["Qwen3_5", "Qwen3_5Moe"])
def test_clips(name: str) -> None:
    """Two frames of a clip in each of two rows."""
    family = next(each for each in RECURRENT if each.name == name)
    made = torch.Generator().manual_seed(3)
    clip = 202
    rows = []
    for length in (12, 19):
        words = torch.randint(5, 150, (length,), generator=made).tolist()
        rows.append(
            [*words[:2], 203, *[clip] * 4, 204, *words[2:5], 203, *[clip] * 4, 204, *words[5:]]
        )
    given = chat(family, rows)
    given["mm_token_type_ids"] = 2 * (given["input_ids"] == clip).long()
    given["pixel_values_videos"] = torch.randn(2 * 2 * 16, 96, generator=made)
    given["video_grid_thw"] = torch.tensor([[2, 4, 4]] * 2)
    model = model_of(family)
    result = draftlens.generate(
        model, given, draft=draft_of(family), method=CHAIN, max_new_tokens=NEW
    )
    assert result.tokens == stock(model, given, max_new_tokens=NEW)
    check_rounds(result.stats)


@every_kind
def test_rows_whose_prompts_end_in_different_parts(
    family: StockFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are at their ends while the third is read on, beside a running row."""
    monkeypatch.setattr(PartSize, "within", lambda self, seconds: 9)
    models = Models(Backbone.of(model_of(family)), Backbone.of(draft_of(family)))
    session = Session(models.target, from_dict(CHAIN).plan(models), Clock(Stats()))
    calls = [prompts(family, (12,)), prompts(family, (30, 11, 19))]
    rows: list[Any] = []
    for seed, given in enumerate(calls):
        prepared = session.target.prepare(given, max_new_tokens=NEW)
        rows += session.add(prepared, [seed] * len(prepared.input_ids), given)
        if not seed:
            chunks = decode(session)
            list(islice(chunks, 3))
    for _ in chunks:
        pass
    assert rows[1].in_parts
    model = session.target.model
    answers = [row for given in calls for row in stock(model, given, max_new_tokens=NEW)]
    assert [row.tokens for row in rows] == answers
