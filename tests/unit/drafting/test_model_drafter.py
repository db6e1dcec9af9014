"""The plan by which a draft grows a tree, and a drafter's bookkeeping on a scripted model."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import batch_of, sequences
from random_trees import random_tree
from torch import Tensor
from transformers.generation import logits_process as hf

from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Sequence
from draftlens.core.tree import (
    EAGLE_PATHS,
    EMPTY,
    ROOT,
    DraftTree,
    Topology,
    Verdict,
    chain,
    cut,
    from_paths,
)
from draftlens.decoding.plan import TargetContext
from draftlens.drafting import model_drafter
from draftlens.drafting.adaptive.controller import RoundState
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.draft_rows import DraftRows, levels
from draftlens.drafting.model_drafter import MOST_EVENTS, ModelDrafter
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

FORKED = from_paths([[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]])
EAGLE = from_paths(EAGLE_PATHS)


def line(topology: Topology, node: int) -> list[int]:
    return [] if node == ROOT else [node, *line(topology, topology.parents[node])]


@pytest.mark.parametrize(
    "topology",
    [
        *(chain(1), chain(4), FORKED, EAGLE),
        *(random_tree(random.Random(seed), least=1, most=12) for seed in range(15)),
    ],
)
def test_levels_equal_the_slow_twin(topology: Topology) -> None:
    above, held = (
        [ROOT],
        [],
    )  # the nodes whose logits are at hand; all nodes the draft has forwarded
    plan = levels(topology)
    assert len(plan) == topology.depth
    for depth, level in enumerate(plan, start=1):
        nodes = [node for node in range(len(topology)) if len(line(topology, node)) == depth]
        assert list(range(len(topology)))[level.nodes] == nodes
        assert [above[parent] for parent in level.parents] == [
            topology.parents[node] for node in nodes
        ]
        for node, rank in zip(nodes, level.ranks, strict=True):
            assert rank == sum(
                topology.parents[other] == topology.parents[node] for other in range(node)
            )
        above = [node for node in nodes if node in topology.parents]
        assert [nodes[index] for index in level.expanded] == above
        held += above
        expected = [[other in line(topology, node) for other in held] for node in above]
        end = level.first + len(above)
        assert level.window[level.first : end, :end].tolist() == expected
        assert level.sees_all is all(map(all, expected))


def test_the_empty_tree_has_no_levels() -> None:
    assert levels(EMPTY) == ()


class Scripted:
    """A draft backbone that always thinks that the next token is the last one plus 1, then plus 2,
    and so on."""

    device, vocab_size = torch.device("cpu"), 10
    prompt_cache = None
    plain_only = chains_only = ""

    def __init__(self, vocab_size: int = 10) -> None:
        self.vocab_size, self.seen = vocab_size, list[tuple[list[list[int]], list[list[int]]]]()

    def prepare_prompt(self, inputs: Any) -> Any:
        return inputs

    def encode(self, prepared: Any) -> Prompt:
        ids = prepared["input_ids"]
        rows, length = ids.shape
        positions = torch.arange(length).expand(rows, -1)
        return Prompt(ids, positions, [length] * rows, torch.full((rows, 1), length), ids < 0, {})

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        return KVCache(1, len(prompt.lengths), max(prompt.lengths) + room)

    def prefill(self, prompt: Prompt, cache: KVCache, attention: None = None) -> Tensor:
        return self.forward(prompt.embeds, prompt.position_ids, cache, None)

    def greedy_chain(self, *_: Any) -> None:
        """Chains are computed by `forward`."""

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        cache.update(tokens[:, None, :, None], tokens[:, None, :, None], 0)
        cache.advance(tokens.shape[1])
        self.seen.append((tokens.tolist(), position_ids.tolist()))
        distance = (torch.arange(self.vocab_size) - tokens[..., None] - 1) % self.vocab_size
        return -distance.float()


def begun(
    topology: Topology, rule: SamplingRule | None = None, vocab: int = 10, **more: Any
) -> tuple[ModelDrafter, list[Sequence]]:
    """Two rows with a prompt of three tokens and one token said."""
    prompt_ids = torch.tensor([[0, 0, 1], [0, 0, 5]])
    rows = sequences(prompt_ids, [[2], [6]], rule)
    prompt = Prompt(
        torch.zeros(2, 3),
        torch.arange(3)[None],
        [3, 3],
        torch.full((2, 1), 3),
        torch.zeros(2, 3),
        {},
    )
    model: Any = Scripted()
    drafter = ModelDrafter(DraftPromptBuilder(model), topology, vocab, **more)
    encoded = drafter.encode({"input_ids": prompt_ids})
    drafter.begin(batch_of(rows), encoded, TargetContext(prompt, KVCache(1, 2, 3), room=20))
    return drafter, rows


def cache_of(drafter: ModelDrafter) -> KVCache:
    assert drafter.rows.cache is not None
    return drafter.rows.cache


def held(drafter: ModelDrafter, row: int) -> list[int]:
    """Tokens in the draft's cache."""
    cache = cache_of(drafter)
    return cache.layers[0].keys[row, 0, : cache.lengths[row], 0].tolist()  # type: ignore[no-any-return]


def propose(drafter: ModelDrafter, rows: list[Sequence], budget: int) -> DraftTree:
    return drafter.propose(batch_of(rows), budget)


def tell(drafter: ModelDrafter, rows: list[Sequence], verdict: Verdict) -> None:
    for row, tokens in zip(rows, verdict.tokens, strict=True):
        if not row.finished:
            row.tokens.extend(tokens)
    drafter.update(verdict, batch_of(rows))


def test_a_chain_is_drafted_token_by_token_and_a_tree_level_by_level() -> None:
    drafter, rows = begun(chain(3))
    assert propose(drafter, rows, 3).tokens.tolist() == [[3, 4, 5], [7, 8, 9]]
    assert drafter.forwards == 3
    drafter, rows = begun(FORKED)
    tree = propose(drafter, rows, 9)
    assert tree.tokens[0].tolist() == [3, 4, 4, 5, 5, 6]
    assert tree.probs is None
    assert drafter.forwards == 3


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 9])
def test_a_budget_cuts_the_tree(budget: int) -> None:
    drafter, rows = begun(FORKED)
    tree = propose(drafter, rows, budget)
    assert tree.topologies == (cut(FORKED, budget),) * 2
    assert tree.tokens.shape == (2, len(tree.topologies[0]))
    assert drafter.forwards == min(budget, 3)


def test_accepted_tokens_are_not_forwarded_twice() -> None:
    drafter, rows = begun(chain(3))
    propose(drafter, rows, 3)
    tell(drafter, rows, Verdict(((0, 1, 2), ()), ((3, 4, 5, 0), (1,))))
    assert held(drafter, 0) == [0, 0, 1, 2, 3, 4]
    assert held(drafter, 1) == [0, 0, 5, 6]
    small: Any = drafter.prompts.backbone
    small.seen.clear()
    assert propose(drafter, rows, 1).tokens.tolist() == [[1], [2]]
    # The last draft token was never forwarded; row 1 has one token to catch up on and repeats it as
    # padding.
    assert small.seen == [([[5, 0], [1, 1]], [[6, 7], [4, 5]])]
    assert held(drafter, 0) == [0, 0, 1, 2, 3, 4, 5, 0]
    assert held(drafter, 1) == [0, 0, 5, 6, 1]


def test_a_tree_keeps_its_accepted_path() -> None:
    drafter, rows = begun(FORKED)
    propose(drafter, rows, 3)
    tell(drafter, rows, Verdict(((0, 3, 5), (1, 4)), ((3, 5, 6, 9), (8, 9, 0))))
    assert held(drafter, 0) == [0, 0, 1, 2, 3, 5]
    assert held(drafter, 1) == [0, 0, 5, 6, 8]
    assert drafter.rows.pending == [[6, 9], [9, 0]]


def test_a_round_without_draft_tokens_is_caught_up_on() -> None:
    drafter, rows = begun(chain(2))
    for token in (1, 2):
        propose(drafter, rows, 0)
        tell(drafter, rows, Verdict(((), ()), ((token,), (token + 1,))))
    assert drafter.forwards == 0
    assert propose(drafter, rows, 1).tokens.tolist() == [[3], [4]]
    assert held(drafter, 0) == [0, 0, 1, 2, 1, 2]


def test_a_finished_row_does_not_grow() -> None:
    drafter, rows = begun(chain(2))
    for _ in range(8):
        propose(drafter, rows, 2)
        rows[1].finished = True
        tell(drafter, rows, Verdict(((0, 1), ()), ((0, 0, 0), (0,))))
        assert cache_of(drafter).lengths[1] == 3
    assert cache_of(drafter).lengths[0] == 3 + 1 + 8 * 3 - 2


def test_rejection_needs_probabilities_of_all_inner_nodes() -> None:
    rule = SamplingRule((hf.TopKLogitsWarper(2),), do_sample=True, acceptance="rejection")
    drafter, rows = begun(FORKED, rule)
    tree = propose(drafter, rows, 3)
    assert tree.probs is not None
    assert tree.probs.shape == (2, len(FORKED.inner), 10)
    best = torch.tensor([1.0, 0.0]).double().softmax(-1)
    for row, root in enumerate((2, 6)):
        for index, node in enumerate(FORKED.inner):
            last = root if node == ROOT else int(tree.tokens[row, node])
            expected = torch.zeros(10, dtype=torch.float64)
            expected[[(last + 1) % 10, (last + 2) % 10]] = best
            assert torch.allclose(tree.probs[row, index], expected)


@pytest.mark.parametrize("vocab", [8, 10, 13])
def test_the_draft_speaks_the_vocabulary_of_the_target(vocab: int) -> None:
    """Smaller, equal, larger: processors bound to the target's ids work on the draft's scores
    too."""
    bad_words = hf.NoBadWordsLogitsProcessor([[vocab - 1], [3]])
    bad_words(
        torch.zeros(1, 1, dtype=torch.long), torch.zeros(1, vocab)
    )  # the target's prefill comes first
    drafter, rows = begun(chain(2), SamplingRule((bad_words,)), vocab)
    assert propose(drafter, rows, 2).tokens.tolist()[0] == [4, 5]
    assert propose(drafter, rows, 2).tokens.max() < min(vocab, 10)


class ScriptedController:
    """A controller of chains of three, of which it verifies as many levels as are grown."""

    def __init__(self, levels: int = 3) -> None:
        self.levels = levels
        self.told: list[Any] = []
        self.confidences: list[list[float]] = []
        self.may = True
        self.asked: list[Any] = []

    @property
    def kept_depth(self) -> int:
        return min(len(self.confidences), self.levels)

    def may_read(self, at: RoundState, is_kept: bool) -> bool:
        self.asked.append((at, is_kept))
        return self.may

    def has_read(self, num_tokens: int, seconds: float) -> None: ...

    def tree(self, at: RoundState) -> Topology:
        self.told = [at]
        self.confidences = []
        return chain(3)

    def caught_up(self, hits: int, misses: int) -> Topology:
        self.told.append((hits, misses))
        return chain(3)

    def grown(self, confidences: list[float]) -> bool:
        self.confidences.append(confidences)
        return len(self.confidences) < self.levels

    def drafted(self, *given: Any) -> None:
        self.told.append(given)

    def judged(self, *given: Any) -> None:
        self.told.append(given)


def test_the_time_of_reading_prompts_ends_with_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU it would end with the launch."""
    now, heard = [0.0], list[Any]()

    def wait(device: torch.device) -> None:
        now[0] += 5

    controller = ScriptedController()
    monkeypatch.setattr(controller, "has_read", lambda *given: heard.append(given))
    monkeypatch.setattr(model_drafter, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(model_drafter, "wait_for", wait)
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    propose(drafter, rows, 9)
    assert heard == [(6, 5.0)]  # two prompts of three tokens


def test_an_answer_that_ends_with_copied_tokens_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = list[Any]()
    controller = ScriptedController()
    monkeypatch.setattr(controller, "passed", calls.append, raising=False)
    monkeypatch.setattr(controller, "ended", lambda: calls.append("ended"), raising=False)
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    for ended in (1, 2):
        drafter.pause()
        for row in rows[:ended]:
            row.finished = True
        drafter.follow(Verdict(((0, 1), ()), ((3, 4, 5), (7,))), batch_of(rows))
        assert calls == [[3, 1], [3, 1], "ended"][: 2 * ended - 1]


def test_a_tuner_is_told_what_drafting_and_checking_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was accepted of the rows that go on. It is asked for by the kind of prompt."""
    now, asked = [0.0], list[Any]()
    forward = Scripted.forward

    def slow(self: Scripted, *given: Any) -> Tensor:
        now[0] += 1
        return forward(self, *given)

    controller = ScriptedController()
    monkeypatch.setattr(Scripted, "forward", slow)
    monkeypatch.setattr(model_drafter, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    drafter, rows = begun(chain(9), controllers=lambda kind: asked.append(kind) or controller)
    assert asked == ["text"]
    keep = drafter.rows.keep

    def slow_keep(*given: Any) -> None:
        now[0] += 7
        keep(*given)

    monkeypatch.setattr(drafter.rows, "keep", slow_keep)
    cached = 3
    for budget, depth in ((9, 3), (2, 2), (0, 0)):
        propose(drafter, rows, budget)
        now[0] += 50  # the target checks
        rows[1].finished = budget == 2
        path = (0,) if depth else ()
        length = rows[0].tokens
        at = RoundState(2, 3 + len(length), cached, len(drafter.rows.pending[0]), budget + 1)
        tell(drafter, rows, Verdict((path, path), ((3,) * (len(path) + 1),) * 2))
        running = [path] if budget == 2 else [path, path]
        widths = [2] * depth
        agreement = [(0, 0)] if depth else []
        assert controller.told == [
            at,
            *agreement,
            (widths, len(widths)),
            (chain(depth), running, 57, 0),  # what the draft takes to keep tokens included
        ]
        cached = max(cache_of(drafter).lengths)


def test_growth_ends_where_the_tuner_ends_it() -> None:
    """What was forwarded and accepted is kept, also if its level was not verified."""
    controller = ScriptedController(levels=2)
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    tree = propose(drafter, rows, 9)
    assert tree.topologies == (chain(2), chain(2))
    assert tree.tokens.tolist() == [[3, 4], [7, 8]]
    assert drafter.forwards == 2
    tell(drafter, rows, Verdict(((0, 1), (0,)), ((3, 4, 5), (7, 9))))
    assert held(drafter, 0) == [0, 0, 1, 2, 3]
    assert drafter.rows.pending == [[4, 5], [9]]
    controller.levels = 1
    controller.grown = lambda confidences: not controller.confidences.append(confidences)  # type: ignore[method-assign, func-returns-value]
    tree = propose(drafter, rows, 9)
    assert tree.topologies[0] == chain(1)
    assert drafter.forwards == 2 + 3
    tell(drafter, rows, Verdict(((0,), ()), ((6, 8), (1,))))
    assert held(drafter, 0) == [0, 0, 1, 2, 3, 4, 5, 6]
    assert drafter.rows.pending == [[8], [1]]


def test_a_tuner_may_give_up_after_the_draft_has_caught_up() -> None:
    controller = ScriptedController()
    controller.caught_up = lambda hits, misses: EMPTY  # type: ignore[method-assign]
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    tree = propose(drafter, rows, 9)
    assert tree.topologies == (EMPTY, EMPTY)
    tell(drafter, rows, Verdict(((), ()), ((9,), (4,))))
    assert held(drafter, 0) == [0, 0, 1, 2]
    assert drafter.rows.pending == [[9], [4]]


@pytest.mark.parametrize(
    ("pending", "agreement"),
    [([[2, 3, 4], [6, 7, 9]], (3, 1)), ([[2, 3], [6]], (1, 0)), ([[2], [6]], (0, 0))],
)
def test_late_tokens_tell_what_the_draft_would_have_drafted(
    pending: list[list[int]], agreement: tuple[int, int]
) -> None:
    drafter, rows = begun(chain(1))
    drafter.rows.begin_round()
    drafter.rows.pending = pending
    controller: Any = object()  # it alone asks
    drafter.controller = controller
    drafter._catch_up(batch_of(rows))
    assert drafter._agreement == agreement


def joined(drafter: ModelDrafter, rows: list[Sequence], *answers: list[int]) -> None:
    """Further rows with prompts of four tokens join."""
    prompt_ids = torch.tensor([[0, 0, 0, 3]] * len(answers))
    more = sequences(prompt_ids, answers)
    encoded = drafter.encode({"input_ids": prompt_ids})
    prompt = Scripted().encode({"input_ids": prompt_ids})
    context = TargetContext(prompt, KVCache(1, len(answers), 4), room=20)
    drafter.begin(batch_of(more), encoded, context)
    rows += more


@pytest.mark.parametrize("topology", [chain(3), FORKED])
def test_rows_join_and_leave_between_rounds(topology: Topology) -> None:
    drafter, rows = begun(topology)
    propose(drafter, rows, 3)
    tell(drafter, rows, Verdict(((0,), ()), ((3, 9), (1,))))
    joined(drafter, rows, [4], [8])
    tree = propose(drafter, rows, 3)
    assert tree.tokens[:, 0].tolist() == [0, 2, 5, 9]
    assert held(drafter, 2)[:5] == [0, 0, 0, 3, 4]
    tell(drafter, rows, Verdict(((), (), (0,), ()), ((5,), (6,), (5, 7), (1,))))
    drafter.remove(0)
    rows[0] = rows.pop()
    assert drafter.rows.prompt_lengths == [4, 3, 4]
    tree = propose(drafter, rows, 3)
    assert tree.tokens[:, 0].tolist() == [2, 7, 8]
    assert held(drafter, 0)[:6] == [0, 0, 0, 3, 8, 1]
    assert held(drafter, 1)[:6] == [0, 0, 5, 6, 1, 6]
    assert held(drafter, 2)[:7] == [0, 0, 0, 3, 4, 5, 7]
    drafter.remove(2)
    rows.pop()
    assert propose(drafter, rows, 3).tokens[:, 0].tolist() == [2, 7]


def test_prompts_are_given_up_when_too_many_rows_have_joined() -> None:
    """And read again later: of the rows that are left, each once, as if they had just joined."""
    controller = ScriptedController()
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    propose(drafter, rows, 3)
    tell(drafter, rows, Verdict(((0,), ()), ((3, 9), (1,))))
    joined(drafter, rows, [4])
    assert drafter.rows.prompt_lengths == [3, 3, 4]
    controller.may = False
    joined(drafter, rows, [8])
    assert drafter.cache_bytes == 0
    assert controller.asked[1:] == [
        (RoundState(count, 5, 4, 4, remaining=21), False) for count in (3, 4)
    ]
    forwards = drafter.forwards
    assert propose(drafter, rows, 3).topologies == (EMPTY,) * 4
    tell(drafter, rows, Verdict(((),) * 4, ((2,), (3,), (5,), (9,))))
    drafter.remove(1)
    rows[1] = rows.pop()
    assert drafter.forwards == forwards
    controller.may = True
    tree = propose(drafter, rows, 3)
    assert tree.tokens[:, 0].tolist() == [3, 0, 6]
    assert [held(drafter, row)[: 3 + (row > 0)] for row in range(3)] == [
        [0, 0, 1],
        [0, 0, 0, 3],
        [0, 0, 0, 3],
    ]


def test_the_targets_cache_is_not_kept_for_prompts_that_wait() -> None:
    drafter, _ = begun(chain(9), controllers=lambda kind: ScriptedController())
    cache = KVCache(1, 1, 4)
    kept = weakref.ref(cache)
    prompt = Scripted().encode({"input_ids": torch.tensor([[0, 0, 0, 3]])})
    more = sequences(prompt.embeds, [[4]])
    drafter.begin(batch_of(more), {}, TargetContext(prompt, cache, room=20))
    del cache
    gc.collect()
    assert kept() is None


def prompts_read(drafter: ModelDrafter) -> list[int]:
    """How many rows each prefill had."""
    backbone: Any = drafter.prompts.backbone
    return [len(ids) for ids, positions in backbone.seen if len(ids[0]) > 2]


def test_prompts_of_rows_that_have_left_are_not_read_again() -> None:
    """Where each row has joined by itself; however many have come and gone, none is kept."""
    controller = ScriptedController()
    controller.may = False
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    for number in range(100):
        joined(drafter, rows, [4])
        assert propose(drafter, rows, 3).num_nodes == 0
        drafter.remove(number % 2)
        rows[number % 2] = rows.pop()
    controller.may = True
    assert prompts_read(drafter) == []
    assert propose(drafter, rows, 3).tokens[:, 0].tolist() == [5, 5]
    assert prompts_read(drafter) == [1, 1]


def test_prompts_stay_read_where_the_list_of_rows_would_grow() -> None:
    """Rows that have joined together leave apart, so that how they joined has to be replayed."""
    controller = ScriptedController()
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    propose(drafter, rows, 3)
    for _ in range(MOST_EVENTS):
        joined(drafter, rows, [4], [4])
        for row in (0, 1):
            drafter.remove(row)
            rows[row] = rows.pop()
        propose(drafter, rows, 3)
        tell(drafter, rows, Verdict(((), ()), ((4,), (4,))))
    controller.may = False
    joined(drafter, rows, [4], [4])
    assert len(drafter.rows.prompt_lengths) == len(rows) == 4


def test_each_row_draws_with_its_own_noise() -> None:
    """Rejection sampling: a row's draft tokens do not depend on the rows beside it."""
    rule = SamplingRule(do_sample=True, acceptance="rejection")
    drafter, rows = begun(FORKED, rule)
    both = propose(drafter, rows, 3)
    drafter, rows = begun(FORKED, rule)
    drafter.remove(0)
    del rows[0]
    assert torch.equal(propose(drafter, rows, 3).tokens, both.tokens[1:])


def two_rounds(levels: int) -> list[Any]:
    """All that shows in two rounds of a controller that ends the growth at a level."""
    controller = ScriptedController(levels)
    drafter, rows = begun(chain(9), controllers=lambda kind: controller)
    found: list[Any] = []
    for verdict in (
        Verdict(((0,), (0,)), ((3, 1), (7, 1))),
        Verdict(((), ()), ((5,), (5,))),
    ):
        found.append(propose(drafter, rows, 9).tokens.tolist())
        assert len(controller.confidences) == levels
        found += [controller.confidences, drafter.rows.widths, drafter.forwards]
        tell(drafter, rows, verdict)
        found += [held(drafter, 0), held(drafter, 1), drafter.rows.pending]
    return found


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_a_chain_at_once_is_the_one_that_grows_level_by_level(
    levels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = two_rounds(levels)
    monkeypatch.setattr(DraftRows, "run_on", lambda *_: None)
    assert at_once == two_rounds(levels)
