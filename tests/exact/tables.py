"""Tables in the place of models, so that the distribution of an answer can be written down."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from scipy import stats
from torch import Tensor
from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import MaxLengthCriteria

from draftlens.core.references import NO_REFERENCES, References
from draftlens.core.sampling import SamplingRule, row_seeds
from draftlens.core.sequence import Sequence as Row
from draftlens.core.stats import Clock, Stats
from draftlens.core.tree import Topology
from draftlens.decoding import Plan
from draftlens.decoding.loop import decode
from draftlens.decoding.observer import NO_OBSERVER, Observer
from draftlens.decoding.plan import Acceptance, NoDraft, Schedule
from draftlens.decoding.session import Session
from draftlens.drafting.draft_prompt import DraftPromptBuilder
from draftlens.drafting.model_drafter import ModelDrafter
from draftlens.methods.lookup.drafter import LookupDrafter
from draftlens.methods.lookup.ngram_index import Vocabulary
from draftlens.models.kv_cache import KVCache
from draftlens.models.prompt import Prepared, Prompt

VOCAB, ROWS, LENGTH = 6, 2000, 5
LIKELY, IMPOSSIBLE = 1e-3, 1e-9
"""A right rule's p-value lies above the first, a wrong rule's below the second."""

WARPERS = (hf.TemperatureLogitsWarper(0.7), hf.TopKLogitsWarper(4), hf.TopPLogitsWarper(0.9))


def p_value(tokens: Tensor, expected: Tensor) -> float:
    """Chi-square of drawn cells against probabilities ``[C]``; cells expected less than five times
    are pooled."""
    seen = torch.bincount(tokens, minlength=len(expected)).double()
    wanted = expected * len(tokens)
    if bool((seen[expected == 0] > 0).any()):
        return 0.0
    rare = wanted < 5
    if bool(rare.any()):
        seen = torch.cat([seen[~rare], seen[rare].sum()[None]])
        wanted = torch.cat([wanted[~rare], wanted[rare].sum()[None]])
        seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    return (
        float(stats.chisquare(seen.numpy(), wanted.numpy(), sum_check=False).pvalue)
        if len(seen) > 1
        else 1.0
    )


class TableModel:
    """Stands where a `Backbone` does: logits are looked up by position and the last two tokens that
    the mask shows.

    Args:
        table: logits ``[LENGTH, V, V, V]``: position in the answer, token before last, last token,
            next token.
    """

    name, dtype, device, vocab_size = "TableModel", torch.float64, torch.device("cpu"), VOCAB
    text_config = None
    prompt_cache = None
    plain_only = chains_only = ""

    def __init__(self, table: Tensor) -> None:
        self.table = table

    @property
    def model(self) -> TableModel:
        """The owner of what is kept for a model, such as its passes."""
        return self

    def prepare_prompt(self, inputs: Any) -> Prepared:
        return Prepared(inputs["input_ids"], (), (), None, {})

    def encode(self, prepared: Prepared) -> Prompt:
        ids = prepared.input_ids
        rows, length = ids.shape
        positions = torch.arange(length).expand(rows, -1)
        return Prompt(
            ids, positions, [length] * rows, torch.full((rows, 1), length), ids > VOCAB, {}
        )

    def hidden_states(self, layers: Sequence[int]) -> Any:
        return nullcontext({})

    def new_cache(self, prompt: Prompt, room: int) -> KVCache:
        return KVCache(1, len(prompt.lengths), max(prompt.lengths) + room)

    def prefill(self, prompt: Prompt, cache: KVCache, probe: object = None) -> Tensor:
        return self.forward(prompt.embeds, prompt.position_ids, cache, None)[:, -1:]

    def greedy_chain(self, *_: Any) -> None:
        """Chains are computed by `forward`."""

    def forward(
        self, tokens: Tensor, position_ids: Tensor, cache: KVCache, mask: Tensor | None
    ) -> Tensor:
        count = tokens.shape[1]
        held, _ = cache.update(tokens[:, None, :, None], tokens[:, None, :, None], 0)
        cache.advance(count)
        slots = torch.arange(held.shape[2])
        seen = mask[:, 0] if mask is not None else slots <= (slots[-count:, None])
        last, before = (
            torch.where(seen, slots, -1).expand(len(tokens), count, -1).topk(2).values.unbind(-1)
        )
        rows = torch.arange(len(tokens))[:, None]
        at = (position_ids - PROMPT.shape[1] + 1).clamp(0, LENGTH - 1)
        return self.table[at, held[rows, 0, before, 0], held[rows, 0, last, 0]]


class TableSession(Session):
    """A session that remembers its rows in order, also those that have left."""

    def __init__(self, target: Any, plan: Plan, observer: Observer = NO_OBSERVER) -> None:
        super().__init__(target, plan, Clock(Stats()), observer)
        self.rows: list[Row] = []

    def add(self, *args: Any, **options: Any) -> list[Row]:
        rows = super().add(*args, **options)
        self.rows += rows
        return rows


PROMPT = torch.zeros(ROWS, 2, dtype=torch.long)


def table(seed: int) -> Tensor:
    return (
        torch.randn(
            LENGTH, VOCAB, VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed)
        ).double()
        * 1.5
    )


def narrow(logits: Tensor) -> Tensor:
    """Only the two best of these logits: tokens that are never drafted, and fewer of them than a
    node has children."""
    return logits.masked_fill(logits < logits.topk(2).values[..., -1:], -torch.inf)


TARGET = table(0)
DRAFTS = {
    "equal": TARGET,
    "near": TARGET + 0.5 * table(1),
    "far": table(2),
    "narrow": narrow(table(3)),
}


def speak(
    topology: Topology,
    draft: Tensor,
    rule: SamplingRule,
    seed: int = 0,
    rows: int = ROWS,
    references: References = NO_REFERENCES,
) -> TableSession:
    """A finished session: LENGTH tokens in each row. With references no model drafts: they are
    looked up."""
    reader = DraftPromptBuilder(TableModel(draft))  # type: ignore[arg-type]
    drafter: Any = ModelDrafter(reader, topology, VOCAB) if topology else NoDraft()
    if references:
        drafter = LookupDrafter(Vocabulary(VOCAB), 3, 3, 9, window=1)
    target: Any = TableModel(TARGET)
    session = TableSession(target, Plan(drafter, acceptance=Acceptance(rule.acceptance)))
    return finished(session, rule, seed, rows, references)


def finished(
    session: TableSession,
    rule: SamplingRule,
    seed: int,
    rows: int,
    references: References = NO_REFERENCES,
    schedule: Schedule = decode,
) -> TableSession:
    """The session after `rows` rows have been answered under a rule."""
    criteria = (MaxLengthCriteria(PROMPT.shape[1] + LENGTH),)
    config = SimpleNamespace(do_sample=rule.do_sample)
    prepared = Prepared(PROMPT[:rows], rule.processors, criteria, config, {})
    session.add(
        prepared, row_seeds(seed, rows), {"input_ids": PROMPT[:rows]}, {"references": references}
    )
    for _ in schedule(session):
        pass
    return session


def answers(session: TableSession) -> list[list[int]]:
    """The tokens of all rows."""
    return [row.tokens for row in session.rows]


def fit(session: TableSession, start: int = 1) -> float:
    """p-value of three tokens of the answers from `start` on: by default the joint of the first
    three that verification emits."""
    rule = session.rows[0].sampling
    p = (
        rule.process(TARGET.reshape(LENGTH, VOCAB * VOCAB, VOCAB), list)
        .double()
        .softmax(-1)
        .view_as(TARGET)
    )
    joint = torch.einsum("a,ab,abc,bcd->abcd", p[0, 0, 0], p[1, 0], p[2], p[3])
    expected = joint.sum(0 if start else 3).flatten()
    tokens = torch.tensor(answers(session))
    assert tokens.shape == (len(session.rows), LENGTH)
    tokens = tokens[:, start : start + 3]
    return p_value(tokens[:, 0] * VOCAB**2 + tokens[:, 1] * VOCAB + tokens[:, 2], expected)
