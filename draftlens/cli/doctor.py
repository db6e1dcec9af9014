"""What this machine offers, and whether a given pair fits together."""

from __future__ import annotations

import os
import platform
from typing import Any

import av
import torch
import transformers

from draftlens import __version__
from draftlens.cli.loading import load_models
from draftlens.cli.show import print_json, table
from draftlens.core.errors import ConfigError
from draftlens.models.backbone import ATTENTION
from draftlens.models.load import Loaded


def report(
    target: str | None, draft: str | None, device: str | None, dtype: str | None
) -> dict[str, Any]:
    """Facts by name; a pair is loaded only if a target is named.

    Raises:
        DraftlensError: the pair does not load or does not fit.
    """
    facts: dict[str, Any] = {
        "draftlens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "PyAV": av.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} "
        "torch threads",
        "memory": _memory(),
        "devices": ", ".join(_devices()),
        "attention backends": ", ".join(ATTENTION),
    }
    if target is None:
        if draft is not None:
            raise ConfigError("a draft is checked beside its target: name it with --target")
        return facts
    big, small = load_models(target, draft, device, dtype, quiet=True)
    facts["target"] = _model(big)
    if small is not None:
        facts["draft"] = _model(small)
        facts["pair"] = "fits: same tokenizer, both see " + ", ".join(
            sorted(big.backbone.modalities & small.backbone.modalities)
        )
    return facts


def show_report(facts: dict[str, Any], as_json: bool) -> None:
    """Print the facts."""
    if as_json:
        print_json(facts)
        return
    table("", ["", "found"], [[name, str(value)] for name, value in facts.items()])


def _devices() -> list[str]:
    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        devices.append(
            f"cuda:{index} {torch.cuda.get_device_name(index)} ({free / 2**30:.1f} of "
            f"{total / 2**30:.1f} GiB free)"
        )
    return devices


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return "unknown"
    return f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _model(model: Loaded) -> str:
    backbone = model.backbone
    parameters = sum(p.numel() for p in backbone.model.parameters())
    size = sum(p.nbytes for p in backbone.model.parameters())
    return (
        f"{backbone.name}, {parameters / 1e6:.1f}M parameters ({size / 2**20:.0f} MiB), "
        f"{str(backbone.dtype).removeprefix('torch.')} on {backbone.device}, "
        f"{backbone.attention} attention, "
        f"{backbone.vocab_size} token ids"
    )
