"""The command `draftlens serve`."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from draftlens.cli import options as opt
from draftlens.cli.help import CLIENTS, SERVER
from draftlens.cli.options import PLAIN, DecodingOptions, Loading, option
from draftlens.core.errors import ConfigError
from draftlens.core.names import AUTO

if TYPE_CHECKING:
    from draftlens.serve.options import ServeOptions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GIB = 2**30

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class ServerOptions:
    """Address, key and size of a server.

    Args:
        host: Address to listen on.
        port: Port; 0 for a free one.
        api_key: Key that clients must send; repeat it for several keys. In the environment, keys
            are separated by spaces and not shown among the processes.
        served_model_name: Name of the model for clients. [default: --target]
        also: Further target model, which clients choose by NAME, or else by what it is called here;
            repeat it for several. Each has its known draft, and all of them share the memory.
        max_rows: Number of answers that are made together.
        max_waiting: Number of requests that may wait; further ones get status 429.
        max_cache_gib: Memory of keys and values. [default: half of what is free]
        prompt_cache: Memory of prompts and media that were read before, beside that of
            --max-cache-gib, such as 512MB. Clients of different keys share nothing. 0 turns it off.
        grace: Time in which running answers may end after SIGTERM, in seconds.
    """

    panel: ClassVar[str] = SERVER

    host: str = "127.0.0.1"
    port: int = option(8000, min=0, max=65535)
    api_key: list[str] | None = option(None, envvar="DRAFTLENS_API_KEY")
    served_model_name: str | None = option(None, show_default=False)
    also: list[str] | None = option(None, metavar="[NAME=]TARGET")
    max_rows: int = option(16, min=1)
    max_waiting: int = option(64, min=1)
    max_cache_gib: float | None = option(None, min=0.01, show_default=False)
    prompt_cache: str = option("2GB", metavar="SIZE")
    grace: float = option(30.0, min=0)


@dataclass(frozen=True)
class ClientOptions:
    """What clients may send.

    Args:
        max_new_tokens: Longest answer, in tokens.
        frames: Number of frames to sample from each clip.
        max_images: Pictures of one request, with the pages of PDF files.
        max_videos: Clips of one request.
        allow_media_host: Host whose pictures and clips clients may name by address; repeat it for
            several. Without it, clients send media in the request (`data:`).
        allow_media_path: Folder whose files clients may name (`file:`).
        media_seconds: Time for reading a picture or clip.
    """

    panel: ClassVar[str] = CLIENTS

    max_new_tokens: int = option(1024, min=1)
    frames: int = option(8, min=1)
    max_images: int = option(16, min=0)
    max_videos: int = option(4, min=0)
    allow_media_host: list[str] | None = None
    allow_media_path: Path | None = None
    media_seconds: float = option(30.0, min=0.1)


def serve_command(
    *,
    decoding: DecodingOptions,
    server: ServerOptions,
    clients: ClientOptions,
    loading: Loading = PLAIN,
    limits: str | None = None,
) -> None:
    """Serve a model to OpenAI clients and browsers.

    Requests are answered together, each with the tokens of `generate` in transformers. SIGTERM and
    Ctrl-C let running answers end.
    """
    options = _options(server, clients, limits)
    parsed = decoding.parsed()
    from draftlens.cli.loading import engine_of
    from draftlens.cli.show import say
    from draftlens.serve.app import create_app
    from draftlens.serve.run import DrainingServer, bind

    with bind(server.host, server.port) as bound:
        engine = engine_of(parsed, loading)
        further = []
        for name, target in map(_named, server.also or ()):
            another = engine_of({**parsed, "target": target, "draft": AUTO}, loading)
            another.target = replace(another.target, name=name or another.target.name)
            further.append(another)
        draining = DrainingServer(create_app(engine, options, further), options)
        host = f"[{server.host}]" if ":" in server.host else server.host
        address = f"http://{host}:{bound.getsockname()[1]}"
        names = [options.model or engine.target.name, *(each.target.name for each in further)]
        say(f"{' and '.join(names)} answer{'s' if len(names) == 1 else ''} at {address}")
        if not options.api_keys and server.host not in LOOPBACK:
            _log.warning("this server has no --api-key: whoever reaches it may use it")
        _log_requests()
        draining.run(sockets=[bound])


def _named(target: str) -> tuple[str, str]:
    """The name before a target, if there is one, and the target."""
    name, sign, named = target.partition("=")
    return (name, named) if sign and "/" not in name and not Path(target).exists() else ("", target)


def _log_requests() -> None:
    """Print a line of JSON for each request on the error stream, unless `--quiet` is given."""
    from draftlens.cli.show import is_quiet

    logger = logging.getLogger("draftlens.serve")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.ERROR if is_quiet() else logging.INFO)


def _options(server: ServerOptions, clients: ClientOptions, limits: str | None) -> ServeOptions:
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigError(f"{package} is not installed: pip install 'draftlens[serve]'")
    from draftlens.models.prompt_cache import num_bytes
    from draftlens.scheduling import SchedulerLimits
    from draftlens.serve.options import STRANGERS, ServeOptions

    same = dict(vars(clients))
    hosts, path = same.pop("allow_media_host"), same.pop("allow_media_path")
    cache = server.max_cache_gib
    cache_bytes = None if cache is None else int(cache * GIB)
    return ServeOptions(
        model=server.served_model_name,
        api_keys=tuple(key for key in server.api_key or () if key),
        batch=SchedulerLimits(server.max_rows, server.max_waiting, cache_bytes),
        prompt_cache=num_bytes(server.prompt_cache),
        media_hosts=tuple(hosts or ()),
        media_path=path,
        limits=opt.parse_limits(limits, STRANGERS),
        grace=server.grace,
        **same,
    )
