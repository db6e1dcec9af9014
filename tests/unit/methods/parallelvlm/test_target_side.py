"""The target's side of a draft worker, whose messages a test writes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import batch_of, sequences

from draftlens.core.errors import InputError
from draftlens.core.sampling import SamplingRule
from draftlens.core.sequence import Sequence
from draftlens.core.stats import Clock, Stats
from draftlens.core.timeline import DISCARDED, Span
from draftlens.core.tree import DraftTree, Verdict, chain
from draftlens.decoding.plan import TargetContext
from draftlens.methods.parallelvlm import worker_session as module
from draftlens.methods.parallelvlm.drafters import ParallelDrafter
from draftlens.methods.parallelvlm.messages import (
    Arrive,
    Close,
    Decide,
    DraftToken,
    DraftTokens,
    Failed,
    Joined,
    Leave,
    Open,
    Read,
    WorkerLostError,
)
from draftlens.methods.parallelvlm.schedule import Schedule
from draftlens.methods.parallelvlm.target_side import OwnPrompt
from draftlens.methods.parallelvlm.worker_session import DraftForward, Row
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prompt

VOCAB = 100
FIRST = 40
"""The token of the prefill of every row; row r's further tokens count up from it."""


class WrittenLink:
    """A link whose messages are those in `inbox`; what the target sends is in `sent`."""

    cores = 1
    processes = (4711,)

    def __init__(self, refuses: dict[type, Exception] | None = None) -> None:
        self.refuses = refuses or {}
        self.sent: list[Any] = []
        self.inbox: list[Any] = []
        self.forgotten: list[int] = []
        self.lost: str | None = None
        self.slow_waits = 0  # waits that end without the messages that are on their way

    def new_answer(self) -> int:
        if int in self.refuses:
            raise self.refuses[int]
        return 3

    def send(self, message: Any) -> None:
        if type(message) in self.refuses:
            raise self.refuses[type(message)]
        self.sent.append(message)

    def forget(self, answer: int) -> None:
        self.forgotten.append(answer)
        self.inbox.clear()

    def receive(self, answer: int, timeout: float) -> list[Any]:
        if self.lost is not None and not self.inbox:
            raise WorkerLostError(self.lost)
        if self.slow_waits:
            self.slow_waits -= 1
            return []
        messages, self.inbox = self.inbox, []
        return messages

    def join(self, cache_bytes: int = 10) -> None:
        self.inbox.append(Joined(3, 8, 2, cache_bytes, (), (Span("draft", "prefill", 0.0, 0.5),)))

    def draft(self, row: int, position: int, tokens: Seq[int], epoch: int = 0) -> None:
        """One forward of 10 ms for each token."""
        for index, token in enumerate(tokens, position):
            draft_token = DraftToken(row, epoch, index, token)
            span = Span("draft", "draft", float(index), index + 0.01, tokens=1)
            self.inbox.append(DraftTokens(3, (draft_token,), 20, span))


class Serial:
    """Takes the place of the serial drafter and notes its calls."""

    max_nodes = 2
    forwards = 0
    cache_bytes = 0
    needs_target_scores = False
    readings = frozenset[Any]()

    def __init__(self) -> None:
        self.calls: list[str] = []

    def encode(self, inputs: Any) -> Any:
        self.calls.append("encode")
        return None

    def begin(self, batch: Any, encoded: Any, context: Any) -> None:
        self.calls.append("begin")

    def propose(self, batch: Any, budget: int) -> DraftTree:
        self.calls.append("propose")
        return DraftTree.uniform(chain(1), torch.zeros(len(batch), 1, dtype=torch.long))

    def update(self, verdict: Any, batch: Any) -> None:
        self.calls.append("update")

    def remove(self, row: int) -> None:
        self.calls.append("remove")


class Target:
    """A session's side: rows that gain tokens."""

    def __init__(self, link: WrittenLink | None, schedule: Schedule, num_rows: int = 1) -> None:
        self.link = link
        self.serial = Serial()
        serial: Any = self.serial
        self.drafter = ParallelDrafter(link, OwnPrompt(), schedule, VOCAB, serial)
        self.rows: list[Sequence] = sequences(torch.ones(num_rows, 4).long(), [[]] * num_rows)
        self.clock = Clock(Stats())

    def announce(self) -> None:
        self.drafter.announce(batch_of(self.rows), {}, 50, observed=False)

    def begin(self) -> None:
        for row in self.rows:
            row.tokens.append(FIRST)
        prompt: Any = SimpleNamespace(spec=Prompt)
        context = TargetContext(prompt=prompt, cache=KVCache(0, 0, 0))
        self.drafter.begin(batch_of(self.rows), self.drafter.encode({}), context)

    def propose(self, budget: int = 20) -> list[list[int]]:
        tree = self.drafter.propose(batch_of(self.rows), budget)
        tokens = zip(tree.topologies, tree.tokens.tolist(), strict=True)
        return [row[: len(topology)] for topology, row in tokens]

    def gain(self, *tokens: Seq[int]) -> None:
        for row, more in zip(self.rows, tokens, strict=True):
            row.tokens.extend(more)
        self.drafter.update(Verdict((), ()), batch_of(self.rows))
        self.drafter.ahead.record(self.clock)

    @property
    def last_sent(self) -> Any:
        assert self.link is not None
        return self.link.sent[-1]


def begun(schedule: Schedule, draft_tokens: Seq[int], num_rows: int = 1) -> Target:
    """A target whose worker has read the prompts and written some tokens for row 0."""
    link = WrittenLink()
    target = Target(link, schedule, num_rows)
    target.announce()
    link.join()
    link.draft(0, 0, draft_tokens)
    target.begin()
    return target


def test_the_messages_of_an_answer() -> None:
    target = begun(Schedule(3), [FIRST, 41, 42])
    assert target.link is not None
    opened, arrival, decided = target.link.sent
    assert isinstance(opened, Open)
    assert isinstance(arrival, Arrive)
    assert (arrival.rows, arrival.room, arrival.limit) == ((0,), 50, 3)
    assert isinstance(decided, Decide)
    [decision] = decided.decisions
    assert (decision.start, decision.tokens, decision.limit) == (0, (FIRST,), 6)
    assert target.propose() == [[41, 42]]
    assert target.drafter.processes() == (4711,)
    target.link.draft(0, 3, [43, 44, 45])
    target.gain([41, 42, 43])
    [decision] = target.last_sent.decisions
    assert (decision.start, decision.tokens, decision.limit) == (1, (41, 42, 43), 9)
    assert not decision.finished
    target.drafter.ahead.close()
    target.drafter.ahead.close()
    assert isinstance(target.last_sent, Close)
    assert target.link.forgotten == [3]


REFUSALS: list[dict[type, Exception]] = [
    {int: WorkerLostError("gone")},
    {Open: WorkerLostError("gone")},
    {Open: TypeError("a pruner with a lock")},
    {Arrive: AttributeError("a local function")},
]


@pytest.mark.parametrize("refuses", [None, *REFUSALS])
def test_without_a_worker_the_serial_drafter_drafts(
    refuses: dict[type, Exception] | None,
) -> None:
    link = None if refuses is None else WrittenLink(refuses)
    target = Target(link, Schedule(2))
    target.announce()
    target.begin()
    assert target.propose() == [[0]]
    target.gain([41])
    target.drafter.remove(0)
    target.drafter.ahead.close()
    assert target.serial.calls == ["encode", "begin", "propose", "update", "remove"]
    assert target.drafter.ahead.lost is None
    assert target.drafter.processes() == ()
    assert target.clock.stats.lanes == {}
    if link is not None and int not in link.refuses:
        assert link.forgotten == [3]


@pytest.mark.parametrize("window", [None, 2], ids=["measured", "two"])
def test_a_worker_that_is_lost_leaves_empty_trees(window: int | None) -> None:
    target = begun(Schedule(window), [FIRST, 41, 42, 43])
    assert target.link is not None
    assert target.propose()[0][:1] == [41]
    target.link.lost = "killed"
    target.gain([50])
    assert target.propose() == [[]]
    target.gain([51])
    assert target.propose() == [[]]
    assert target.drafter.ahead.lost == "killed"
    assert target.clock.stats.worker_lost == "killed"
    assert target.serial.calls == []
    target.drafter.ahead.close()


def test_a_silent_worker_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def clock() -> float:
        now[0] += 0.3
        return now[0]

    monkeypatch.setattr(module.time, "perf_counter", clock)
    target = begun(Schedule(1), [FIRST])
    now[0] += 1000.0  # a consumer that pauses, or a long pass, is no silence of the worker
    assert target.link is not None
    target.link.draft(0, 1, [41])
    target.link.slow_waits = 3
    target.gain([41])
    assert target.drafter.ahead.lost is None
    target.gain([42])
    assert target.drafter.ahead.lost == f"it has been silent for {module.PATIENCE:.1f} s"


def test_a_worker_that_never_joins_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_TO_READ", 0.05)
    monkeypatch.setattr(module, "PATIENCE", 0.01)
    target = Target(WrittenLink(), Schedule(1))
    target.announce()
    target.begin()
    assert target.drafter.ahead.lost == "it has been silent for 0.1 s"
    measured = Target(WrittenLink(), Schedule())
    measured.announce()
    measured.begin()
    assert measured.propose() == [[]]  # the target does not wait for a worker that reads
    assert measured.drafter.ahead.lost is None


def test_errors_of_the_caller_raise_and_others_lose_the_worker() -> None:
    target = begun(Schedule(2), [FIRST, 41])
    assert target.link is not None
    target.link.inbox.append(Failed(3, RuntimeError("MemoryError: none left")))
    target.gain([41])
    assert target.propose() == [[]]
    assert target.drafter.ahead.lost == "MemoryError: none left"
    target = begun(Schedule(2), [FIRST, 41])
    assert target.link is not None
    target.link.inbox.append(Failed(3, InputError("a clip is missing")))
    with pytest.raises(InputError, match="a clip is missing"):
        target.gain([41])


def test_what_is_counted() -> None:
    target = begun(Schedule(4), [FIRST, 41, 42, 43])
    assert target.link is not None
    assert target.propose() == [[41, 42, 43]]
    target.link.draft(0, 4, [44, 45, 46, 47])
    target.gain([41, 50])  # 42 and all after it are rejected
    stats = target.clock.stats
    assert (stats.corrections, target.drafter.forwards, target.drafter.cache_bytes) == (1, 8, 20)
    assert (stats.visual, stats.kept) == (8, 2)
    assert stats.lanes["draft"] == {"prefill": 0.5, "draft": pytest.approx(0.08)}
    assert target.propose() == [[]]
    target.link.draft(0, 3, [51, 52, 53, 54], epoch=1)
    target.gain([51])
    assert target.propose() == [[52, 53, 54]]
    stats.emitted = 5
    assert stats.mean_run_length == 4.0
    assert stats.corrections == 1


def test_forwards_whose_tokens_are_all_rejected_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    target = begun(Schedule(4), [FIRST, 41, 42, 43])
    assert target.link is not None
    spans: list[Span] = []
    monkeypatch.setattr(target.clock, "add_spans", spans.extend)
    target.propose()
    target.link.draft(0, 4, [44, 45, 46, 47])
    target.gain([41, 50])
    outcomes = {span.start: span.outcome for span in spans if span.kind == "draft"}
    rejected = [start for start, outcome in outcomes.items() if outcome == DISCARDED]
    assert rejected == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    assert sorted(outcomes) == [0.0, 1.0, *rejected]


@pytest.mark.parametrize("most", [1, 9], ids=["one by one", "at once"])
def test_tokens_of_an_old_epoch_are_dropped(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they come with those of the new epoch or before them."""
    target = begun(Schedule(2), [FIRST, 41])
    link = target.link
    assert link is not None

    def receive(answer: int, timeout: float) -> list[Any]:
        messages, link.inbox = link.inbox[:most], link.inbox[most:]
        return messages

    monkeypatch.setattr(link, "receive", receive)
    assert target.propose() == [[41]]
    link.draft(0, 2, [42, 43])
    target.gain([50])
    assert target.propose() == [[]]
    link.draft(0, 4, [44])  # written before the worker knew
    link.draft(0, 2, [51, 52], epoch=1)
    target.gain([51])
    assert target.propose() == [[52]]


@pytest.mark.parametrize(
    ("written", "corrected", "corrections"),
    [([FIRST, 41, 42, 43, 44, 45], [], 0), ([FIRST, 50, 51, 52], [42, 43, 44, 45], 1)],
    ids=["accepted", "rejected"],
)
def test_tokens_that_come_late_are_compared_with_the_answer(
    written: list[int], corrected: list[int], corrections: int
) -> None:
    """The worker reads its prompt while the target decodes plainly."""
    schedule = Schedule()
    target = Target(WrittenLink(), schedule)
    assert target.link is not None
    target.announce()
    target.begin()
    assert target.propose() == [[]]
    target.gain([41])
    target.link.join()
    target.link.draft(0, 0, written)
    target.link.draft(0, 2, corrected, epoch=1)
    target.gain([42])
    assert target.propose() == [[43, 44, 45][: schedule.window]]
    assert target.drafter.ahead.done.corrections == corrections


def test_a_draft_that_is_stopped_writes_nothing() -> None:
    schedule = Schedule()
    target = begun(schedule, [FIRST, 41, 42, 43])
    assert target.link is not None
    schedule.drafts = False
    assert target.propose() == [[]]
    target.link.draft(0, 4, [44, 45, 46, 47])
    target.gain([41])
    assert target.last_sent.decisions[0].limit == 2
    target.gain([50])  # nothing is waited for
    schedule.drafts = True
    target.gain([51])
    assert target.last_sent.decisions[0].limit == 4 + schedule.window


def test_tokens_are_proposed_at_the_end_of_a_round_only() -> None:
    target = begun(Schedule(2), [FIRST, 41])
    assert target.link is not None
    target.link.draft(0, 2, [42])  # a part of the next window is there early
    assert target.propose() == [[41]]
    target.link.draft(0, 3, [43])
    target.gain([41])
    assert target.propose() == [[42, 43]]


def test_a_row_that_joins_does_not_bring_the_tokens_of_others_forward() -> None:
    """What is checked does not depend on time."""
    target = begun(Schedule(2), [FIRST, 41])
    assert target.link is not None
    [first] = target.rows
    target.rows = sequences(torch.ones(1, 4).long(), [[]])
    target.announce()
    target.link.draft(0, 2, [42, 43])
    target.link.join()
    target.link.draft(1, 0, [FIRST, 61])
    target.begin()
    target.rows.insert(0, first)
    assert target.propose() == [[41], [61]]
    target.link.draft(1, 2, [62, 63])
    target.gain([41, 42], [61, 62])
    assert target.propose() == [[43], [63]]


def test_nothing_is_drafted_beyond_the_end_of_an_answer() -> None:
    for schedule in (Schedule(4), Schedule()):
        link = WrittenLink()
        target = Target(link, schedule)
        target.drafter.announce(batch_of(target.rows), {}, 6, observed=False)
        arrival = target.last_sent
        assert arrival.limit == schedule.window
        link.join()
        link.draft(0, 0, [FIRST, 41, 42, 43])
        target.begin()
        assert [decision.limit for decision in target.last_sent.decisions] == [6]


def test_next_draft_tokens_stand_behind_the_checked_ones() -> None:
    """With what they were drawn from; both sides meet before the verdict."""
    link = WrittenLink()
    target = Target(link, Schedule(2), num_rows=2)

    def draft(row: int, position: int, *tokens: int, epoch: int = 0) -> None:
        """Row 0 uses rejection sampling, row 1 does not."""
        for index, token in enumerate(tokens, position):
            probs = torch.full((VOCAB,), float(token)) if row == 0 else None
            made = DraftToken(row, epoch, index, token, probs)
            link.inbox.append(DraftTokens(3, (made,), 20, Span("draft", "draft", 0.0, 0.1)))

    def following(*counts: int) -> list[tuple[int, float] | None]:
        """The next draft tokens, with the probability that came with them."""
        topologies = tuple(chain(count) for count in counts)
        tree = DraftTree(topologies, torch.zeros(2, max(counts)).long())
        draft_tokens = target.drafter.ahead.next_proposals(tree)
        assert draft_tokens is not None
        return [
            None if made is None else (made.token, float(made.probs[0])) for made in draft_tokens
        ]

    rule = SamplingRule(do_sample=True, acceptance="rejection")
    target.rows[0].sampling = rule
    target.announce()
    link.join()
    draft(0, 0, FIRST, 41)
    draft(1, 0, FIRST, 51)
    target.begin()
    tree = target.drafter.propose(batch_of(target.rows), 20)
    assert tree.tokens.tolist() == [[41], [51]]
    assert tree.probs is not None
    assert tree.probs[:, 0, 0].tolist() == [41.0, 0.0]
    draft(0, 2, 42, 43)
    draft(1, 2, 52, 53)
    assert following(1, 1) == [(42, 42.0), None]
    assert following(0, 1) == [(41, 41.0), None]  # of a row that is cut
    target.gain([70], [51, 52])
    # After a rejection the first token of the new branch is next, and no older one.
    draft(1, 4, 54, 55)
    draft(0, 2, 44, 45, epoch=1)
    assert following(0, 1) == [(44, 44.0), None]
    target.gain([44], [53, 54])
    link.lost = "killed"
    assert target.drafter.ahead.next_proposals(tree) is None
    assert target.drafter.propose(batch_of(target.rows), 20).probs is None


def test_a_token_that_has_not_come_is_no_next_draft_token() -> None:
    """Also if one of a rejected branch had come at its position."""
    [sequence] = sequences(torch.ones(1, 4).long(), [[FIRST]])
    row = Row(0, room=50, limit=9, answer=sequence.history.answer)

    def take(epoch: int, position: int, *tokens: int) -> None:
        for index, token in enumerate(tokens, position):
            made = DraftToken(0, epoch, index, token, torch.full((VOCAB,), float(token)))
            row.take(made, DraftForward(Span("draft", "draft", 0.0, 0.1), 1))

    take(0, 0, FIRST, 41, 42, 43)
    row.advance(sequence.history)
    sequence.tokens.append(50)  # 41 is rejected
    row.advance(sequence.history)
    assert row.next_proposal(0) is None
    take(1, 2, 51)
    made = row.next_proposal(0)
    assert made is not None
    assert (made.token, float(made.probs[0])) == (51, 51.0)
    assert row.next_proposal(1) is None


def test_rows_that_leave() -> None:
    link = WrittenLink()
    target = Target(link, Schedule(2), num_rows=3)
    target.announce()
    link.join()
    for row, token in ((0, 41), (2, 45), (1, 43)):
        link.draft(row, 0, [FIRST, token])
    target.begin()
    assert target.propose() == [[41], [43], [45]]
    target.drafter.remove(0)
    target.rows = [target.rows[2], target.rows[1]]
    assert target.last_sent == Leave(3, 0)
    link.draft(0, 2, [42])  # was on its way
    link.draft(2, 2, [46, 47])
    link.draft(1, 2, [44, 45])
    assert target.propose() == [[45], [43]]
    target.gain([45], [43])
    assert [decision.row for decision in target.last_sent.decisions] == [2, 1]


@pytest.mark.parametrize("window", [None, 2], ids=["measured", "two"])
def test_a_session_that_goes_on_after_its_end_opens_another_one(window: int | None) -> None:
    schedule = Schedule(window)
    target = begun(schedule, [FIRST, 41, 42, 43])
    assert target.link is not None
    target.drafter.ahead.close()
    assert target.propose() == [[]]
    target.gain([41])  # a row that had not ended goes on without the worker
    assert isinstance(target.last_sent, Close)
    old = target.rows
    target.rows = sequences(torch.ones(1, 4).long(), [[]])
    target.announce()
    assert [type(message) for message in target.link.sent[-2:]] == [Open, Arrive]
    assert target.last_sent.rows == (0,)
    target.link.join()
    written = list(range(51, 50 + schedule.window))
    target.link.draft(0, 0, [FIRST, *written])
    target.begin()
    target.rows = [*old, *target.rows]
    assert target.propose() == [[], written]
    more = list(range(50 + schedule.window, 50 + 2 * schedule.window))
    target.link.draft(0, schedule.window, more)
    gained = [*written, more[0]]
    target.gain([42], gained)
    [decision] = target.last_sent.decisions
    assert (decision.row, decision.start, decision.tokens) == (0, 1, tuple(gained))
    target.drafter.remove(0)
    assert isinstance(target.last_sent, Decide)
    target.drafter.remove(0)
    assert target.last_sent == Leave(3, 0)
    target.drafter.ahead.close()
    assert target.link.forgotten == [3, 3]
    assert target.drafter.ahead.lost is None


def test_a_worker_that_cannot_be_opened_again_is_lost() -> None:
    target = begun(Schedule(2), [FIRST, 41])
    assert target.link is not None
    target.drafter.ahead.close()
    target.link.refuses[int] = WorkerLostError("gone")
    old = target.rows
    target.rows = sequences(torch.ones(1, 4).long(), [[]])
    target.announce()
    target.begin()
    target.rows = [*old, *target.rows]
    assert target.propose() == [[], []]
    assert target.drafter.ahead.lost == "gone"
    assert target.serial.calls == []


@pytest.mark.parametrize("reads", [False, True])
def test_the_target_waits_unless_the_worker_reads(reads: bool) -> None:
    """A worker that cannot read a prompt yet, since the target has not, writes meanwhile."""
    schedule = Schedule()
    target = begun(schedule, [FIRST, 41, 42, 43])
    assert target.link is not None
    ahead = target.drafter.ahead
    pruner = SimpleNamespace(readings={"scores"})
    pruning: Any = SimpleNamespace(pruner=pruner)
    ahead.reading = OwnPrompt(pruning)
    joining = sequences(torch.ones(2, 4).long(), [[], []])
    ahead.announce(batch_of(joining), {}, 50, observed=False)
    arrival = target.last_sent
    assert (arrival.rows, arrival.waits) == ((1, 2), True)
    if reads:
        prompt: Any = SimpleNamespace(outline=lambda: None)
        ahead.read(TargetContext(prompt, KVCache(0, 0, 0)))
        assert isinstance(target.last_sent, Read)
        assert target.last_sent.rows == (1, 2)
    target.link.slow_waits = 2
    target.link.draft(0, 4, [44, 45, 46, 47])
    target.gain([41])
    written = [FIRST, 41, 42, 43, 44, 45, 46, 47]
    assert ahead._rows[0].tokens == (written[:4] if reads else written)
    assert len(schedule._rounds) == (0 if reads else 1)  # is no measure of what drafting takes
    # The rows have no token when others are announced: the target does not read them any more.
    ahead.announce(batch_of(joining[:1]), {}, 50, observed=False)
    assert target.link.sent[-3:-1] == [Leave(3, 1), Leave(3, 2)]
    assert target.last_sent.rows == (3,)
