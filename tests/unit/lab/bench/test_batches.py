"""Figures by the size of a batch, and answers for the scripts of Spec-Bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from draftlens_lab.bench.batches import batch_figures, batch_table, break_even, measure_batches
from draftlens_lab.bench.contestants import Contestant, HfGenerate, Ours, accept_lengths
from draftlens_lab.bench.spec_bench import write_answers
from draftlens_lab.bench.store import SPEC_BENCH, BatchMeasurement, Failure, Measurement
from draftlens_lab.cli.bench_run import batch_sizes

from draftlens.core.errors import ConfigError
from draftlens.methods.base import PlainDecoding
from draftlens.methods.speculative import SpeculativeDecoding
from tests.unit.lab.bench.fakes import Race, begun

CONTESTANTS = [
    Contestant("hf-generate", HfGenerate()),
    Contestant("slow", Ours(PlainDecoding())),
    Contestant("fast", Ours(SpeculativeDecoding())),
]


@pytest.mark.parametrize(
    ("gains", "size"),
    [
        ({1: 0.9}, "below 1 rows"),
        ({4: 0.5, 1: 2.0}, "3 rows"),
        ({1: 2.0, 4: 1.0, 16: 0.5}, "4 rows"),
        ({1: 2.0, 16: 1.5}, "above 16 rows"),
    ],
)
def test_the_size_at_which_a_draft_no_longer_pays(gains: dict[int, float], size: str) -> None:
    assert break_even(gains) == size


def test_figures_of_batches(tmp_path: Path) -> None:
    """Gains are taken within a repeat, against plain decoding whatever its name."""
    store = begun(tmp_path)
    seconds = {
        ("hf-generate", 1): 6,
        ("slow", 1): 4,
        ("fast", 1): 2,
        ("slow", 2): 4,
        ("fast", 2): 8,
    }
    for (method, size), each in seconds.items():
        tokens = [[5, 6]] * size
        store.append(BatchMeasurement(size, method, 0, tokens, each))
    found = batch_figures(store, CONTESTANTS)
    assert found["base"] == "slow"
    assert found["break_even"] == {"fast": "2 rows"}
    row = found["sizes"]["1"]["fast"]
    assert (row["gain"]["median"], row["tokens_per_second"]["median"]) == (2, 1)
    assert (row["identical"], row["compared"]) == (1, 1)
    assert found["sizes"]["2"]["fast"]["compared"] == 0
    table = batch_table(found)
    assert ("fast", "2", "8.000", "0.5", "0.50", "") in table.rows
    assert table.note.endswith("Break-even with slow: fast 2 rows.")
    assert batch_figures(begun(tmp_path, False), CONTESTANTS) == {}


def test_a_batch_that_fails_is_recorded_once(race: Race, tmp_path: Path) -> None:
    """The engine of these fakes answers nothing; methods that take one prompt are left out."""
    plan = race.plan(repeats=2, batch_sizes=(1, 2))
    plan.contestants.append(Contestant("ours too", Ours(PlainDecoding())))
    store = begun(tmp_path)
    measure_batches(plan, store)
    failures = store.of(Failure)
    assert {(each.clip, each.method) for each in failures} == {
        ("batch of 1", "ours too"),
        ("batch of 2", "ours too"),
    }
    assert len(failures) == 2


@pytest.mark.parametrize(
    ("from_draft", "passes", "lengths"),
    [
        ([0], 0, []),
        ([0, 0, 0], 2, [1, 1]),
        ([0, 1, 1, 0, 0, 1, 0], 3, [3, 1, 2]),
        ([0, 1, 0, 1], 2, [2, 1]),  # the answer ends with an accepted token
        ([0, 1, 1, 1], 2, []),  # a pass without a token of its own
    ],
)
def test_tokens_of_each_pass(from_draft: list[int], passes: int, lengths: list[int]) -> None:
    assert accept_lengths([bool(each) for each in from_draft], passes) == lengths


def test_answers_are_written_as_spec_bench_reads_them(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for clip, method, repeat in (("b", "ours 0=1", 0), ("b", "ours 0=1", 1), ("a", "ours 0=1", 0)):
        values = {"phases": {"frames": 0.5}, "counters": {"passes": 2}, "accept_lengths": [2, 1]}
        store.append(
            Measurement(
                clip,
                "films",
                method,
                repeat,
                [7, 8, 9, 2],
                2.0,
                1.0,
                prompt_tokens=10,
                cache_bytes=None,
                peak_bytes=0,
                start_bytes=0,
                **values,
            )
        )
    write_answers(store, ["a", "b"], lambda ids: " ".join(map(str, ids)))
    (file,) = (tmp_path / SPEC_BENCH).iterdir()
    assert file.name == "ours_0=1.jsonl"
    first, second = map(json.loads, file.read_text().splitlines())
    assert [first["question_id"], second["question_id"]] == [0, 1]
    assert (first["category"], first["model_id"]) == ("films", "ours 0=1")
    assert [choice["index"] for choice in second["choices"]] == [0, 1]
    assert first["choices"] == [
        {
            "index": 0,
            "turns": ["7 8 9 2"],
            "decoding_steps": [2],
            "new_tokens": [4],
            "wall_time": [1.5],
            "accept_lengths": [2, 1],
        }
    ]
    begun(tmp_path, False)
    assert not (tmp_path / SPEC_BENCH).exists()


def test_batch_sizes_are_whole_numbers() -> None:
    assert batch_sizes("4, 1,16,4") == (1, 4, 16)
    assert batch_sizes(None) == ()
    with pytest.raises(ConfigError, match="such as 1,4,16, not 'many'"):
        batch_sizes("many")
