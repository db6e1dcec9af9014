"""Damage to files and values, drawn by a random number generator."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator
from math import inf, nan
from typing import Any

EXTREMES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", bytes(4), b"\0\0\0\1")
"""Sizes and offsets that a header may state, in both orders of bytes."""

HEADS = (b"%PDF-1.7\n", b"\x89PNG\r\n\x1a\n", b"RIFF\xff\xff\xff\xffAVI ", b"\0\0\0\x18ftypmp42")
"""How files of other kinds begin."""

NUMBERS = (b"0", b"-1", b"4294967296", b"99999999999999999999", b"1e309", b"0.0000001", b"NaN")

JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**31, 10**400, 0.5, -0.5, 1e300, inf, -inf, nan),
    *("", "x", "\0", "\ud800", "../../x", "9" * 5000, [], [[]], {}, {"": None}),
    *([1], [[1, 2], [3]], ["a"], [None], {"a": {"b": []}}),
)
"""Values in place of others; JSON as Python writes it knows infinity and nan."""

Damage = Callable[[bytes, random.Random], bytes]


def cut(content: bytes, rng: random.Random) -> bytes:
    """Its beginning."""
    return content[: rng.randrange(len(content))]


def beheaded(content: bytes, rng: random.Random) -> bytes:
    """Without its beginning."""
    return content[rng.randrange(1, len(content)) :]


def flipped(content: bytes, rng: random.Random) -> bytes:
    """With some other bits."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 4, 32))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def flipped_at_the_start(content: bytes, rng: random.Random) -> bytes:
    """With other bytes where headers are."""
    damaged = bytearray(content)
    for _ in range(4):
        damaged[rng.randrange(min(len(damaged), 400))] = rng.randrange(256)
    return bytes(damaged)


def run_of(byte: int) -> Damage:
    """A part of it is overwritten."""

    def overwritten(content: bytes, rng: random.Random) -> bytes:
        begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
        return content[:begin] + bytes([byte]) * (end - begin) + content[end:]

    return overwritten


def of_an_extreme_size(content: bytes, rng: random.Random) -> bytes:
    """With numbers of four bytes that are too large or too small."""
    damaged = bytearray(content)
    for _ in range(rng.choice((1, 3))):
        place = rng.randrange(min(len(damaged), rng.choice((64, 400, len(damaged)))))
        damaged[place : place + 4] = rng.choice(EXTREMES)
    return bytes(damaged)


def of_other_numbers(content: bytes, rng: random.Random) -> bytes:
    """With other numbers, where they are written in digits."""
    found = list(re.finditer(rb"\d+", content))
    for match in sorted(rng.sample(found, min(3, len(found))), key=re.Match.start, reverse=True):
        content = content[: match.start()] + rng.choice(NUMBERS) + content[match.end() :]
    return content


def repeated(content: bytes, rng: random.Random) -> bytes:
    """A part of it stands there again and again."""
    begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:end] + content[begin:end] * 3 + content[end:]


def with_a_part_left_out(content: bytes, rng: random.Random) -> bytes:
    """Without a part in its middle."""
    begin, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:begin] + content[end:]


def with_another_head(content: bytes, rng: random.Random) -> bytes:
    """It begins as another kind of file."""
    head = rng.choice(HEADS)
    return head + content[len(head) :]


def followed_by_noise(content: bytes, rng: random.Random) -> bytes:
    """With random bytes after its end or its first half."""
    return content[: len(content) // rng.choice((1, 2))] + rng.randbytes(1000)


DAMAGE: tuple[Damage, ...] = (
    *(cut, beheaded, flipped, flipped_at_the_start, run_of(0), run_of(255), of_an_extreme_size),
    *(of_other_numbers, repeated, with_a_part_left_out, with_another_head, followed_by_noise),
)


LITTLE: tuple[Damage, ...] = (flipped, of_an_extreme_size, of_other_numbers)
"""Damage that leaves most of a file as it is, so that more than its first check is reached."""


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content with one or two kinds of damage."""
    for damage in rng.sample(rng.choice((DAMAGE, LITTLE, LITTLE)), rng.choice((1, 1, 2))):
        content = damage(content, rng) or b"\0"
    return content


def damaged_json(text: bytes, rng: random.Random) -> bytes:
    """JSON with other values, JSON nested more deeply than parsers go, or no JSON at all."""
    way = rng.randrange(8)
    if way == 0:
        deep = rng.choice((b"[", b'{"a":'))
        return text[: rng.randrange(len(text))] + deep * 100_000
    if way < 3:
        return damaged(text, rng)
    values = json.loads(text)
    for _ in range(rng.choice((1, 1, 3))):
        values = _with_another(values, rng)
    return json.dumps(values).encode()


def _with_another(values: Any, rng: random.Random) -> Any:
    """Values of which one, at any depth, is missing or another one."""
    places = list(_places(values)) if isinstance(values, dict | list) else []
    other = copy.deepcopy(rng.choice(JSON_VALUES))
    if not places or rng.random() < 0.05:
        return other
    holder, key = rng.choice(places)
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = other
    return values


def _places(values: Any) -> Iterator[tuple[Any, Any]]:
    """Containers and their keys. Few of a long list are enough."""
    items = values.items() if isinstance(values, dict) else enumerate(values[:5])
    for key, value in items:
        yield values, key
        if isinstance(value, dict | list):
            yield from _places(value)
