"""`documents.py shapes` with tiny layers: prescribed answers, and where they depart from drafts."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pdfs
import pytest

from draftlens.engine import Engine

ROOT = Path(__file__).resolve().parents[4]
MOST = 60
PASSES = (7, 1, 3)
TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


@pytest.fixture(scope="module")
def shapes() -> Iterator[Any]:
    """The module, which imports others as the script does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        module = importlib.import_module("documents_parts.shapes")
        patch.setattr("documents_parts.true_shapes.VOCABULARY", 600)
        yield module


@pytest.fixture(scope="module")
def bench(shapes: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from dataclasses import replace

    shape = shapes.SHAPES["Granite-Docling 258M"]
    shape = replace(shape, text={**shape.text, **TINY}, vision={**shape.vision, **TINY})
    model, processor = shape.with_layers(1, 1).build()
    target = shapes.ScriptedTarget(model)
    engine = Engine(target, method="plain", processor=processor, compile=False)
    file = pdfs.write(tmp_path_factory.mktemp("shapes") / "a.pdf", [pdfs.columns])
    args = argparse.Namespace(max_new_tokens=MOST, dpi=36)
    return shapes.PageBench(engine, file, PASSES, args)


def test_every_way_says_the_answers(shapes: Any, bench: Any) -> None:
    """`PageBench` compares the tokens; passes end where an answer departs from its draft."""
    rows = list(bench.rows(True, shapes.ANSWERS))
    assert [(row["way"], row["answer"]) for row in rows] == [
        ("stock", "same"),
        ("plain", "same"),
        *(("hsd", name) for name in shapes.ANSWERS),
    ]
    assert all(row["tokens"] == MOST for row in rows if row["answer"] in ("same", "recorded"))
    said = {row["answer"]: row["per_pass"] for row in rows if row["way"] == "hsd"}
    assert said["same"] > said["recorded"] > 1
    assert said["recorded"] <= sum(PASSES) / len(PASSES) + 1


def test_an_answer_departs_at_the_end_of_every_pass(shapes: Any, bench: Any) -> None:
    same, recorded = (bench.answers[name].tolist() for name in ("same", "recorded"))
    places = [place for place in range(MOST) if same[place] != recorded[place]]
    assert places[:6] == [7, 8, 11, 18, 19, 22]
    others = [recorded[place] for place in places]
    assert len(set(others)) == len(others)
    assert not {*others} & {*same}


def test_rows_of_earlier_commands_stay(shapes: Any) -> None:
    def row(way: str, weights: str, answer: str, seconds: float) -> dict[str, Any]:
        return {"way": way, "weights": weights, "answer": answer, "seconds": seconds}

    known = [row("hsd", "int8", "same", 1.0), row("hsd", "float32", "word", 2.0)]
    new = [row("stock", "float32", "same", 3.0), row("hsd", "float32", "word", 4.0)]
    assert shapes._together(known, new) == [new[0], new[1], known[0]]


def test_seconds_of_the_whole_tower(shapes: Any) -> None:
    """Regions first cost the crops and save at most all that is decoded."""
    missing = {"stock": 5.0, "float32": 4.0, "int8": 3.0}
    row = {"way": "hsd", "weights": "int8", "seconds": 7.0, "decode": 6.0}
    found = shapes.completed(row, missing, crops=1.0)
    assert (found["tower"], found["whole"]) == (3.0, 10.0)
    assert found["regions_first"] == pytest.approx(10 / 5)
    stock = shapes.completed({**row, "way": "stock"}, missing, crops=1.0)
    assert stock["whole"] == 12.0
    assert "regions_first" not in stock
