"""The commands that README and the pages print: all of them are understood, and those of the README
that take seconds are run as they are printed."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer

from draftlens.cli.app import LAB_COMMANDS, app
from draftlens.cli.options import with_values
from tests.e2e.conftest import CLIPS

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "cli.md"
"""Written by `make docs`, with placeholders for values."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted(ROOT.glob("docs/*.md")) if page.name != GENERATED),
]

QUICK = (
    *("demo", "caption", "ask", "chat", "parse", "verify", "doctor", "methods", "pairs"),
    "explain",
)
"""Commands of the README that are run here, beside the server. Those that measure and train for
minutes have tests of their own."""


def printed(page: Path) -> list[list[str]]:
    """The words of every `draftlens` command in the shell blocks of a page."""
    commands = []
    for block in re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                words = shlex.split(part.removeprefix("$ "), comments=True)
                if words and words[0] == "draftlens":
                    commands.append(words[1:])
    return commands


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_printed_command_is_understood(page: Path) -> None:
    """Its options exist and take their values; nothing is run."""
    group: Any = typer.main.get_command(app)
    for words in printed(page):
        names = [word for word in words if not word.startswith("-")]
        if not names or {"-h", "--help"} & set(words):
            continue
        rest = with_values(words[words.index(names[0]) + 1 :])
        context = group.commands[names[0]].make_context(names[0], rest)
        assert context.info_name == names[0]


def test_the_readme_prints_commands() -> None:
    """So that the test above has something to look at."""
    assert len(printed(ROOT / "README.md")) > 10


def test_the_readme_keeps_the_commands_of_the_package_and_of_the_lab_apart() -> None:
    section = (ROOT / "README.md").read_text().split("## Command line\n")[1].split("\n## ")[0]
    package, lab = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    assert set(re.findall(r"^draftlens ([\w-]+)", lab, re.MULTILINE)) == set(LAB_COMMANDS)
    assert not set(re.findall(r"^draftlens ([\w-]+)", package, re.MULTILINE)) & set(LAB_COMMANDS)
    assert "pip install ./lab" in section


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README names."""
    (tmp_path / "FOLDER").mkdir()
    pdfs = pytest.importorskip("pdfs")
    pdfs.write(tmp_path / "PAPER.pdf", [pdfs.columns])
    for name in ("shapes.mp4", "drift.mp4", "shapes.png"):
        shutil.copy(CLIPS / name, tmp_path)
    shutil.copy(CLIPS / "shapes.mp4", tmp_path / "FOLDER")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quick_commands() -> list[list[str]]:
    commands = printed(ROOT / "README.md")
    quick = [words for words in commands if words[0] in QUICK]
    return [words for words in quick if not any("hosts" in word for word in words)]


@pytest.mark.parametrize("words", quick_commands(), ids=lambda words: "-".join(words)[:40])
def test_the_readmes_commands_run_as_they_are_printed(
    command: Callable[..., Any],
    folder: Path,
    words: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the pair in the package where they say NAME, and a question where they read one."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("Describe the video.\n"))
    status, out, err = command(*("embedded" if word == "NAME" else word for word in words))
    assert status == 0, err
    if words[0] in ("parse", "explain"):
        written = [*folder.rglob("*.md"), *folder.rglob("*.html")]
        assert written
    elif "-o" in words:
        lines = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
        assert len(lines) == 1
        assert all(line["text"] for line in lines)
    else:
        assert out.strip()


def test_the_readmes_server_answers(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is printed, but at a free port; it is told to end when it is ready."""
    from draftlens.serve import run

    (words,) = (words for words in printed(ROOT / "README.md") if words[0] == "serve")
    statuses: list[int] = []
    bind, serve = run.bind, run.DrainingServer.run

    def run_until_ready(self: Any, sockets: list[Any]) -> None:
        address = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/health"

        def ask() -> None:
            end = time.monotonic() + 120
            while 200 not in statuses and time.monotonic() < end:
                statuses.append(httpx.get(address).status_code)
                time.sleep(0.05)
            self.should_exit = True

        asking = threading.Thread(target=ask)
        asking.start()
        serve(self, sockets=sockets)
        asking.join()

    # The log of requests goes to this test's standard error; later servers have one of their own.
    log = logging.getLogger("draftlens.serve")
    for name in ("handlers", "propagate", "level"):
        monkeypatch.setattr(log, name, getattr(log, name))
    monkeypatch.setattr(run, "bind", lambda host, _: bind(host, 0))
    monkeypatch.setattr(run.DrainingServer, "run", run_until_ready)
    status, _, err = command(*words)
    assert status == 0, err
    assert "embedded answers at http://127.0.0.1:" in err
    assert statuses[-1] == 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_modules_and_make_targets_that_are_printed_exist(page: Path) -> None:
    """What else the shell blocks of a page call."""
    blocks = re.findall(r"```(?:bash|sh|console)\n(.*?)```", page.read_text(), re.DOTALL)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks:
        checked = subprocess.run(["bash", "-n"], input=block, text=True, check=False)
        assert checked.returncode == 0, block
        for script in re.findall(r"^python (\S+\.py)", block, re.MULTILINE):
            assert (ROOT / script).exists(), script
        for module in re.findall(r"^(?:# or: )?python -m ([\w.]+)", block, re.MULTILINE):
            assert find_spec(module), module
        for target in re.findall(r"^make (\S+)", block, re.MULTILINE):
            assert target in targets, target
