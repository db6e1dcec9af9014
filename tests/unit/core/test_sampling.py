"""Processors at every node of a tree against transformers' own convention, and the noise against
its claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from batches import batch_of, sequences
from scipy import stats
from torch import Tensor
from transformers.generation import logits_process as hf

from draftlens.core import sampling
from draftlens.core.errors import ConfigError
from draftlens.core.sampling import (
    NodeHistories,
    SamplingRule,
    as_seed,
    check_processors,
    generator_of,
    gumbel,
    row_seeds,
)
from draftlens.core.sequence import Batch
from draftlens.core.tree import ROOT, Topology, chain, from_paths

VOCAB, PROMPT = 12, 6
TREE = from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1]])


class PerRow(hf.LogitsProcessor):
    """A user's processor that tells rows apart by index, and the position by the length of the
    history."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        offsets = torch.arange(len(scores)) * 0.1 + input_ids.shape[1]
        return scores * (1 + offsets[:, None] * torch.linspace(0, 1, scores.shape[-1]))


class HistoryTemperature(hf.TemperatureLogitsWarper):
    """Looks like a processor that needs no history, but is one that does."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores / (1 + input_ids[:, -1:])


class InPlace(hf.LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter_(1, input_ids, -3.0)


def rows_of(count: int, seed: int = 0) -> Batch:
    """Rows of one prompt length whose answers have different lengths."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, VOCAB, (count, PROMPT), generator=generator)
    answers = [
        torch.randint(0, VOCAB, (2 * row + 1,), generator=generator).tolist()
        for row in range(count)
    ]
    return batch_of(sequences(prompt, answers))


def histories(
    batch: Batch, topology: Topology, tokens: Tensor, nodes: tuple[int, ...]
) -> list[NodeHistories]:
    """Histories at the same nodes of the same tree in every row."""
    count = len(batch)
    return list(batch.node_histories(range(count), [topology] * count, tokens, [nodes] * count))


def mixes(rows: Batch) -> dict[str, list[Any]]:
    """Processors in the order in which `generate` prepares them, and in worse ones."""
    eos, prompt = [3, 4], torch.stack([history.prompt_ids for history in rows.histories])
    padding = torch.arange(len(rows))
    return {
        "free": [hf.TemperatureLogitsWarper(0.6), hf.TopKLogitsWarper(5), hf.TopPLogitsWarper(0.8)],
        "free too": [
            hf.MinPLogitsWarper(0.1),
            hf.TypicalLogitsWarper(0.8),
            hf.EtaLogitsWarper(0.05),
        ],
        "entropy": [
            hf.EpsilonLogitsWarper(0.05),
            hf.TopHLogitsWarper(0.7),
            hf.LogitNormalization(),
        ],
        "length": [
            hf.MinLengthLogitsProcessor(PROMPT + 3, eos),
            hf.MinNewTokensLengthLogitsProcessor(PROMPT, 4, eos),
            hf.ForcedEOSTokenLogitsProcessor(PROMPT + 5, 3),
            hf.ExponentialDecayLengthPenalty((2, 1.5), eos, PROMPT),
            hf.SuppressTokensLogitsProcessor([7]),
            hf.SuppressTokensAtBeginLogitsProcessor([1, 2], PROMPT + 1),
        ],
        "repetition": [hf.RepetitionPenaltyLogitsProcessor(1.7), hf.TopKLogitsWarper(4)],
        "repetition, padded": [
            hf.RepetitionPenaltyLogitsProcessor(1.7, padding),
            hf.TemperatureLogitsWarper(0.5),
        ],
        "ngrams": [
            hf.TemperatureLogitsWarper(0.5),
            hf.NoRepeatNGramLogitsProcessor(2),
            hf.LogitNormalization(),
        ],
        "words": [
            hf.SequenceBiasLogitsProcessor([[[5], 1.0], [[2, 6], -2.0], [[1, 2, 3], 4.0]]),
            hf.NoBadWordsLogitsProcessor([[1, 2], [8]], eos),
        ],
        "encoder": [
            hf.EncoderRepetitionPenaltyLogitsProcessor(1.4, prompt),
            hf.EncoderNoRepeatNGramLogitsProcessor(2, prompt),
        ],
        "user": [PerRow(), hf.TopKLogitsWarper(6), InPlace()],
        "subclass": [HistoryTemperature(0.5)],
        "watermark": [hf.WatermarkLogitsProcessor(VOCAB, "cpu", seeding_scheme="lefthash")],
    }


def line(topology: Topology, node: int) -> list[int]:
    return [] if node == ROOT else [*line(topology, topology.parents[node]), node]


def slow_process(
    processors: list[Any], logits: Tensor, rows: Batch, topology: Topology, tokens: Tensor
) -> Tensor:
    """As `generate` would: all rows at once, here copies of the one whose node it is, with the full
    history."""
    scores = logits.clone()
    for row in range(len(rows)):
        for node in range(ROOT, len(topology)):
            draft_tokens = [int(tokens[row, ancestor]) for ancestor in line(topology, node)]
            ids = rows.histories[row].ids(draft_tokens).repeat(len(rows), 1)
            here = logits[row, node + 1].repeat(len(rows), 1)
            for processor in processors:
                here = processor(ids, here)
            scores[row, node + 1] = here[row]
    return scores


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("topology", [Topology(()), chain(3), TREE], ids=["empty", "chain", "tree"])
@pytest.mark.parametrize("mix", mixes(rows_of(1)))
def test_process_equals_asking_node_by_node(mix: str, topology: Topology, count: int) -> None:
    rows = rows_of(count)
    processors = mixes(rows)[mix]
    tokens = torch.randint(
        0, VOCAB, (count, len(topology)), generator=torch.Generator().manual_seed(1)
    )
    logits = torch.randn(
        count, len(topology) + 1, VOCAB, generator=torch.Generator().manual_seed(2)
    )
    before, nodes = logits.clone(), (ROOT, *range(len(topology)))
    scores = SamplingRule(tuple(processors)).process(
        logits, lambda: histories(rows, topology, tokens, nodes)
    )
    assert torch.equal(scores, slow_process(processors, logits, rows, topology, tokens))
    assert torch.equal(logits, before)


def test_prefix_constraint_sees_the_one_row_at_every_node() -> None:
    seen = set()

    def allowed(batch_id: int, ids: Tensor) -> list[int]:
        seen.add(batch_id)
        return [int(ids[-1]), 0]

    rows, tokens, logits = (
        rows_of(1),
        torch.randint(0, VOCAB, (1, len(TREE))),
        torch.randn(1, len(TREE) + 1, VOCAB),
    )
    processors = [hf.PrefixConstrainedLogitsProcessor(allowed, 1)]
    nodes = (ROOT, *range(len(TREE)))
    scores = SamplingRule(tuple(processors)).process(
        logits, lambda: histories(rows, TREE, tokens, nodes)
    )
    assert torch.equal(scores, slow_process(processors, logits, rows, TREE, tokens))
    assert seen == {0}


def test_scores_are_float32_and_untouched_without_processors() -> None:
    logits = torch.randn(2, 3, VOCAB, dtype=torch.bfloat16)
    assert SamplingRule().process(logits, list) is logits
    assert SamplingRule((hf.TopKLogitsWarper(2),)).process(logits, list).dtype == torch.float32


def test_histories_are_not_read_for_nothing() -> None:
    def no_histories() -> Any:
        raise AssertionError("asked")

    SamplingRule((hf.TemperatureLogitsWarper(0.5), hf.TopKLogitsWarper(2))).process(
        torch.randn(1, 2, 9), no_histories
    )


@pytest.mark.parametrize("name", sampling.STATEFUL)
def test_stateful_processors_are_refused_by_name(name: str) -> None:
    processor = object.__new__(getattr(hf, name))
    with pytest.raises(ConfigError, match=f"{name} keeps state from token to token"):
        check_processors([hf.TopKLogitsWarper(3), processor])


def test_prefix_constraint_tells_the_rows_of_a_batch_apart() -> None:
    rows, tokens = rows_of(3), torch.randint(0, VOCAB, (3, len(TREE)))
    logits = torch.randn(3, len(TREE) + 1, VOCAB)
    processor = hf.PrefixConstrainedLogitsProcessor(lambda batch_id, ids: [batch_id + 1], 1)
    check_processors([processor])
    nodes = (ROOT, *range(len(TREE)))
    scores = SamplingRule((processor,)).process(
        logits, lambda: histories(rows, TREE, tokens, nodes)
    )
    assert torch.equal(scores.argmax(-1), torch.tensor([[1], [2], [3]]).expand(-1, len(TREE) + 1))


def test_rejects_only_when_sampling() -> None:
    assert SamplingRule(do_sample=True, acceptance="rejection").rejects
    assert not SamplingRule(do_sample=False, acceptance="rejection").rejects
    assert not SamplingRule(do_sample=True).rejects


# --- the noise -----------------------------------------------------------------------------------


def noise(seed: int, rows: int, steps: int, vocab: int) -> Tensor:
    seeds = torch.tensor(row_seeds(seed, rows))[:, None]
    return gumbel(seeds, torch.arange(steps).expand(rows, -1), vocab)


def test_greedy_ranking_is_the_scores() -> None:
    scores = torch.randn(2, 3, VOCAB)
    steps = torch.zeros(2, 3, dtype=torch.long)
    assert SamplingRule().ranking(scores, torch.arange(2), steps) is scores


def test_ranking_draws_from_the_softmax() -> None:
    scores = torch.tensor([1.0, 0.0, -torch.inf, 2.0, -1.0])
    seeds, steps = torch.tensor(row_seeds(6, 4)), torch.arange(2500).expand(4, -1)
    ranking = SamplingRule(do_sample=True).ranking(scores.expand(4, 2500, -1), seeds, steps)
    seen = torch.bincount(ranking.argmax(-1).flatten(), minlength=5).double()
    likely = scores > -torch.inf
    assert seen[~likely] == 0
    expected = scores.double().softmax(-1)[likely] * 10000
    assert stats.chisquare(seen[likely].numpy(), expected.numpy()).pvalue > 1e-3


@pytest.mark.parametrize("seed", [0, 1, -1, 2**62, 2**63 - 1, -(2**63), 2**200 + 5])
def test_noise_is_standard_gumbel_for_any_seed(seed: int) -> None:
    values = noise(seed, 4, 8, 4000).flatten()
    count = len(values)
    assert torch.isfinite(values).all()
    assert abs(float(values.mean()) - 0.5772156649) < 5 * (torch.pi / 6**0.5) / count**0.5
    variance = torch.pi**2 / 6
    spread = (
        (stats.gumbel_r.stats(moments="k") + 2) ** 0.5 * variance / count**0.5
    )  # of the sample's variance
    assert abs(float(values.var()) - variance) < 5 * spread
    assert stats.kstest((-(-values).exp()).exp().numpy(), "uniform").pvalue > 1e-3


def test_noise_is_independent_across_rows_steps_and_ids() -> None:
    series = noise(3, 8, 8, 4096).flatten(0, 1)
    bound = 5 / 4096**0.5
    assert (torch.corrcoef(series) - torch.eye(64)).abs().max() < bound
    for lag in (1, 2, 3, 64):
        assert (
            torch.corrcoef(torch.stack([series[:, lag:].flatten(), series[:, :-lag].flatten()]))[
                0, 1
            ].abs()
            < bound
        )
    columns = noise(4, 64, 64, 16).flatten(0, 1).T
    assert (torch.corrcoef(columns) - torch.eye(16)).abs().max() < bound


def test_noise_depends_on_the_key_alone() -> None:
    whole = noise(5, 3, 7, 50)
    last = torch.tensor(row_seeds(5, 3)[2:])
    assert torch.equal(gumbel(last, torch.tensor([4]), 50)[0], whole[2, 4])
    assert torch.equal(
        noise(5, 3, 7, 20), whole[..., :20]
    )  # ids that two vocabularies share share their noise


def test_noise_differs_for_every_seed_row_and_step() -> None:
    firsts = [noise(seed, 20, 20, 1).flatten() for seed in (0, 1, 2, -1, 2**40)]
    assert len(torch.cat(firsts).unique()) == 5 * 400


@pytest.mark.parametrize("bits", [-1, 0])
def test_noise_is_finite_for_the_rarest_bits(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_mix", lambda x: torch.full_like(x, bits))
    assert torch.isfinite(noise(0, 1, 1, 2)).all()


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 - 1, 2**100])
def test_generators_take_any_seed(seed: int) -> None:
    draws = [torch.rand(4, generator=generator_of(s)) for s in (seed, seed, seed ^ 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize("seed", [0, 7, -3, np.int64(7), np.uint8(200), torch.tensor(5)])
def test_whole_numbers_are_seeds(seed: Any) -> None:
    assert as_seed(seed) == int(seed)
    assert type(as_seed(seed)) is int


@pytest.mark.parametrize("seed", [1.0, "1", None, np.float64(2), [3]])
def test_other_values_are_no_seeds(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed must be a whole number, not "):
        as_seed(seed)


@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_the_first_row_has_the_seed_itself(seed: int) -> None:
    seeds = row_seeds(seed, 200)
    assert seeds[0] == seed
    assert len(set(seeds)) == 200
    assert all(0 <= each < 2**63 for each in seeds)
    assert row_seeds(seed, 3) == seeds[:3]


@pytest.mark.parametrize("seed", [-1, 2**63, 2**200 + 5])
def test_row_seeds_are_the_low_63_bits(seed: int) -> None:
    assert row_seeds(seed, 4) == row_seeds(seed % 2**63, 4)


def test_temperatures_whose_scores_overflow() -> None:
    check_processors([hf.TemperatureLogitsWarper(1e-30)])
    with pytest.raises(ConfigError, match="temperature 1e-38 is too small"):
        check_processors([hf.TemperatureLogitsWarper(1e-38)])
