"""How the server answers, and what it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from draftlens.media import Limits
from draftlens.scheduling import SchedulerLimits

STRANGERS = Limits(
    max_bytes=256 * 2**20,
    max_pixels=50_000_000,
    max_side=16_384,
    max_ratio=200.0,
    max_duration_s=600.0,
    max_frames=100_000,
    max_output_bytes=2**30,
    max_download_bytes=256 * 2**20,
    max_download_s=30.0,
    private_addresses=False,
    common_formats=True,
    hosts=(),
)
"""Limits on media that clients send or name. Hosts are those of `ServeOptions.media_hosts`."""

PROMPT_CACHE = "2GB"
MIB = 2**20


@dataclass(frozen=True)
class ServeOptions:
    """What a server allows.

    Args:
        model: name under which clients address the model; None for that of the target.
        api_keys: keys of clients, all of them of equal right; empty for no key.
        batch: bounds on rows, waiting requests and memory.
        prompt_cache: bound on what is remembered of prompts and media, in bytes or as a text such
            as "4GB", shared by all clients; each key finds its own prompts only. 0 for none. A
            cache that the engine has already is used instead.
        max_new_tokens: longest answer; longer ones that are asked for end there.
        max_samples: most answers to one request (`n`).
        frames: frames that are sampled from a clip.
        max_images, max_videos: most media of one request; pages of PDF files are pictures.
        media_hosts: hosts of addresses that clients may name, exactly; empty for `data:` only.
        media_path: folder whose files clients may name by `file:`; None for none.
        limits: bounds on each medium; `max_output_bytes` bounds all pixels of a request, also after
            its pictures are padded to one size.
        max_media_bytes: pixels of all requests that have not ended.
        max_visual_tokens: of a request, as far as the processor tells them beforehand; None for the
            model's context.
        media_seconds: time for each medium, in seconds, after which its decoder is killed.
        readers: processes that read media.
        max_body_bytes: size of a request.
        max_bodies_bytes: size of all requests that are being read.
        max_items: values, keys and brackets in the JSON of a request.
        max_messages: messages of a request, and parts of all of them.
        max_stops, max_stop_length: stop texts of a request, and characters of each.
        characters_per_token: most characters of a prompt for each token of the model's context.
        max_prediction: characters of a prediction.
        body_seconds: time in which the body of a request comes, in seconds, and one second more for
            each 64 KiB of it.
        hosts: names of this server in requests. Empty for any name if there are keys; without keys,
            for its addresses and the names of this machine.
        grace: seconds in which running answers may end after SIGTERM.
        keep_alive: seconds of silence after which a stream gets a comment line.
    """

    model: str | None = None
    api_keys: tuple[str, ...] = ()
    batch: SchedulerLimits = field(default_factory=SchedulerLimits)
    prompt_cache: int | str = PROMPT_CACHE
    max_new_tokens: int = 1024
    max_samples: int = 8
    frames: int = 8
    max_images: int = 16
    max_videos: int = 4
    media_hosts: tuple[str, ...] = ()
    media_path: Path | None = None
    limits: Limits = STRANGERS
    max_media_bytes: int = 2048 * MIB
    max_visual_tokens: int | None = None
    media_seconds: float = 30.0
    readers: int = 2
    max_body_bytes: int = 64 * MIB
    max_bodies_bytes: int = 256 * MIB
    max_items: int = 2**18
    max_messages: int = 1024
    max_stops: int = 16
    max_stop_length: int = 64
    characters_per_token: int = 8
    max_prediction: int = 65_536
    body_seconds: float = 30.0
    hosts: tuple[str, ...] = ()
    grace: float = 30.0
    keep_alive: float = 15.0
