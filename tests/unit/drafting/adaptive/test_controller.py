"""The choices of the automatic tree, on simulated machines whose costs are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulation import (
    NEVER,
    Machine,
    Token,
    drawn_text,
    plain_seconds,
    play_auto,
    play_fixed,
)
from draftlens.core.tree import EMPTY, Topology, chain, cut, from_paths
from draftlens.drafting.adaptive import controller as policy
from draftlens.drafting.adaptive.controller import (
    EXPLORED_SHARE,
    LAST_PROBE,
    MAX_SAVINGS,
    Costs,
    PairHistory,
    RoundState,
    TreeController,
    best_for,
)
from draftlens.drafting.adaptive.costs import CostCurve, Expectation, ForwardCosts
from draftlens.drafting.adaptive.round_plan import MAX_NODES, TREES

FLAT = CostCurve((1, 64), (1.0, 1.0))
STAIRS = CostCurve((1, 3, 6, 9, 64), (1.0, 1.1, 2.2, 3.0, 3.2))


def scaled(curve: CostCurve, factor: float) -> CostCurve:
    return CostCurve(curve.widths, tuple(factor * seconds for seconds in curve.seconds))


def costs(target: CostCurve, draft: CostCurve) -> Costs:
    return Costs(ForwardCosts(target), ForwardCosts(draft))


def machine(target: CostCurve, draft: CostCurve) -> Machine:
    return Machine(target.cost, draft.cost, noise=0.0, accidents=0.0)


def history(target: CostCurve, draft: CostCurve) -> PairHistory:
    return PairHistory(costs(target, draft))


def shape(tree: Topology) -> tuple[int, int]:
    return tree.depth, len(tree)


def test_steps_of_the_curve_decide_the_length() -> None:
    """Chains end at the edge of a step."""
    draft = scaled(FLAT, 0.35)
    assert shape(best_for(costs(STAIRS, draft), 0.8)[0]) == (2, 2)
    flat = best_for(costs(FLAT, draft), 0.8)[0]
    assert flat.depth >= 3
    assert best_for(costs(STAIRS, draft), 0.2)[0] == EMPTY


def test_wide_levels_are_avoided_where_width_costs_something() -> None:
    cheap = best_for(costs(FLAT, scaled(FLAT, 0.1)), 0.6)[0]
    growing = CostCurve((1, 2, 4, 8, 64), (0.1, 0.2, 0.4, 0.8, 6.4))
    narrow = best_for(costs(FLAT, growing), 0.6)[0]
    assert len(narrow) < len(cheap)
    widest = max(map(len, narrow.children.values()))
    assert widest <= max(map(len, cheap.children.values()))


def test_no_tree_is_wider_than_what_was_measured() -> None:
    """Rows share a forward, so a batch of four has a quarter of the nodes."""
    short = CostCurve((1, 8), (1.0, 1.0))
    draft = scaled(FLAT, 0.01)
    assert len(best_for(costs(short, draft), 0.95)[0]) <= 7
    controller = TreeController(PairHistory(costs(short, draft)))
    assert len(controller.tree(RoundState(rows=4))) <= 1


@pytest.mark.parametrize("rows", [4, 9, 30])
def test_more_rows_than_any_known_width(rows: int) -> None:
    """The first round is plain; its timing is what the next rounds go by."""
    unknown = Costs(ForwardCosts(None), ForwardCosts(None, scale=0.1))
    controller = TreeController(PairHistory(unknown))
    at = RoundState(rows=rows)
    assert controller.tree(at) == EMPTY
    controller.judged(EMPTY, [()] * rows, seconds=1.0)
    for _ in range(20):
        tree = controller.tree(at)
        assert rows * (len(tree) + 1) <= 2 * unknown.target.largest
        controller.judged(tree, [tuple(range(len(tree)))] * rows, seconds=1.0)


def test_limits_hold_where_drafting_is_free() -> None:
    controller = TreeController(history(FLAT, scaled(FLAT, 1e-6)))
    tree = controller.tree(RoundState())
    assert len(tree) <= min(MAX_NODES, len(controller.limit))
    assert tree.depth <= TREES[0].depth


@pytest.mark.parametrize("ratio", [2, 3, 6, 20])
@pytest.mark.parametrize("curve", [FLAT, STAIRS], ids=["flat", "stairs"])
@pytest.mark.parametrize("length", [16, 64, 256])
def test_a_useless_draft_costs_two_percent_at_most(
    ratio: int, curve: CostCurve, length: int
) -> None:
    """In the first answer, when nothing is known of the draft."""
    draft = scaled(curve, 1 / ratio)
    text = drawn_text(length, 0.0, seed=1)
    played = play_auto(machine(curve, draft), [text], history(curve, draft))
    plain = plain_seconds(machine(curve, draft), [text])
    assert played.seconds <= (1 + EXPLORED_SHARE) * plain * 1.001


def test_an_answer_spends_what_earlier_ones_have_saved() -> None:
    """Answers too short to explore save for one that explores."""
    draft = scaled(FLAT, 0.5)
    kept = history(FLAT, draft)
    drafted = []
    for seed in range(8):
        played = play_auto(machine(FLAT, draft), [drawn_text(16, 0.95, seed)], kept)
        drafted.append(played.draft_seconds > 0)
    assert not drafted[0]
    assert all(drafted[-3:])


def test_the_balance_of_a_round_is_what_it_gained() -> None:
    controller = TreeController(history(FLAT, scaled(FLAT, 0.1)))
    controller.tree(RoundState(remaining=100))
    controller.drafted([1, 1], 0.2)
    controller.judged(chain(2), [(0, 1)], 1.0)
    assert controller._gained == pytest.approx(3 * 1.0 - 1.0 - 0.2)
    controller.judged(EMPTY, [()], 5.0)  # plain rounds neither gain nor lose
    assert controller._gained == pytest.approx(1.8)
    assert controller.emitted == 4


def test_rounds_of_a_batch_gain_what_their_rows_gain_on_average() -> None:
    controller = TreeController(history(FLAT, scaled(FLAT, 0.1)))
    controller.tree(RoundState(rows=2, remaining=100))
    controller.drafted([2], 0.1)
    controller.judged(chain(1), [(0,), ()], 1.0)
    assert controller.emitted == 1.5
    assert controller._gained == pytest.approx(1.5 - 1.1)


def test_confidence_decides_how_far_a_chain_grows() -> None:
    draft = scaled(FLAT, 0.2)
    kept = history(FLAT, draft)
    for seed in range(3):
        play_auto(machine(FLAT, draft), [drawn_text(200, 0.8, seed)], kept)

    def grown(confidence: float) -> int:
        controller = TreeController(kept)
        tree = controller.tree(RoundState(remaining=100))
        controller.caught_up(0, 0)
        depth = 1
        while controller.grown([confidence]) and depth < tree.depth:
            depth += 1
        return depth

    depths = [grown(value) for value in (0.1, 0.6, 0.9, 0.99)]
    assert depths == sorted(depths)
    assert depths[0] <= 2
    assert depths[-1] >= depths[0] + 3


def test_a_look_costs_one_draft_forward_and_may_turn_drafting_on() -> None:
    """The draft is useless at first and right later."""
    draft = scaled(FLAT, 0.2)
    text = [*drawn_text(60, 0.0, seed=3), *drawn_text(200, 0.95, seed=4)]
    played = play_auto(machine(FLAT, draft), [text], history(FLAT, draft))
    before = 60 + LAST_PROBE
    best = play_fixed(machine(FLAT, draft), [text[before:]], chain(8)).seconds
    assert played.seconds < before + 1.3 * best


def test_a_draft_that_hardly_pays_is_probed_seldom() -> None:
    """Every answer of a pair whose draft is useless would else pay for a probe."""
    draft = scaled(FLAT, 0.5)
    kept = history(FLAT, draft)
    play_auto(machine(FLAT, draft), [drawn_text(200, 0.0, seed=1)], kept)
    assert kept.savings > 1
    played = play_auto(machine(FLAT, draft), [drawn_text(60, 0.0, seed=2)], kept)
    assert played.draft_seconds == 0


def test_drafting_ends_soon_after_the_draft_has_become_useless() -> None:
    draft = scaled(FLAT, 0.5)
    kept = history(FLAT, draft)
    play_auto(machine(FLAT, draft), [drawn_text(200, 0.95, seed=5)], kept)
    text = drawn_text(200, 0.95, seed=6, until=0.5)
    played = play_auto(machine(FLAT, draft), [text], kept)
    useful = play_auto(machine(FLAT, draft), [text[:100]], kept).seconds
    assert played.seconds < useful + 100 * 1.08


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("wrong", ["flat", "slow", "fast", "cheap draft"])
def test_a_wrong_curve_is_corrected_within_eight_rounds(wrong: str, acceptance: float) -> None:
    """A stale file costs no more than eight plain rounds and what may be explored."""
    draft = scaled(FLAT, 0.3)
    real = STAIRS
    stale = {
        "flat": (FLAT, draft),
        "slow": (scaled(STAIRS, 3.0), draft),
        "fast": (scaled(STAIRS, 0.3), draft),
        "cheap draft": (STAIRS, scaled(draft, 0.2)),
    }[wrong]
    seconds = {"right": 0.0, "wrong": 0.0}
    for seed in range(5):
        text = drawn_text(200, acceptance, seed)
        for name, curves in (("right", (real, draft)), ("wrong", stale)):
            played = play_auto(machine(real, draft), [text], history(*curves))
            seconds[name] += played.seconds / 5
    assert seconds["wrong"] < seconds["right"] + 8 + EXPLORED_SHARE * 199


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("wrong", ["stairs", "dear draft"])
def test_a_curve_that_says_too_much_makes_no_answer_slower_than_plain(
    wrong: str, acceptance: float
) -> None:
    """Widths that seem too expensive are not tried, so they are corrected when models are loaded
    (`known_costs.calibrate`) and not here."""
    draft = scaled(FLAT, 0.3)
    stale = (STAIRS, draft) if wrong == "stairs" else (FLAT, scaled(draft, 4.0))
    for seed in range(5):
        text = drawn_text(200, acceptance, seed)
        played = play_auto(machine(FLAT, draft), [text], history(*stale))
        assert played.seconds < (1 + EXPLORED_SHARE) * 199


@pytest.mark.parametrize("slow", [0, 1, 3, 6])
def test_one_slow_timing_decides_nothing(slow: int) -> None:
    draft = scaled(FLAT, 0.2)
    text = drawn_text(300, 0.75, seed=7)

    quiet = play_auto(machine(FLAT, draft), [text], history(FLAT, draft)).seconds
    kept = history(FLAT, draft)
    kept.costs.target.record(slow + 1, 1.0, 5.0)
    shaken = play_auto(machine(FLAT, draft), [text], kept).seconds
    assert shaken < 1.02 * quiet


def test_concurrent_answers_share_costs_and_records_but_not_their_balance() -> None:
    kept = history(FLAT, scaled(FLAT, 0.1))
    first, second = TreeController(kept), TreeController(kept)
    for controller in (first, second):
        controller.tree(RoundState(remaining=100))
        controller.drafted([1], 0.1)
        controller.judged(chain(1), [(0,)], 1.0)
    assert first.rates.trials == second.rates.trials == 1
    assert first._gained == second._gained == pytest.approx(0.9)


def test_answers_save_what_they_do_not_lose() -> None:
    kept = history(FLAT, FLAT)
    for _ in range(30):
        controller = TreeController(kept)
        for _ in range(10):
            controller.tree(RoundState(remaining=100))
            controller.judged(EMPTY, [()], 1.0)
        controller.ended()
    assert 2 < kept.savings <= MAX_SAVINGS


def test_a_tree_wins_where_second_choices_are_often_right() -> None:
    """EAGLE's tree, or a better one, is found by what the rounds show."""
    draft = scaled(FLAT, 0.3)
    text = drawn_text(600, 0.4, seed=8)
    kept = history(FLAT, draft)
    play_auto(machine(FLAT, draft), [text], kept)
    played = play_auto(machine(FLAT, draft), [text], kept)
    chains = [play_fixed(machine(FLAT, draft), [text], chain(n)).seconds for n in (1, 2, 3, 5)]
    assert played.seconds < 0.95 * min(chains)
    assert any(tree.depth < len(tree) for tree in played.trees)
    two = from_paths([[0], [1]])
    assert played.seconds < 1.02 * play_fixed(machine(FLAT, draft), [text], two).seconds


def test_large_gains_are_not_spent_on_explorations() -> None:
    """The text may have changed since they were made."""
    controller = TreeController(history(FLAT, scaled(FLAT, 0.1)))
    controller.tree(RoundState(remaining=1000))
    for _ in range(50):
        controller.drafted([1, 1], 0.2)
        controller.judged(chain(2), [(0, 1)], 1.0)
    assert controller._gained > 50
    assert controller._allowance() < MAX_SAVINGS + EXPLORED_SHARE * 200


@pytest.mark.parametrize(
    ("ratio", "length", "remaining", "reads"),
    [
        (0.1, 3000, 200, True),
        (0.1, 3000, 3, False),  # the answer ends before that pays
        (0.1, 100_000, 200, False),  # a long prompt, a short answer
        (1.2, 1, 200, False),  # nothing pays, however often draft tokens are accepted
    ],
)
def test_a_prompt_is_read_if_that_can_pay(
    ratio: float, length: int, remaining: int, reads: bool
) -> None:
    controller = TreeController(history(FLAT, scaled(FLAT, ratio)))
    at = RoundState(pending=length, remaining=remaining)
    assert controller.may_read(at) is reads


@pytest.mark.parametrize(("remaining", "reads"), [(14, False), (64, True)])
def test_a_prompt_is_not_read_where_no_tree_may_be_tried(remaining: int, reads: bool) -> None:
    """What an answer may lose by drafting grows with its length."""
    controller = TreeController(history(STAIRS, scaled(FLAT, 0.5)))
    at = RoundState(pending=4, remaining=remaining)
    assert controller.history.reading_seconds(at) < 14 * controller._hoped_gain()
    assert controller.may_read(at) is reads
    tree = controller.tree(RoundState(pending=1, remaining=remaining))
    assert bool(tree) is reads


@pytest.mark.parametrize(("remaining", "reads"), [(14, False), (64, True)])
def test_a_prompt_is_not_read_where_no_probe_may_be_tried(remaining: int, reads: bool) -> None:
    """No tree is expected to pay, but at best one does."""
    costly = CostCurve((1, 2, 6, 64), (1.0, 1.3, 1.4, 3.0))
    kept = history(costly, scaled(FLAT, 0.6))
    kept.rates.ranks[0].mean = 0.4
    controller = TreeController(kept)
    at = RoundState(pending=4, remaining=remaining)
    assert controller.history.reading_seconds(at) < 14 * controller._hoped_gain()
    assert controller.may_read(at) is reads
    assert not controller.tree(RoundState(pending=1, remaining=remaining))


@pytest.mark.parametrize(("acceptance", "prompt"), [(0.1, 1920), (0.4, 2400), (0.6, 4200)])
def test_short_answers_rarely_read_a_prompt_in_vain(acceptance: float, prompt: int) -> None:
    """Drafting gains less than reading costs, and at the optimistic rate more."""
    draft = scaled(FLAT, 0.1)
    kept = PairHistory(Costs(ForwardCosts(FLAT), ForwardCosts(draft), chains_only=True))
    costly = replace(machine(FLAT, draft), prompt=prompt)
    texts = [drawn_text(14, acceptance, seed) for seed in range(40)]
    played = [play_auto(costly, [text], kept) for text in texts]
    assert any(each.draft_seconds > 0 for each in played[:3])
    plain = sum(plain_seconds(costly, [text]) for text in texts[3:])
    assert sum(each.seconds for each in played[3:]) < 1.04 * plain


@pytest.mark.parametrize("ratio", [0.3, 0.4])
@pytest.mark.parametrize("wrong", [2, 4, 6])
def test_a_bad_start_does_not_end_drafting(ratio: float, wrong: int) -> None:
    """A prompt was read, the first draft tokens are wrong, and all others right."""
    draft = scaled(FLAT, ratio)
    text = [Token(NEVER, 0.5)] * wrong + [Token(0, 0.9)] * 60
    costly = replace(machine(FLAT, draft), prompt=600)
    played = play_auto(costly, [text], history(FLAT, draft))
    assert played.seconds < 0.75 * plain_seconds(costly, [text])


def test_reading_is_considered_again_as_the_answer_grows() -> None:
    """By the time of the last prompts; the longer an answer, the longer its expected rest."""
    kept = history(FLAT, scaled(FLAT, 0.1))
    at = RoundState(pending=1000, remaining=1 << 20)
    for _ in range(2):
        early = TreeController(kept)
        assert early.may_read(at)
        early.has_read(1000, 100.0)
    late = TreeController(kept)
    answers = []
    for _ in range(200):
        answers.append(late.may_read(at))
        late.judged(EMPTY, [()], 1.0)
    assert not any(answers[:64])
    assert any(answers[64:])


def test_one_slow_reading_does_not_end_all_drafting() -> None:
    """The first one prepares kernels; what is called too slow would never be timed again."""
    kept = history(FLAT, scaled(FLAT, 0.1))
    at = RoundState(pending=1000, remaining=64)
    for seconds in (100.0, 1.0, 100.0):
        answer = TreeController(kept)
        assert answer.may_read(at)
        answer.has_read(1000, seconds)
    assert TreeController(kept).may_read(at)
    TreeController(kept).has_read(1000, 100.0)
    assert not TreeController(kept).may_read(at)


@pytest.mark.parametrize(
    ("rows", "length", "is_kept", "reads"),
    [
        (1, 30, False, True),
        (40, 30, False, False),  # a pass over so many rows with draft tokens costs more
        (1, 1000, False, False),  # an answer saves less than its prompt costs
        (1, 400, True, True),  # half of it counts where later turns may follow
        (1, 400, False, False),
    ],
)
def test_prompts_of_rows_that_join_are_read_if_that_pays(
    rows: int, length: int, is_kept: bool, reads: bool
) -> None:
    """After a refusal they wait for the length of an answer, or until half of the rows are left."""
    target = CostCurve((1, 40, 80, 160), (1.0, 1.5, 3.0, 6.0))
    controller = TreeController(history(target, scaled(FLAT, 0.1)))
    assert controller.may_read(RoundState(pending=4, remaining=64))
    for _ in range(2):
        controller.has_read(100, 10.0)
    for number in range(100):  # rows have come and gone
        controller.judged(chain(1), [(0,) if number % 5 else ()], 1.0)
    at = RoundState(rows, pending=length, remaining=64)
    assert controller.may_read(at, is_kept) is reads
    fewer = RoundState(max(rows - 1, 1), pending=4, remaining=64)
    answers = []
    for _ in range(70):
        answers.append(controller.may_read(fewer))
        controller.judged(EMPTY, [()], 1.0)
    assert any(answers[:60]) is reads
    if rows == 40:
        assert controller.may_read(RoundState(19, pending=4, remaining=64))


def test_what_a_round_is_expected_to_bring() -> None:
    """Tokens and seconds of the best tree; a draft that has missed tokens reads them first, and
    those of other drafters count as emitted."""
    growing = CostCurve((1, 64), (0.1, 6.4))
    chooser = TreeController(history(FLAT, growing))
    chooser.rates.ranks[0].mean = 0.9
    at = RoundState(pending=1, remaining=100)
    best, speed = best_for(chooser.history.costs, 0.9)
    expected = chooser.expected(at)
    assert expected.tokens > 2
    assert expected.speed() == pytest.approx(speed, rel=0.2)
    late = chooser.expected(RoundState(pending=11, remaining=100))
    assert late.tokens == expected.tokens
    further = growing.cost(11) - growing.cost(1)
    assert late.seconds == pytest.approx(expected.seconds + further)
    assert late.speed(0.5) < late.speed() < expected.speed()
    assert len(best)
    chooser.passed([3, 5])
    assert chooser.emitted == 4
    hopeless = TreeController(history(FLAT, scaled(FLAT, 10.0)))
    assert hopeless.expected(at) == Expectation(1.0, 1.0)


def test_short_answers_let_the_next_ones_explore_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a chain does not pay though it is nearly always right, answers of 14 tokens of at most
    256 lose less than if each was expected to be as long as a first one."""
    target = CostCurve((1, 2, 3, 4, 6, 9, 26), (0.50, 0.94, 1.36, 1.04, 1.16, 1.32, 2.01))
    simulated = machine(target, draft := scaled(target, 0.37))
    texts = [[drawn_text(14, 0.9, seed=number)] for number in range(20)]

    def speed() -> float:
        known = history(target, draft)
        played = [
            play_auto(simulated, text, known, seed=number, most=256).seconds
            for number, text in enumerate(texts)
        ]
        assert (known.usual_length < 20) is (policy.LATEST_SHARE > 0)
        return sum(plain_seconds(simulated, text) for text in texts) / sum(played)

    learned = speed()
    monkeypatch.setattr(policy, "LATEST_SHARE", 0.0)
    assert learned > 0.96 > 0.93 > speed()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("chance", [0.0, 0.02, 0.9])
def test_further_tokens_are_those_that_pay(rows: int, chance: float) -> None:
    """By trying each number of them; no forward is wider than what was measured."""
    widths = tuple(range(1, 65))
    rising = CostCurve(widths, tuple(1 + 0.02 * width for width in widths))
    controller = TreeController(history(rising, scaled(FLAT, 0.05)))
    at = RoundState(rows=rows)
    tree = controller.tree(at)
    controller.caught_up(0, 0)
    controller.grown([0.4] * rows)
    plan, size = controller._plan, len(cut(tree, 1))
    assert size > 0
    chances = [[chance ** (n + 1) for n in range(30 - row)] for row in range(rows)]

    def speed(count: int) -> float:
        gained = sum(sum(row[:count]) for row in chances) / rows
        seconds = plan.draft_seconds[1] + controller.history.costs.check(size + count, at)
        return (plan.tokens[1] + 0.4 * gained) / seconds

    found, saved = controller.further(chances)
    possible = range(64 // rows - size)
    assert speed(found) == pytest.approx(max(map(speed, possible[:31])))
    assert (found > 0) is (chance == 0.9)
    seconds = plan.draft_seconds[1] + controller.history.costs.check(size + found, at)
    assert saved == pytest.approx((speed(found) / speed(0) - 1) * seconds)


def test_accepted_further_tokens_say_nothing_of_the_draft() -> None:
    """They count as tokens of the answer, and the verification is as wide as all of them."""
    found = []
    controllers = [TreeController(history(STAIRS, scaled(FLAT, 0.2))) for _ in range(2)]
    for controller, path, further in zip(controllers, [(0, 1), (0, 1, 2, 3)], [0, 5], strict=True):
        controller.tree(RoundState())
        controller.judged(chain(2), [path], 1.0, further)
        target = controller.history.costs.target
        widths = [width for width in range(12) if target.has_timing(width)]
        found.append((controller.rates.first_choices, controller.emitted, widths))
    assert found[0][0] == found[1][0]
    assert [emitted for _, emitted, _ in found] == [3.0, 5.0]
    assert [widths for *_, widths in found] == [[3], [8]]


def test_a_model_that_takes_no_tree_gets_chains() -> None:
    """Also where a tree would bring more."""
    pair = costs(FLAT, scaled(FLAT, 0.1))
    tree = best_for(pair, 0.6)[0]
    assert tree.depth < len(tree)
    only_chains = best_for(replace(pair, chains_only=True), 0.6)[0]
    assert 1 < only_chains.depth == len(only_chains)


@pytest.mark.parametrize("is_copied", [False, True])
def test_copied_tokens_do_not_pay_for_a_prompt(is_copied: bool) -> None:
    """Where another drafter gains seven of eight tokens, drafting has few to save time of."""
    kept = history(FLAT, scaled(FLAT, 0.1))
    for _ in range(6):
        controller = TreeController(kept)
        controller.has_read(100, 10.0)
        for number in range(34):
            if is_copied and number % 8:
                controller.passed([2])
            else:
                controller.judged(chain(1), [(0,)], 1.0)
        controller.ended()
    assert kept.usual_length == pytest.approx(68, abs=1)
    assert kept.own_share == pytest.approx(5 / 34 if is_copied else 1.0, abs=0.15)
    for pending, reads in ((200, not is_copied), (1, True)):
        later = TreeController(kept)
        assert later.may_read(RoundState(pending=pending, remaining=64)) is reads
