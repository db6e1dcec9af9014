"""The commit of a checkout and the description of the machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
from draftlens_lab.measure.environment import PACKAGES, commit, environment


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True)


def test_the_commit_marks_changed_files(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("a")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "a")
    head = commit(tmp_path)
    assert head is not None
    assert len(head) == 40
    (tmp_path / "file").write_text("b")
    assert commit(tmp_path) == f"{head}+"


def test_the_environment_names_versions_and_hardware() -> None:
    facts = environment(torch.device("cpu"))
    assert set(facts) == {"python", "packages", "commit", "machine", "threads"}
    assert set(facts["packages"]) == set(PACKAGES)
    assert facts["packages"]["torch"]
    assert facts["machine"]
