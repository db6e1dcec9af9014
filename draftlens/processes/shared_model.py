"""A transformers model in two processes, with one copy of its weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accelerate import init_empty_weights
from torch import Tensor, nn

from draftlens.processes.shared_tensors import Parcel, pack, unpack


@dataclass(frozen=True)
class ModelParts:
    """The parts from which a transformers model is built again: all parameters and buffers by name,
    tied ones as the same object, without the modules."""

    architecture: type
    config: Any
    generation_config: Any
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: Any) -> ModelParts:
        return cls(type(model), model.config, model.generation_config, dict(_tensors(model)))

    def build(self) -> Any:
        """The model, in evaluation mode. Its tensors are those of `tensors`, not copies.

        Raises:
            ValueError: the class builds another structure from the configuration, so the model was
                changed after it was made, as quantization does.
        """
        with init_empty_weights():
            model: Any = self.architecture(self.config)
        names = {name for name, _ in _tensors(model)}
        if names != self.tensors.keys():
            differing = sorted(names ^ self.tensors.keys())
            raise ValueError(
                f"{self.architecture.__name__} builds another structure from its configuration: "
                f"{', '.join(differing[:3])}"
            )
        for name, tensor in self.tensors.items():
            _assign(model, name, tensor)
        model.generation_config = self.generation_config
        return model.eval()


def share(model: Any) -> Parcel:
    """The parts of a CPU model. Its parameters and buffers move to the memory of the parcel, which
    this process and every one that unpacks the parcel share.

    Raises:
        TypeError, AttributeError, pickle.PicklingError: a part cannot be pickled.
        ValueError: as `ModelParts.build`.
    """
    parts = ModelParts.of(model)
    parcel = pack(parts, smallest=1)
    if parcel.file is None:
        return parcel
    try:
        shared: ModelParts = unpack(Parcel(parcel.pickled, os.dup(parcel.file)))
        shared.build()  # refuses here what could not be built there
    except BaseException:
        parcel.close()
        raise
    for name, tensor in _tensors(model):
        tensor.data = shared.tensors[name].data
    return parcel


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _assign(model: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    if leaf in owner._parameters:
        owner._parameters[leaf] = tensor  # type: ignore[assignment]
    else:
        owner._buffers[leaf] = tensor
