"""Arrays of numpy and tensors of torch as pixels, without importing torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image


def is_array(source: Any) -> bool:
    """Whether a value is an array of numpy or a tensor of torch, or converts to one."""
    return hasattr(source, "__array__") and not isinstance(source, Image.Image)


def as_array(source: Any) -> np.ndarray[Any, Any]:
    """The values of an array or tensor, on any device."""
    on_cpu = source.detach().cpu() if hasattr(source, "detach") else source
    return np.asarray(on_cpu)


def as_picture(source: Any) -> np.ndarray[Any, Any]:
    """The values of a picture with its channels last.

    Args:
        source: uint8 ``[H, W]``, ``[H, W, C]``, or a tensor of torch ``[C, H, W]``.
    """
    array = as_array(source)
    is_tensor = hasattr(source, "detach")
    if is_tensor and array.ndim == 3 and array.shape[0] in (1, 3, 4):
        return array.transpose(1, 2, 0)
    return array
