"""What all tests share: one thread, no network, an empty cache folder, and a GPU only where there
is one."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What draftlens measures on this machine is neither read nor left behind; subprocesses inherit it.
_CACHE = tempfile.TemporaryDirectory(prefix="draftlens-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

import pytest  # noqa: E402 - the environment comes first
import torch  # noqa: E402


def pytest_configure() -> None:
    """Tiny models are slower on two threads than on one."""
    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` where there is none."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
