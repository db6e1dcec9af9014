"""Hooks that capture what the modules of a pass receive and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from draftlens.core.errors import ConfigError, UnsupportedModelError
from draftlens.models.model_lock import PassLock


def capture_arguments(
    lock: PassLock, model: Any, decoder: nn.Module, inputs: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments with which `model` calls its language model `decoder`, which does not run. The
    lock must be held exclusively."""
    with lock.hooked(decoder, _stop_here, after=False):
        try:
            model(**inputs)
        except _Reached as reached:
            return reached.kwargs
    raise UnsupportedModelError(
        f"{type(model).__name__} did not call its {type(decoder).__name__}: it cannot be driven"
    )


class _Reached(Exception):  # noqa: N818 - not an error: it ends a forward that has served its purpose
    def __init__(self, kwargs: dict[str, Any]) -> None:
        self.kwargs = kwargs


def _stop_here(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if args:
        kwargs = {"input_ids": args[0], **kwargs}
    raise _Reached(kwargs)


def layers_of(decoder: Any, name: str, layers: Sequence[int]) -> Sequence[nn.Module]:
    """The layers of a language model, checked to be listed (else `UnsupportedModelError`) and to
    include `layers` (else `ConfigError`)."""
    modules: Sequence[nn.Module] | None = getattr(decoder, "layers", None)
    if modules is None:
        raise UnsupportedModelError(f"{name} does not list the layers of its decoder")
    if not 0 <= min(layers) <= max(layers) <= len(modules):
        raise ConfigError(f"{name} has layers 0 to {len(modules)}, not {list(layers)}")
    return modules


@contextmanager
def watched_layers(
    lock: PassLock,
    modules: Sequence[nn.Module],
    layers: Sequence[int],
    receive: Callable[[int, Tensor], None],
) -> Iterator[None]:
    """Pass hidden states of this thread's passes to `receive` (`Backbone.watching`)."""
    with lock.watching(), ExitStack() as hooks:
        for layer in layers:
            is_last = layer == len(modules)
            module = modules[-1] if is_last else modules[layer]
            hook = _after_layer(layer, receive) if is_last else _before_layer(layer, receive)
            hooks.enter_context(lock.hooked(module, hook, is_last))
        yield


def _before_layer(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        receive(layer, args[0] if args else kwargs["hidden_states"])

    return hook


def _after_layer(layer: int, receive: Callable[[int, Tensor], None]) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
        receive(layer, output[0] if isinstance(output, tuple) else output)

    return hook
