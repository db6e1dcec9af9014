"""Clients whose requirements need an environment of their own, which `make clients` makes:
instructor, litellm, those of MinerU and Docling, and guidellm, which measures the load that a
server bears."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pdfs
import pytest
from forming import StockForm

import draftlens
from draftlens.core.forms import Form
from draftlens.models.known_pairs import path_of
from tests.e2e.serve import other_clients
from tests.e2e.serve.running import CLIPS, Running
from tests.e2e.serve.test_document_clients import MINERU, stock_tokens

ROOT = Path(__file__).parents[3]
BIN = ROOT / ".venv-clients" / "bin"
SECONDS = 300

pytestmark = pytest.mark.skipif(not BIN.exists(), reason="make clients")


def run(*words: str, folder: Path | None = None) -> str:
    """What a program of the other environment prints."""
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    local = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(
        [BIN / words[0], *words[1:]],
        env=outside | local,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def answers_of(client: str, server: Running, *more: str) -> dict[str, Any]:
    printed = run("python", "-W", "ignore", other_clients.__file__, client, server.url, *more)
    answers: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return answers


@pytest.fixture(scope="module")
def picture(engine: draftlens.Engine) -> str:
    """What stock `generate` answers in the form of the clients."""
    given = engine.read(messages=other_clients.ASKED).target
    model, words = engine.target.backbone.model, engine.target.processor.tokenizer
    length = given["input_ids"].shape[1]
    form = Form.json(other_clients.Picture.model_json_schema())
    masks = [StockForm(form.grammar, length, [words.eos_token_id], words)]
    ids = model.generate(
        **given, do_sample=False, max_new_tokens=other_clients.LONG, logits_processor=masks
    )
    text = words.decode(ids[0, length:], skip_special_tokens=True)
    return other_clients.Picture.model_validate_json(text).model_dump_json()


def test_instructor(tools_server: Running) -> None:
    """The answers of this model hold the form of a call, so they were written by the grammar of
    the tool that `tool_choice` names."""
    answers = answers_of("instructor", tools_server)
    assert set(answers) == {"JSON_SCHEMA", "TOOLS"}
    for answer in answers.values():
        other_clients.Picture.model_validate_json(answer)


def test_litellm(server: Running, stock: Callable[..., str], picture: str) -> None:
    answers = answers_of("litellm", server)
    text = stock("words", other_clients.NEW)
    assert answers["whole"] == answers["stream"] == answers["response"] == text
    assert answers["form"] == picture
    assert len(answers["logprobs"]) == other_clients.NEW
    assert all(logprob <= 0 and top == 2 for logprob, top in answers["logprobs"])


def test_mineru(server: Running, engine: draftlens.Engine) -> None:
    """The embedded model describes the picture, and finds no blocks in it."""
    answers = answers_of("mineru", server, str(CLIPS / "shapes.png"))
    tokens = stock_tokens(engine, {**MINERU, "max_tokens": other_clients.LONG})
    words = engine.target.processor.tokenizer
    assert tokens[-1] == words.eos_token_id
    assert answers == {"text": words.decode(tokens[:-1]), "blocks": 0}


@pytest.mark.skipif(
    not list(BIN.parent.glob("lib/python*/site-packages/docling/pipeline")), reason="no docling"
)
def test_docling(server: Running, tmp_path: Path) -> None:
    """The program of docs/serve.md as it is printed, but for the address: it needs no weights."""
    page = (ROOT / "docs/serve.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (program,) = [each for each in programs if "from docling" in each]
    (tmp_path / "recipe.py").write_text(program.replace("http://127.0.0.1:8000", server.url))
    pdfs.write(tmp_path / "paper.pdf", [pdfs.columns])
    before = server.scheduler.counters.tokens
    run("python", "recipe.py", folder=tmp_path)
    assert server.scheduler.counters.tokens > before


def test_guidellm(server: Running, tmp_path: Path) -> None:
    """A load of four streams at a time, each of whose answers has the length that was asked for."""
    report = tmp_path / "report.json"
    run(
        "guidellm",
        "run",
        *("--backend", f"kind=openai_http,target={server.url},model=embedded"),
        *("--tokenizer", f"kind=hf_auto,model={path_of('embedded', 'target')}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=40"),
        *("--profile", "kind=concurrent,streams=4"),
        *("--constraint", "kind=max_requests,count=12"),
        *("--output", f"kind=json,path={report}"),
        "--disable-progress",
    )
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests = benchmark["requests"]
    assert not requests["errored"]
    assert [each["output_tokens"] for each in requests["successful"]] == [40] * 12
