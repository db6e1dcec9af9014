"""Rows: steps and seeds of the noise, and histories at the nodes of a tree. Where answers end,
though tokens arrive several at a time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from torch import Tensor
from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import Batch, Emission, History, Sequence, StoppingRules
from draftlens.core.tree import EMPTY, ROOT, Topology, chain, from_paths

TREE = from_paths([[0], [1], [0, 0], [1, 0], [1, 1]])


def said(*answers: list[int]) -> Batch:
    return batch_of(sequences(torch.tensor([[7, 8]] * len(answers)), answers))


def test_new_rows_are_empty() -> None:
    rows = sequences(torch.zeros(3, 2, dtype=torch.long), [[], [], []])
    assert (
        [row.tokens for row in rows],
        [row.from_draft for row in rows],
        [row.finished for row in rows],
    ) == (
        [[], [], []],
        [[], [], []],
        [False] * 3,
    )
    assert rows[0].tokens is not rows[1].tokens
    assert len(batch_of(rows)) == 3


def test_steps_and_seeds() -> None:
    rows, cpu = said([1, 2], [], [3]), torch.device("cpu")
    assert rows.steps(cpu).tolist() == [[2], [0], [1]]
    assert rows.seeds(cpu).tolist() == row_seeds(0, 3)


def test_history() -> None:
    assert said([1, 2], [3]).histories[1].ids().tolist() == [7, 8, 3]
    assert said([1, 2], [3]).histories[0].ids([5, 6]).tolist() == [7, 8, 1, 2, 5, 6]


def test_histories_hold_each_nodes_ancestors() -> None:
    rows, draft_tokens = (
        said([1], [2, 3]),
        torch.tensor([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]),
    )
    nodes = (4, ROOT, 1, 2)
    found = {}
    for group in rows.node_histories(range(2), [TREE] * 2, draft_tokens, [nodes] * 2):
        found |= {
            (group.index, nodes[index]): history
            for index, history in zip(group.nodes, group.ids.tolist(), strict=True)
        }
    assert found == {
        (0, ROOT): [7, 8, 1],
        (0, 1): [7, 8, 1, 11],
        (0, 2): [7, 8, 1, 10, 12],
        (0, 4): [7, 8, 1, 11, 14],
        (1, ROOT): [7, 8, 2, 3],
        (1, 1): [7, 8, 2, 3, 21],
        (1, 2): [7, 8, 2, 3, 20, 22],
        (1, 4): [7, 8, 2, 3, 21, 24],
    }


def test_histories_of_the_empty_tree() -> None:
    no_tokens = torch.empty(1, 0, dtype=torch.long)
    [group] = said([1]).node_histories([0], [EMPTY], no_tokens, [(ROOT,)])
    assert (group.index, group.nodes, group.ids.tolist()) == (0, [0], [[7, 8, 1]])


def test_a_history_does_not_change_when_its_sequence_grows() -> None:
    [row] = sequences(torch.tensor([[7, 8]]), [[1, 2]])
    before = row.history
    row.tokens.append(3)
    row.finished = True
    assert (before.tokens, before.last_token, before.finished) == ((1, 2), 2, False)
    assert before.ids([9]).tolist() == [7, 8, 1, 2, 9]
    assert row.history.tokens == (1, 2, 3)
    longer = before.extended([5, 6])
    assert (longer.tokens, longer.last_token) == ((1, 2, 5, 6), 6)
    assert before.tokens == (1, 2)


RULES = {
    "greedy": SamplingRule(),
    "warm": SamplingRule((hf.TemperatureLogitsWarper(0.5), hf.TopKLogitsWarper(4)), do_sample=True),
    "no repeats": SamplingRule((hf.NoRepeatNGramLogitsProcessor(2),)),
    "rejection": SamplingRule((hf.TemperatureLogitsWarper(2.0),), True, "rejection"),
    "drawn": SamplingRule(do_sample=True),
}


def mixed_rows(*names: str) -> tuple[Batch, list[Batch]]:
    """A batch whose rows belong to different calls, and each of its rows as a batch."""
    rows = []
    for number, name in enumerate(names):
        answer = [(number + step) % 3 for step in range(number + 1)]
        [row] = sequences(torch.tensor([[7, 8]]), [answer], RULES[name], seed=number)
        rows.append(row)
    return batch_of(rows), [batch_of([row]) for row in rows]


@pytest.mark.parametrize(
    "names",
    [
        ("greedy", "greedy"),
        ("greedy", "warm", "greedy"),
        ("no repeats", "rejection", "warm", "drawn"),
        ("drawn", "greedy", "no repeats"),
    ],
)
def test_rows_of_different_calls_are_scored_as_each_by_itself(names: tuple[str, ...]) -> None:
    """Trees that differ by row, processors that differ by row, and noise of each row's own."""
    torch.manual_seed(0)
    batch, alone = mixed_rows(*names)
    topologies: list[Topology] = [TREE, EMPTY, chain(2), TREE][: len(names)]
    logits, draft_tokens = torch.randn(len(names), 6, 9), torch.randint(0, 9, (len(names), 5))
    nodes = [(ROOT, *range(len(topology))) for topology in topologies]
    steps = batch.steps(logits.device) + torch.arange(6)
    before = logits.clone()
    scores = batch.process(logits, topologies, draft_tokens, nodes)
    ranking = batch.ranking(scores, steps)
    assert torch.equal(logits, before)
    for row, one in enumerate(alone):
        count, part = len(nodes[row]), slice(row, row + 1)
        expected = one.process(
            logits[part, :count], topologies[part], draft_tokens[part], nodes[part]
        )
        assert torch.equal(scores[part, :count], expected.to(scores.dtype))
        expected_ranking = one.ranking(expected, steps[part, :count])
        assert torch.equal(ranking[part, :count].double(), expected_ranking.double())
    assert batch.rejects is ("rejection" in names)
    assert sorted(row for rows in batch.rules.values() for row in rows) == [*range(len(names))]


PROMPT = 4
LIMIT = MaxLengthCriteria(PROMPT + 10)


def rows_of(*answers: list[int]) -> list[Sequence]:
    return sequences(torch.zeros(len(answers), PROMPT, dtype=torch.long), answers)


def histories_of(*answers: list[int]) -> list[History]:
    return [row.history for row in rows_of(*answers)]


def stopper(*criteria: Any) -> StoppingRules:
    return StoppingRules([LIMIT, *criteria], PROMPT)


class StopAt(StoppingCriteria):
    """Stops where the last two tokens are these; remembers what it was shown."""

    def __init__(self, *pair: int) -> None:
        self.pair, self.shown = list(pair), list[list[int]]()

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.shown.append(input_ids[0, PROMPT:].tolist())
        return (input_ids[:, -2:] == torch.tensor(self.pair)).all(-1)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3], (3, False)),
        ([9, 2, 3], (1, True)),
        ([1, 9, 3], (2, True)),
        ([1, 2, 9], (3, True)),
        ([1, 8, 9], (2, True)),
    ],
)
def test_the_first_of_several_eos_ends_the_answer(
    tokens: list[int], expected: tuple[int, bool]
) -> None:
    one = stopper(EosTokenCriteria([8, 9]))
    assert one.cut(histories_of([5], [5])[1], tokens) == Emission(*expected)
    assert stopper(EosTokenCriteria(8), EosTokenCriteria(9)).cut(
        histories_of([5], [5])[1], tokens
    ) == Emission(*expected)


@pytest.mark.parametrize(
    ("held", "expected"), [(6, (3, False)), (7, (3, True)), (8, (2, True)), (9, (1, True))]
)
def test_length_ends_the_answer_inside_an_accepted_run(
    held: int, expected: tuple[int, bool]
) -> None:
    assert stopper().cut(histories_of([1] * held)[0], [1, 2, 3]) == Emission(*expected)


def test_the_strictest_limit_counts_the_prompt_as_generate_does() -> None:
    assert stopper().max_new_tokens == 10
    assert stopper(MaxLengthCriteria(PROMPT + 3)).max_new_tokens == 3
    assert StoppingRules([MaxLengthCriteria(PROMPT)], PROMPT).max_new_tokens == 1


def test_other_criteria_are_asked_about_every_token() -> None:
    criterion = StopAt(2, 3)
    assert stopper(criterion).cut(histories_of([7])[0], [1, 2, 3, 4]) == Emission(3, True)
    assert criterion.shown == [[7, 1], [7, 1, 2], [7, 1, 2, 3]]
    criterion = StopAt(7, 1)  # a pair that begins in what was said before
    assert stopper(criterion).cut(histories_of([0], [7])[1], [1, 2]) == Emission(1, True)
    two = stopper(StopAt(4, 4), StopAt(2, 3))
    assert two.cut(histories_of([7])[0], [1, 2, 3]) == Emission(3, True)
    assert stopper(StopAt(4, 4)).cut(histories_of([7])[0], [1, 2, 3]) == Emission(3, False)


def test_criteria_are_not_asked_beyond_the_end() -> None:
    criterion = StopAt(2, 3)
    stopper(EosTokenCriteria(9), criterion).cut(histories_of([7])[0], [1, 9, 3])
    assert criterion.shown == [[7, 1]]


def test_room_is_that_of_the_shortest_running_row() -> None:
    rows = rows_of([1] * 3, [1] * 6, [1])
    for row in rows:
        row.stopping = stopper()
    assert [row.remaining for row in rows] == [7, 4, 9]
    assert max(row.remaining for row in rows) == 9
    rows[2].finished = True
    assert max(row.remaining for row in rows) == 7
    for row in rows:
        row.finished = True
    assert max(row.remaining for row in rows) == 0


# --- rows that advance in step

PAD, EOS, VOCAB = 0, 9, 7
"""EOS is an id of its own that tables hold now and then."""


class Recorder(StoppingCriteria):
    """Remembers the ids that it is called with."""

    def __init__(self) -> None:
        self.shown: list[list[list[int]]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Any:
        self.shown.append(input_ids.tolist())
        return self.decide(input_ids)

    def decide(self, ids: Tensor) -> Any:
        raise NotImplementedError


class OwnPair(Recorder):
    """Decides about each row by its own last two tokens."""

    def decide(self, ids: Tensor) -> Any:
        return ids[:, -2:].sum(-1) >= 11


class FirstRow(Recorder):
    """Looks at row 0 only, and decides about all rows."""

    def decide(self, ids: Tensor) -> Any:
        return torch.full((len(ids),), bool(ids[0, -1] == 5))


class FirstRowEnds(Recorder):
    """Looks at row 0 only, and decides about it only."""

    def decide(self, ids: Tensor) -> Any:
        met = torch.zeros(len(ids), dtype=torch.bool)
        met[0] = ids[0, -1] == 5
        return met


class OneBool(Recorder):
    """Returns a single truth value."""

    def decide(self, ids: Tensor) -> Any:
        return bool(ids[:, -1].sum() >= 5 * len(ids))


class Equal(Recorder):
    """Compares the rows with each other: a row ends where the next row has the same token."""

    def decide(self, ids: Tensor) -> Any:
        return ids[:, -1] == ids[:, -1].roll(1)


class Never(Recorder):
    """Is never met."""

    def decide(self, ids: Tensor) -> Any:
        return torch.zeros(len(ids), dtype=torch.bool)


Tables = list[list[int]]


def tables(seed: int, num_rows: int) -> Tables:
    """The tokens that a target would choose, whatever came before."""
    rng = random.Random(seed)
    choices = [*range(1, VOCAB), *range(1, VOCAB), *range(1, VOCAB), EOS]
    return [rng.choices(choices, k=20) for _ in range(num_rows)]


def stock_loop(criteria: list[Any], prompt: Tensor, choices: Tables) -> Tables:
    """The loop of stock `generate`: the answers without padding."""
    pads = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    ids = prompt
    unfinished = torch.ones(len(prompt), dtype=torch.long)
    lengths = [0] * len(prompt)
    step = 0
    while unfinished.max() != 0:
        tokens = torch.tensor([row[step] for row in choices])
        if pads:
            tokens = tokens * unfinished + PAD * (1 - unfinished)
        ids = torch.cat([ids, tokens[:, None]], dim=-1)
        step += 1
        for row in range(len(prompt)):
            if unfinished[row] or not pads:
                lengths[row] = step
        unfinished = unfinished & ~StoppingCriteriaList(criteria)(ids, None)
    return [row[:length] for row, length in zip(choices, lengths, strict=True)]


def several_at_a_time(criteria: list[Any], prompt: Tensor, choices: Tables, seed: int) -> Tables:
    """The same answers when random numbers of tokens arrive in each row and round."""
    rng = random.Random(seed)
    rules = StoppingRules(criteria, PROMPT, len(prompt), PAD)
    rows = sequences(prompt, [[] for _ in choices])
    while not all(row.finished for row in rows):
        assert all(len(row.tokens) < rules.max_new_tokens for row in rows)
        tokens = []
        for row, choice in zip(rows, choices, strict=True):
            begin = len(row.tokens)
            tokens.append(choice[begin : begin + rng.randint(1, 5)])
        emissions = rules.cut_in_step([row.history for row in rows], tokens)
        counts = {
            emission.count
            for row, emission in zip(rows, emissions, strict=True)
            if not row.finished and not emission.finished
        }
        assert len(counts) <= 1  # rows that go on stay in step
        for row, emission, new in zip(rows, emissions, tokens, strict=True):
            if not row.finished:
                row.append(new, emission, len(new))
    return [row.tokens for row in rows]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("num_rows", [2, 3])
@pytest.mark.parametrize("with_eos", [False, True], ids=["no eos", "eos"])
@pytest.mark.parametrize("make", [OwnPair, FirstRow, FirstRowEnds, OneBool, Equal, Never])
def test_rows_in_step_equal_the_loop_of_stock_generate(
    make: Callable[[], Recorder], with_eos: bool, num_rows: int, seed: int
) -> None:
    """The same answers, and the criterion is called with the same ids in the same order."""
    choices = tables(seed, num_rows)
    prompt = torch.arange(1, num_rows + 1)[:, None].expand(-1, PROMPT)
    slow, fast = make(), make()
    further = [EosTokenCriteria(EOS)] if with_eos else []
    expected = stock_loop([LIMIT, *further, slow], prompt, choices)
    assert several_at_a_time([LIMIT, *further, fast], prompt, choices, seed) == expected
    assert fast.shown == slow.shown


@pytest.mark.parametrize("with_eos", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_several_criteria_in_step(with_eos: bool, seed: int) -> None:
    choices = tables(seed, 3)
    prompt = torch.ones(3, PROMPT, dtype=torch.long)
    slow, fast = [FirstRowEnds(), OwnPair(), OneBool()], [FirstRowEnds(), OwnPair(), OneBool()]
    further = [EosTokenCriteria(EOS)] if with_eos else []
    expected = stock_loop([LIMIT, *further, *slow], prompt, choices)
    assert several_at_a_time([LIMIT, *further, *fast], prompt, choices, seed) == expected
    for ours, theirs in zip(fast, slow, strict=True):
        assert ours.shown == theirs.shown


def test_which_calls_advance_in_step() -> None:
    """A criterion may compare rows; and without an end-of-sequence id rows wait for each other."""
    eos, clock = EosTokenCriteria(EOS), MaxTimeCriteria(1000.0)
    for criteria, expected in (
        ([], False),
        ([eos], False),
        ([clock], True),
        ([eos, clock], False),
        ([Never()], True),
        ([eos, Never()], True),
        ([eos, clock, Never()], True),
    ):
        assert StoppingRules([LIMIT, *criteria], PROMPT, 2).in_step is expected
        assert StoppingRules([LIMIT, *criteria], PROMPT, 1).in_step is False


def test_a_row_alone_with_one_bool() -> None:
    """A single truth value counts for the one row that is shown."""

    class Long(Recorder):
        def decide(self, ids: Tensor) -> Any:
            return ids.shape[1] >= PROMPT + 3

    assert stopper(Long()).cut(histories_of([7])[0], [1, 2, 3]) == Emission(2, True)
