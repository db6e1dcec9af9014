"""How the command line starts and ends: quickly, and quietly when it is interrupted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest

HEAVY = {"torch", "transformers", "numpy", "av", "PIL", "rich", "yaml", "safetensors", "psutil"}
MOST_MODULES = 300
"""`draftlens --help` imports about 215 modules; torch and transformers together are thousands."""

COUNTING = """
import sys
from draftlens.cli import main
sys.argv = ["draftlens", *{words!r}]
try:
    main()
except SystemExit as ended:
    print("\\nmodules", ended.code or 0, *sorted(sys.modules))
"""

# The Hub takes connections and never says anything.
REFUSING = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
from huggingface_hub import constants
constants.HF_HUB_OFFLINE = False
constants.ENDPOINT = f"http://127.0.0.1:{server.getsockname()[1]}"
from draftlens.core import hub
assert hub.HUB_SECONDS <= 6
hub.HUB_SECONDS = 0.5
"""

# The signal arrives in the middle of the import of torch.
INTERRUPTING = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.{signal})
        return None
sys.meta_path.insert(0, Interrupting())
from draftlens.cli import main
sys.argv = ["draftlens", "demo"]
main()
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["caption", "-h"], 0),
        (["train-draft", "--help"], 0),
        (["bench", "--bogus"], 2),
        (["caption"], 2),
        (["no-such-command"], 2),
    ],
)
def test_help_and_wrong_options_import_little(words: Sequence[str], status: int) -> None:
    process = run(COUNTING.format(words=list(words)))
    _, code, *modules = process.stdout.splitlines()[-1].split()
    assert int(code) == status, process.stderr
    assert HEAVY.isdisjoint(modules)
    assert len(modules) < MOST_MODULES


def test_importing_the_package_imports_none_of_its_libraries() -> None:
    """Names of the package are imported on first use."""
    process = run("import sys, draftlens; print(len(draftlens.__all__), *sys.modules)")
    _, *modules = process.stdout.split()
    lazy = {"torchvision", "accelerate", "num2words", "openvino", "llguidance", "tokenizers"}
    assert (HEAVY | lazy).isdisjoint(modules), process.stderr
    assert "draftlens" in modules


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    code = 'import sys; sys.argv = ["draftlens"]; from draftlens.cli import main; main()'
    monkeypatch.setenv("_DRAFTLENS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "draftlens caption --clip")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run(code).stdout.split() == ["--clip-seconds"]
    monkeypatch.setenv("COMP_WORDS", "draftlens caption --schedule p")
    monkeypatch.setenv("COMP_CWORD", "3")
    assert run(code).stdout.split() == ["parallel"]


@pytest.mark.parametrize("option", ["--target", "--draft"])
def test_a_wrong_name_is_refused_before_torch_is_imported(option: str) -> None:
    """A Hub that does not answer costs its time limit, and not also the seconds of a start."""
    process = run(REFUSING + COUNTING.format(words=["caption", "a.mp4", option, "some/model"]))
    _, code, *modules = process.stdout.splitlines()[-1].split()
    assert int(code) == 2
    assert {"torch", "transformers"}.isdisjoint(modules)
    (sentence,) = process.stderr.splitlines()
    assert f"cannot load the {option[2:]} 'some/model': the Hub did not answer within" in sentence


@pytest.mark.parametrize(("signal", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_start_that_is_interrupted_ends_without_a_traceback(signal: str, status: int) -> None:
    process = run(INTERRUPTING.format(signal=signal))
    assert process.returncode == status
    assert "Traceback" not in process.stderr
    assert process.stdout == ""
