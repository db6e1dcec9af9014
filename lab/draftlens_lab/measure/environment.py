"""Where figures were measured: versions, commit, hardware and models."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from draftlens.models.load import Loaded

PACKAGES = ("draftlens", "torch", "transformers", "tokenizers", "numpy", "pillow", "matplotlib")

GIT_TIMEOUT = 20
"""Seconds to wait for git."""


def environment(device: torch.device) -> dict[str, Any]:
    """Describe the machine and the software as JSON values.

    Returns:
        `python` (version), `packages` (name to version, None where a package is missing), `commit`
        (see `commit`), `machine` (see `hardware`) and `threads` (of torch).
    """
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit(Path(__file__).resolve().parents[3]),
        "machine": hardware(device),
        "threads": torch.get_num_threads(),
    }


def commit(folder: Path) -> str | None:
    """Hash of the git commit that is checked out in a folder.

    Returns:
        The full hash, followed by "+" if tracked files were changed; None if the folder is not the
        root of a git checkout or git fails.
    """
    if not (folder / ".git").exists():
        return None
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git(folder, "status", "--porcelain", "-uno")
    return f"{head}+" if changes else head


def hardware(device: torch.device) -> str:
    """Name of the GPU for a CUDA device, else of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def models_by_role(target: Loaded, draft: Loaded | None) -> dict[str, Loaded]:
    """The models that are present, by role: `target` and `draft`."""
    models = {"target": target}
    if draft is not None:
        models["draft"] = draft
    return models


def model_facts(model: Loaded) -> dict[str, Any]:
    """Name, class, number of parameters, dtype and device of a model, as JSON values."""
    backbone = model.backbone
    return {
        "name": model.name,
        "class": backbone.name,
        "parameters": sum(parameter.numel() for parameter in backbone.model.parameters()),
        "dtype": str(backbone.dtype).removeprefix("torch."),
        "device": str(backbone.device),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; None if it fails."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout.strip() if process.returncode == 0 else None
