"""Downloads from http and https addresses.

Redirects are followed one by one, so that each is checked like the first address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, BinaryIO

import httpx2

from draftlens.core.background import start_in_background
from draftlens.media.limits import Limits, format_bytes, over_limit, refusal

_SCHEMES = ("http", "https")
# Some servers refuse a client's own name. A compressed file would be stored as it is.
_HEADERS = {"User-Agent": "draftlens", "Accept-Encoding": "identity"}
_SILENCE = 10.0
"""Seconds without data after which a download fails."""
_MAX_REDIRECTS = 5
_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def download(address: str, path: Path, limits: Limits) -> None:
    if not limits.max_download_bytes:
        raise refusal(address, "addresses are not read here (Limits.max_download_bytes is 0)")
    try:
        _run(_fetch(address, path, limits))
    except TimeoutError:
        limit = f"{limits.max_download_s:g} seconds"
        figure = f"the download takes longer than {limit}"
        raise over_limit(address, figure, limit, "max_download_s") from None
    except httpx2.TimeoutException:
        cause = f"the server said nothing for {_silence(limits):g} seconds"
        raise refusal(address, cause) from None
    except httpx2.InvalidURL:  # its text may quote a part of a password
        raise refusal(address, "it is not a valid address") from None
    except (httpx2.HTTPError, OSError, ValueError, ExceptionGroup) as error:
        raise refusal(address, f"it cannot be downloaded ({_reason(error)})") from None


def _run(fetching: Coroutine[Any, Any, None]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(fetching)
    else:
        start_in_background(lambda: asyncio.run(fetching))()


def _silence(limits: Limits) -> float:
    return min(_SILENCE, limits.max_download_s)


def _reason(error: BaseException) -> str:
    while True:
        if isinstance(error, ExceptionGroup):  # of a port that no system has
            error = error.exceptions[0]
        elif error.__cause__ is not None:
            error = error.__cause__
        else:
            break
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


async def _fetch(address: str, path: Path, limits: Limits) -> None:
    """Write what is at an address to a file before the deadline."""
    # Proxies of the environment are the client's, and a transport of one's own has none.
    transport = None if limits.private_addresses else _PublicTransport(address)
    async with (
        asyncio.timeout(limits.max_download_s),
        httpx2.AsyncClient(
            transport=transport, headers=_HEADERS, timeout=_silence(limits)
        ) as client,
    ):
        response = await _open(client, address, limits)
        with path.open("wb") as file:
            await _copy(response, file, address, limits)


async def _open(client: httpx2.AsyncClient, address: str, limits: Limits) -> httpx2.Response:
    """The response after at most `_MAX_REDIRECTS` redirects, its body not yet read."""
    request = client.build_request("GET", address)
    for _ in range(_MAX_REDIRECTS + 1):
        login = _take_login(request)
        if request.url.scheme not in _SCHEMES or not request.url.host:
            target = f"{request.url.scheme}://{request.url.host}"
            raise refusal(address, f"it leads to {target}, but only http and https are read")
        _check_host(address, request.url, limits)
        response = await client.send(request, auth=login, stream=True)
        if response.next_request is None:
            break
        await response.aclose()
        request = response.next_request
    else:
        raise refusal(address, f"it is redirected more than {_MAX_REDIRECTS} times")
    if not response.is_success:
        status = f"{response.status_code} {response.reason_phrase}"
        raise refusal(address, f"the server answers {status}")
    return response


def _check_host(address: str, url: httpx2.URL, limits: Limits) -> None:
    """Raise MediaError for a host that is not on the list. The parsed address is the one that the
    client connects to."""
    name = url.host if url.port is None else f"{url.host}:{url.port}"
    if limits.hosts is not None and name.lower() not in limits.hosts:
        raise refusal(address, f"{name} is not among the hosts that are read (Limits.hosts)")


def _take_login(request: httpx2.Request) -> tuple[str, str] | None:
    url = request.url
    if not url.userinfo:
        return None
    request.url = url.copy_with(userinfo=b"")
    return url.username, url.password


async def _copy(response: httpx2.Response, file: BinaryIO, address: str, limits: Limits) -> None:
    size = int(response.headers.get("Content-Length") or 0)
    limit = limits.max_download_bytes
    if size <= limit:
        async for chunk in response.aiter_raw():
            size = max(size, file.tell() + len(chunk))
            if size > limit:
                break
            file.write(chunk)
    if size > limit:
        figure = f"it is {format_bytes(size)} or more"
        raise over_limit(address, figure, format_bytes(limit), "max_download_bytes")


class _PublicTransport(httpx2.AsyncBaseTransport):
    """Connects to public addresses only, and to those that were checked.

    A host is resolved once: a second answer of its name server could be another address.
    """

    def __init__(self, given: str) -> None:
        self._given = given
        self._transport = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        failure: Exception | None = None
        addresses = await _resolve(request.url)
        if not all(map(_is_public, addresses)):
            cause = f"{request.url.host} is not on the public internet"
            raise refusal(self._given, f"{cause} (Limits.private_addresses is False)")
        for address in addresses:
            pinned = httpx2.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,  # with the name under `Host`
                extensions={**request.extensions, "sni_hostname": _host(request.url)},
            )
            try:
                return await self._transport.handle_async_request(pinned)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
        assert failure is not None  # a name that resolves has an address
        raise failure

    async def aclose(self) -> None:
        await self._transport.aclose()


def _host(url: httpx2.URL) -> str:
    return url.raw_host.decode("ascii")


async def _resolve(url: httpx2.URL) -> list[str]:
    port = url.port or (443 if url.scheme == "https" else 80)
    addresses = await asyncio.get_running_loop().getaddrinfo(
        _host(url), port, type=socket.SOCK_STREAM
    )
    return [str(entry[4][0]) for entry in addresses]


def _is_public(text: str) -> bool:
    """Whether an address, and an IPv4 address embedded in it, is of the public internet."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is None and address not in _GLOBAL_UNICAST:
            return False  # such as fec0::/10 and ::127.0.0.1, which count as global
        address = embedded or address
    return address.is_global and not address.is_multicast
