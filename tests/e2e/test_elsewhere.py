"""What carries draftlens elsewhere: the notebook, the containers, the citation, forms of issues."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import draftlens
from draftlens.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = [ROOT / "containers" / "Dockerfile", ROOT / "containers" / "Dockerfile.cuda"]

files = pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)


def test_the_notebook_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It is stored without outputs, and says three times that tokens are those of stock."""
    notebook = json.loads((ROOT / "notebooks" / "quickstart.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells):
        assert cell["outputs"] == []
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    printed = capsys.readouterr().out
    assert printed.count("identical: True") == 3
    assert "False" not in printed
    assert names["result"].stats.accepted > 0


def words_of(file: Path, instruction: str) -> list[str]:
    """The JSON list of an instruction of a Dockerfile."""
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(rf"^{instruction}\b.*", text, re.MULTILINE)
    return list(json.loads(line[line.index("[") :]))


@files
def test_a_container_starts_the_server_with_its_port_and_options(
    file: Path, tmp_path: Path
) -> None:
    """Its shell, with a command `draftlens` that prints its words; these are understood."""
    command = tmp_path / "draftlens"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PORT": "9000"}
    shell = [*words_of(file, "ENTRYPOINT"), "--target", "a name", "--max-rows", "4"]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=True)
    name, *words = done.stdout.splitlines()
    group: Any = typer.main.get_command(app)
    context = group.commands[name].make_context(name, words)
    assert context.params["host"] == "0.0.0.0"
    assert context.params["port"] == 9000
    assert context.params["target"] == "a name"


@files
def test_a_container_runs_as_a_user_and_has_what_it_copies(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    steps = re.findall(r"^([A-Z]+) (.*)", text, re.MULTILINE)
    names = [name for name, _ in steps]
    assert ("USER", "draftlens") in steps
    assert names.index("COPY") < names.index("USER") < names.index("ENTRYPOINT")
    ignored = (ROOT / ".dockerignore").read_text().split()
    for needed in ("draftlens", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        assert (ROOT / needed).exists()
        assert needed not in ignored
    for script in re.findall(r"^RUN ((?:.*\\\n)*.*)", text, re.MULTILINE):
        assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the image is one of Linux")
def test_the_steps_of_a_container_give_the_tokens_of_stock(engine: draftlens.Engine) -> None:
    """The entry point and the health check of the image with the real server, which has the rights
    of a user, listens at its port, and ends when it is told to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    script = ROOT / "containers" / "steps.sh"
    words = ["sh", str(script), str(Path(sys.executable).parent), port, "--no-calibrate"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert f"answers at http://0.0.0.0:{port}" in done.stderr
    assert re.search(r"CapEff: 0+\b", said["user"])
    assert said["health"] == "yes"
    assert said["ended"] == "0"
    inputs = engine.read("Describe the image.").target
    stock = engine.target.backbone.model.generate(**inputs, max_new_tokens=24, do_sample=False)
    tokens = stock[0, inputs["input_ids"].shape[1] :]
    text = engine.target.processor.tokenizer.decode(tokens, skip_special_tokens=True)
    assert said["answer"] == text
    assert int(said["tokens"]) == len(tokens)


@pytest.fixture
def health() -> Iterator[tuple[str, list[int]]]:
    """The port of a server that answers at /health, and the status that it answers with."""
    status = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status[0] if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield str(server.server_port), status
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_health_check_of_a_container(health: tuple[str, list[int]]) -> None:
    port, status = health
    (check, *others) = {tuple(words_of(file, "HEALTHCHECK")) for file in DOCKERFILES}
    assert others == []
    words = [sys.executable, *check[1:]]
    environment = {**os.environ, "PORT": port}
    assert subprocess.run(words, env=environment, check=False).returncode == 0
    status[0] = 503
    failed = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert failed.returncode == 1


def test_the_services_of_the_compose_file_fit_together() -> None:
    folder = ROOT / "containers"
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    server, page = (compose["services"][name] for name in ("draftlens", "page"))
    context = folder / server["build"]["context"]
    assert (context / server["build"]["dockerfile"]).resolve() == DOCKERFILES[0]
    port = server["environment"]["PORT"]
    assert page["environment"]["OPENAI_API_BASE_URL"] == f"http://draftlens:{port}/v1"
    key = server["environment"]["DRAFTLENS_API_KEY"]
    assert page["environment"]["OPENAI_API_KEY"] == key
    assert "HEALTHCHECK" in DOCKERFILES[0].read_text()
    volumes = [volume.split(":")[0] for each in (server, page) for volume in each["volumes"]]
    assert set(volumes) == set(compose["volumes"])


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == draftlens.__version__
    assert citation["license"] == "Apache-2.0"


def test_forms_of_issues_are_whole() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 4
    for form in forms:
        values = yaml.safe_load(form.read_text(encoding="utf-8"))
        if form.name == "config.yml":
            continue
        assert {"name", "description", "body"} <= values.keys()
        ids = [item["id"] for item in values["body"]]
        assert len(ids) == len(set(ids)) > 0
        assert all(item["attributes"]["label"] for item in values["body"])


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    """Releases with the newest first, and each kind of change once in a release, in one order."""
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    names = [release.partition("\n")[0].split(" - ")[0] for release in releases]
    assert names[0] == "Unreleased"
    versions = [tuple(map(int, name.split("."))) for name in names[1:]]
    assert versions == sorted(versions, reverse=True)
    for release in releases:
        found = re.findall(r"^### (.*)", release, re.MULTILINE)
        assert found == [kind for kind in kinds if kind in found]
