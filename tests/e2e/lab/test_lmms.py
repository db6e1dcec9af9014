"""draftlens in lmms-eval: answers are those of stock `generate`, also through the real harness,
which runs where lmms-eval is installed (`make lmms`)."""

from __future__ import annotations

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from draftlens_lab.lmms.answering import Answering
from draftlens_lab.lmms.tasks import write_tasks
from draftlens_lab.world.entries import MediaFormat
from PIL import Image

import draftlens
from tests.e2e.conftest import CLIPS

OPTIONS = {"max_new_tokens": 6, "do_sample": False}


def question(text: str, *media: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*media, {"type": "text", "text": text}]}]


def test_answers_are_those_of_stock_generate(engine: draftlens.Engine) -> None:
    """In a batch of different media, and cut before a string that ends them."""
    picture = {"type": "image", "image": Image.fromarray(np.zeros([32, 32, 3], np.uint8))}
    clip = {"type": "video", "video": str(CLIPS / "shapes.mp4")}
    chats = [
        question("What shape is red?", picture),
        question("Describe the video.", clip),
        question("Describe the image.", picture),
        question("How much is one and two?"),
    ]
    stock, ours = (Answering(engine, is_stock, 4) for is_stock in (True, False))
    expected = stock.answer(chats, OPTIONS, [])
    assert ours.answer(chats, OPTIONS, []) == expected
    assert all(0 < answer.tokens <= 6 < answer.prompt_tokens for answer in expected)
    assert stock.tokens == ours.tokens == sum(answer.tokens for answer in expected)
    assert stock.mean_acceptance_length == 0 < ours.mean_acceptance_length
    end = expected[1].text.split()[1]
    short = [each.answer(chats[1:2], OPTIONS, [end])[0].text for each in (stock, ours)]
    assert short == [expected[1].text.partition(end)[0]] * 2


def test_the_command_that_writes_tasks(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "tasks"
    size = ("--frames", "2", "--rate", "1", "--side", "32")
    status, printed, err = command("lmms-task", str(out), "--samples", "1", *size, "--json")
    assert (status, err) == (0, "")
    assert json.loads(printed)["draftlens_world_questions"] == 8
    assert (out / "utils.py").exists()
    status, _, err = command("lmms-task", str(out), "--samples", "1", *size)
    assert status == 2
    assert "is there already" in " ".join(err.split())


def test_the_recipe_for_vlmevalkit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class of docs/lmms-eval.md in the place that VLMEvalKit gives it, without VLMEvalKit."""
    models: dict[str, Any] = {}
    config, base = ModuleType("vlmeval.config"), ModuleType("vlmeval.vlm.base")
    config.supported_VLM, base.BaseModel = models, object  # type: ignore[attr-defined]
    for module in (ModuleType("vlmeval"), config, ModuleType("vlmeval.vlm"), base):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    page = Path(__file__).parents[3] / "docs" / "lmms-eval.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    exec(code.replace("Qwen/Qwen2.5-VL-7B-Instruct", "embedded").replace("512", "6"), {})
    model = models["draftlens"](device="cpu")
    picture = str(CLIPS / "shapes.png")
    message = [{"type": "image", "value": picture}, {"type": "text", "value": "What is red?"}]
    expected = model.engine.generate("What is red?", images=picture, max_new_tokens=6).text
    assert model.generate_inner(message, dataset="MMBench") == expected != ""


@pytest.mark.filterwarnings("ignore")
def test_the_real_harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tasks of the world: the same scores and answers by stock `generate` and by SpecVLM with
    requests together; what has no answers is refused."""
    pytest.importorskip("lmms_eval")
    monkeypatch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path / "cache"))
    evaluator = import_module("lmms_eval.evaluator")
    tasks = import_module("lmms_eval.tasks")
    get_model = import_module("lmms_eval.models").get_model
    write_tasks(tmp_path / "tasks", 1, MediaFormat(4, 1, 64))
    manager = tasks.TaskManager(include_path=str(tmp_path / "tasks"), include_defaults=False)
    found = [
        evaluator.simple_evaluate(
            model="draftlens",
            model_args=f"method={method},device=cpu,num_frames=4",
            gen_kwargs="max_new_tokens=8",
            tasks=["draftlens_world"],
            task_manager=manager,
            batch_size=size,
            log_samples=True,
            bootstrap_iters=0,
        )
        for method, size in (("stock", 1), ("specvlm", "2"))
    ]
    stock, ours = (
        {
            (task, sample["doc_id"]): sample["filtered_resps"]
            for task, samples in each["samples"].items()
            for sample in samples
        }
        for each in found
    )
    assert stock == ours
    assert len(ours) == 11
    (rounds,) = ours["draftlens_world_rounds", 0]
    assert len(rounds) == 2
    assert found[0]["results"] == found[1]["results"]
    assert found[1]["throughput"]["total_gen_tokens"] > 0
    model = get_model("draftlens")
    assert model.__module__ == "draftlens_lab.lmms.model"
    with pytest.raises(NotImplementedError, match="generate_until_multi_round"):
        model.loglikelihood(None, [])
    with pytest.raises(draftlens.ConfigError, match="batch_size must be a whole number"):
        model(batch_size="auto")
