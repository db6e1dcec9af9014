"""The command `draftlens serve`."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftlens.cli import options as opt
from draftlens.cli.help import CLIENTS, SERVER
from draftlens.cli.model_options import PLAIN, Loading
from draftlens.cli.option_groups import DecodingOptions
from draftlens.core.errors import ConfigError

if TYPE_CHECKING:
    from draftlens.serve.options import ServeOptions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
GIB = 2**30

_log = logging.getLogger("draftlens")


@dataclass(frozen=True)
class ServerOptions:
    """Address, key and size of a server."""

    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVER)] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port; 0 for a free one.", rich_help_panel=SERVER),
    ] = 8000
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="DRAFTLENS_API_KEY",
            help="Key that clients must send; repeat it for several keys. In the environment, keys "
            "are separated by spaces and not shown among the processes.",
            rich_help_panel=SERVER,
        ),
    ] = None
    served_model_name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model for clients. [default: --target]",
            show_default=False,
            rich_help_panel=SERVER,
        ),
    ] = None
    max_rows: Annotated[
        int,
        typer.Option(
            min=1, help="Number of answers that are made together.", rich_help_panel=SERVER
        ),
    ] = 16
    max_waiting: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of requests that may wait; further ones get status 429.",
            rich_help_panel=SERVER,
        ),
    ] = 64
    max_cache_gib: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Memory of keys and values. [default: half of what is free]",
            show_default=False,
            rich_help_panel=SERVER,
        ),
    ] = None
    prompt_cache: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Memory of prompts and media that were read before, beside that of "
            "--max-cache-gib, such as 512MB. Clients of different keys share nothing. 0 turns it "
            "off.",
            rich_help_panel=SERVER,
        ),
    ] = "2GB"
    grace: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time in which running answers may end after SIGTERM, in seconds.",
            rich_help_panel=SERVER,
        ),
    ] = 30.0


@dataclass(frozen=True)
class ClientOptions:
    """What clients may send."""

    max_new_tokens: Annotated[
        int,
        typer.Option(min=1, help="Longest answer, in tokens.", rich_help_panel=CLIENTS),
    ] = 1024
    frames: Annotated[
        int,
        typer.Option(
            min=1, help="Number of frames to sample from each clip.", rich_help_panel=CLIENTS
        ),
    ] = 8
    max_images: Annotated[
        int,
        typer.Option(
            min=0,
            help="Pictures of one request, with the pages of PDF files.",
            rich_help_panel=CLIENTS,
        ),
    ] = 16
    max_videos: Annotated[
        int, typer.Option(min=0, help="Clips of one request.", rich_help_panel=CLIENTS)
    ] = 4
    allow_media_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host whose pictures and clips clients may name by address; repeat it for "
            "several. Without it, clients send media in the request (`data:`).",
            rich_help_panel=CLIENTS,
        ),
    ] = None
    allow_media_path: Annotated[
        Path | None,
        typer.Option(
            help="Folder whose files clients may name (`file:`).", rich_help_panel=CLIENTS
        ),
    ] = None
    media_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Time for reading a picture or clip.", rich_help_panel=CLIENTS),
    ] = 30.0


def serve_command(
    *,
    decoding: DecodingOptions,
    server: ServerOptions,
    clients: ClientOptions,
    loading: Loading = PLAIN,
    limits: opt.MediaLimits = None,
    calibrate: opt.Calibrate = True,
) -> None:
    """Serve a model to OpenAI clients and browsers.

    Requests are answered together, each with the tokens of `generate` in transformers. SIGTERM and
    Ctrl-C let running answers end.
    """
    options = _options(server, clients, limits)
    decoding_config = decoding.parsed()
    from draftlens.cli.loading import engine_of
    from draftlens.cli.show import error_console
    from draftlens.serve.run import bind, run

    with bind(server.host, server.port) as bound:
        engine = engine_of(decoding_config, loading, quiet=False, calibrate=calibrate)
        host = f"[{server.host}]" if ":" in server.host else server.host
        address = f"http://{host}:{bound.getsockname()[1]}"
        name = options.model or engine.target.name
        error_console.print(f"{name} answers at {address}", markup=False, soft_wrap=True)
        if not options.api_keys and server.host not in LOOPBACK:
            _log.warning("this server has no --api-key: whoever reaches it may use it")
        _log_requests()
        run(engine, options, bound)


def _log_requests() -> None:
    """Print a line of JSON for each request on the error stream, unless `--quiet` is given."""
    from draftlens.cli.logs import is_quiet

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

    keys = tuple(key for key in server.api_key or () if key)
    cache = server.max_cache_gib
    batch = SchedulerLimits(
        max_rows=server.max_rows,
        max_waiting=server.max_waiting,
        max_cache_bytes=None if cache is None else int(cache * GIB),
    )
    return ServeOptions(
        model=server.served_model_name,
        api_keys=keys,
        batch=batch,
        prompt_cache=num_bytes(server.prompt_cache),
        max_new_tokens=clients.max_new_tokens,
        frames=clients.frames,
        max_images=clients.max_images,
        max_videos=clients.max_videos,
        media_hosts=tuple(clients.allow_media_host or ()),
        media_path=clients.allow_media_path,
        limits=opt.parse_limits(limits, STRANGERS),
        media_seconds=clients.media_seconds,
        grace=server.grace,
    )
