"""Several models of one server, which share its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftlens.core.errors import ConfigError
from draftlens.engine import Engine
from draftlens.models.prompt_cache import num_bytes
from draftlens.serve.answering import Answering
from draftlens.serve.options import ServeOptions


def answerings_of(engines: Sequence[Engine], options: ServeOptions) -> dict[str, Answering]:
    """What answers with each engine, by the name of the model. Raises ConfigError if two have one
    name."""
    if len(engines) == 1:
        answering = Answering(engines[0], options)
        return {answering.model: answering}
    names = [options.model or engines[0].target.name, *(each.target.name for each in engines[1:])]
    if len(set(names)) < len(names):
        raise ConfigError(f"the models of a server have different names, not {', '.join(names)}")
    batch, count = options.batch, len(engines)
    most = None if batch.max_cache_bytes is None else batch.max_cache_bytes // count
    batch = replace(batch, max_cache_bytes=most, cache_share=batch.cache_share / count)
    share = replace(options, batch=batch, prompt_cache=num_bytes(options.prompt_cache) // count)
    answerings: dict[str, Answering] = {}
    for name, engine in zip(names, engines, strict=True):
        beside = next(iter(answerings.values()), None)
        answerings[name] = Answering(engine, replace(share, model=name), beside)
    return answerings
