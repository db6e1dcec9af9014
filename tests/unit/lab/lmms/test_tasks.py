"""The folder of tasks is complete by itself, and its functions score what they should."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from draftlens_lab.evaluate.samples import FAMILIES, question_samples
from draftlens_lab.lmms.tasks import write_tasks
from draftlens_lab.world.entries import MediaFormat

datasets = pytest.importorskip("datasets")

TASKS = ("captions", "questions", "rounds")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("lmms") / "tasks"
    progress: list[tuple[int, int]] = []
    counts = write_tasks(
        out, 1, MediaFormat(2, 1, 32), on_sample=lambda *done: progress.append(done)
    )
    assert counts == {
        "draftlens_world_captions": 2,
        "draftlens_world_questions": len(FAMILIES) - 1,
        "draftlens_world_rounds": 1,
    }
    total = sum(counts.values())
    assert progress == [(done, total) for done in range(1, total + 1)]
    return out


@pytest.fixture(scope="module")
def functions(folder: Path) -> dict[str, Any]:
    return runpy.run_path(str(folder / "utils.py"))


def rows(folder: Path, task: str) -> list[dict[str, Any]]:
    dataset = datasets.Dataset.from_parquet(
        str(folder / "data" / f"{task}.parquet"), cache_dir=str(folder.parent / "cache")
    )
    return list(dataset)


def config(folder: Path, name: str) -> Any:
    """The YAML of a task with the names of its functions."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_constructor("!function", lambda loader, node: loader.construct_scalar(node))
    return yaml.load((folder / f"{name}.yaml").read_text(), Loader)


def test_every_task_names_its_rows_and_functions(folder: Path, functions: dict[str, Any]) -> None:
    group = config(folder, "draftlens_world")
    assert group == {
        "group": "draftlens_world",
        "task": [f"draftlens_world_{task}" for task in TASKS],
    }
    for task in TASKS:
        settings = config(folder, f"draftlens_world_{task}")
        assert (folder / settings["dataset_kwargs"]["data_files"]["test"]).exists()
        named = [value for value in settings.values() if str(value).startswith("utils.")]
        assert len(named) == 5
        assert all(callable(functions[name.removeprefix("utils.")]) for name in named)
        families = {row["family"] for row in rows(folder, task)}
        metrics = {metric["metric"] for metric in settings["metric_list"]}
        assert metrics == {"exact", "words", *families}


def test_samples_are_those_of_evaluate(folder: Path) -> None:
    found = {row["family"]: row for row in rows(folder, "questions")}
    for family in ("retrieval", "edit", "text only"):
        (sample,) = question_samples(family, 1, 0)
        row = found[family.replace(" ", "_")]
        assert (row["questions"], row["answers"]) == (
            [turn.question for turn in sample.turns],
            [turn.answer for turn in sample.turns],
        )


def test_functions_show_media_and_ask(folder: Path, functions: dict[str, Any]) -> None:
    for row in [each for task in TASKS for each in rows(folder, task)]:
        visuals = functions["doc_to_visual"](row)
        assert functions["doc_to_text"](row) == row["questions"][0]
        (message,) = functions["doc_to_messages"](row)
        *media, text = message["content"]
        assert text == {"type": "text", "text": row["questions"][0]}
        if row["clip"]:
            assert [Path(visual).exists() for visual in visuals] == [True]
        else:
            assert [visual.size for visual in visuals] == [(32, 32)] * len(row["images"])
        assert [item["type"] for item in media] == ["video" if row["clip"] else "image"] * len(
            visuals
        )


def test_a_round_has_the_answers_before_it(folder: Path, functions: dict[str, Any]) -> None:
    (row,) = rows(folder, "rounds")
    first, second = row["questions"]
    given = {"previous_output": ["Own."], "previous_round_info": None}
    messages, is_last, *_ = functions["doc_to_messages"](row, round_idx=1, **given)
    assert not is_last
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [message["content"][-1]["text"] for message in messages] == [first, "Own.", second]
    _, text, is_last, *_ = functions["doc_to_text"](row, round_idx=1, **given)
    assert (text, is_last) == (f"{first}\nOwn.\n{second}", False)
    assert functions["doc_to_messages"](row, round_idx=2, **given)[1]
    assert functions["doc_to_text"](row, round_idx=2, **given)[2]


def test_scores(functions: dict[str, Any]) -> None:
    doc = {"family": "edit", "answers": ["Before.", "Turn it red."]}
    score = functions["process_results"]
    assert score(doc, [" Turn it red. "]) == {"exact": 1.0, "edit": 1.0, "words": 1.0}
    assert score(doc, [["Before.", "Turn it red."]])["exact"] == 1.0  # several rounds
    wrong = score(doc, ["Turn it blue now."])
    assert wrong == {"exact": 0.0, "edit": 0.0, "words": pytest.approx(4 / 7)}
    assert score(doc, [""])["words"] == 0.0
