"""The files of compiled passes, and the conditions under which they may be used again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from draftlens.compile.skeleton import Skeleton
from draftlens.core.files import cache_folder, private_folder, write_json
from draftlens.models.adapter import Backbone
from draftlens.models.facts import facts_of

FORMAT = 2
"""Version of the code that is compiled; passes of another version are compiled again."""


def folder_of(backbone: Backbone, skeleton: Skeleton) -> Path:
    """The folder of a model's passes, created on demand. Its name is a hash of everything that the
    compiled code depends on, which is also written into it.

    Raises:
        OSError: it cannot be made, or another user could put code there.
    """
    facts = _facts(backbone, skeleton)
    text = json.dumps(facts, sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    path = private_folder(private_folder(cache_folder() / "compiled") / name)
    if not (path / "facts.json").exists():
        write_json(path / "facts.json", json.loads(text))
    return path


def inductor_folder() -> Path:
    """The folder of the compiler's cache, created on demand; inductor's default is in the temporary
    directory under a name that any user can take first.

    Raises:
        OSError: as `folder_of`.
    """
    return private_folder(cache_folder() / "inductor")


def _facts(backbone: Backbone, skeleton: Skeleton) -> dict[str, Any]:
    tensors = {name: dataclasses.astuple(facts) for name, facts in skeleton.tensors.items()}
    return {
        **facts_of(backbone),
        "compiled": "",  # what computes forwards at the moment has no bearing
        "tensors": hashlib.sha256(json.dumps(tensors, default=str).encode()).hexdigest(),
        "layers": [dataclasses.astuple(layer) for layer in skeleton.layers],
        "divisor": skeleton.divisor,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "format": FORMAT,
    }


@cache
def _processor() -> str:
    """A hash of the processor's flags, which determine the code that the compiler makes."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return hashlib.sha256(flags.encode()).hexdigest()[:16]
