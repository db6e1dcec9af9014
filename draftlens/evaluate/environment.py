"""Where figures were made: versions, commit, hardware, models."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from draftlens.models.load import Loaded

PACKAGES = ("draftlens", "torch", "transformers", "tokenizers", "numpy", "pillow", "matplotlib")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions of PACKAGES and of Python, the commit of a checkout (None elsewhere), the hardware,
    the threads."""
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": commit(Path(__file__).resolve().parents[2]),
        "machine": hardware(device),
        "threads": torch.get_num_threads(),
    }


def commit(folder: Path) -> str | None:
    """The git commit of a checkout, with "+" behind it if tracked files differ from it; None if
    there is none."""
    if not (folder / ".git").exists():
        return None
    head, changes = (
        _git(folder, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
    )
    return None if head is None else head + ("+" if changes else "")


def hardware(device: torch.device) -> str:
    """Name of the GPU or the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def model_facts(model: Loaded) -> dict[str, Any]:
    """Name, class, size, dtype and device of a model."""
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


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
