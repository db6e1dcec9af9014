"""A compiled pass from a file, with the weights of a model of this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


class Runner:
    """Calls compiled code. Several threads may call it; it runs one call at a time.

    Args:
        path: of the package that `compile.build` has written.
        tensors: parameters and buffers by name. The code reads their memory; nothing is copied.
        device: of the model.

    Raises:
        KeyError: the code needs a tensor that is not there.
        RuntimeError: the file cannot be loaded.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        index = -1 if device.index is None else device.index
        # Up to torch 2.14 these arguments have no defaults: name, single-threaded, runners, device.
        self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, index)
        names = self._loader.get_constant_fqns()
        self._constants = {name: tensors[name].detach() for name in names}
        self._loader.load_constants(
            self._constants, use_inactive=False, check_full_update=True, user_managed=True
        )

    def __call__(self, inputs: list[Tensor]) -> Tensor:
        """Logits ``[B, T, V]`` from the inputs of `StaticPass.forward` in their order, lists
        unpacked, all contiguous."""
        return self._loader.boxed_run(inputs)[0]

    def reads(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the code reads the memory of these tensors."""
        return all(
            tensors[name].data_ptr() == constant.data_ptr()
            for name, constant in self._constants.items()
        )
