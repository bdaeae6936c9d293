"""How files are changed: bytes at random, members of zips, and values by what a grammar allows."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

NUMBERS = (-1, 0, 1, 2, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**62, 2**63, -(2**63), 10**30)
TEXTS = ("", "/", "..", "a/../b", "\x00", "\x1b]0;x\x07", "é", "x" * 5000, "con", "-1", "nan", "\\")
_BYTES = (b"\x00", b"\xff", b"\x7f", b"\x80", b"PK\x03\x04", b"\xff\xff\xff\xff", b"[", b"{", b'"')


def in_bytes(raw: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, insert, cut, repeat or move a few bytes."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        span = rng.choice((1, 2, 4, 8, 64, 512))
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at % len(data)] = rng.randrange(256)
            case 2:
                data[at:at] = rng.choice(_BYTES)
            case 3:
                del data[at : at + span]
            case 4:
                data[at:at] = data[at : at + span] * rng.choice((1, 2, 50))
            case 5:
                number = rng.choice(NUMBERS) % 2**32
                data[at : at + 4] = number.to_bytes(4, rng.choice(("little", "big")))
            case _:
                piece = data[at : at + span]
                other = rng.randrange(len(data) + 1)
                data[other : other + len(piece)] = piece
    return bytes(data)


def in_value(value: Any, rng: random.Random) -> Any:
    """Change one place of JSON-ready data."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(6):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, rng.choice(TEXTS): value[key]}
            case _:
                return {**value, key: in_value(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        match rng.randrange(6):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + [value[at]] * rng.choice((1, 3, 300))
            case _:
                return [*value[:at], in_value(value[at], rng), *value[at + 1 :]]
    other: list[Any] = [*NUMBERS, *TEXTS, None, True, [], {}, 0.5, 1e308, [[]] * 50]
    return rng.choice(other)


def in_json(raw: bytes, rng: random.Random) -> bytes:
    """Change a few places of a JSON text."""
    value = json.loads(raw)
    for _ in range(rng.choice((1, 1, 2, 5))):
        value = in_value(value, rng)
    return json.dumps(value).encode()


def in_bundle(raw: bytes, rng: random.Random) -> bytes:
    """Change the manifest, a member or their list; half the time hashes are made to fit."""
    with zipfile.ZipFile(io.BytesIO(raw)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    manifest = json.loads(members["manifest.json"])
    match rng.randrange(4):
        case 0:
            name = rng.choice(sorted(members))
            members[name] = in_bytes(members[name], rng)
        case 1:
            members[rng.choice(TEXTS) or "x"] = b"x" * rng.choice((0, 1, 1000))
        case _:
            for _ in range(rng.choice((1, 1, 2, 5))):
                manifest = in_value(manifest, rng)
    if rng.random() < 0.5 and isinstance(manifest, dict):
        _fit(manifest, members)
    members["manifest.json"] = json.dumps(manifest).encode()
    return zipped(members, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))


def refitted(raw: bytes, change: Callable[[dict[str, bytes]], object]) -> bytes:
    """Change members of a bundle, and its hashes so that they fit."""
    with zipfile.ZipFile(io.BytesIO(raw)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    change(members)
    manifest = json.loads(members["manifest.json"])
    _fit(manifest, members)
    members["manifest.json"] = json.dumps(manifest).encode()
    return zipped(members)


def _fit(value: Any, members: dict[str, bytes]) -> None:
    if isinstance(value, list):
        for item in value:
            _fit(item, members)
    if isinstance(value, dict):
        content = members.get(value["path"]) if isinstance(value.get("path"), str) else None
        if content is not None and "sha256" in value:
            value["sha256"] = hashlib.sha256(content).hexdigest()
            value["size_bytes"] = len(content)
        for item in value.values():
            _fit(item, members)


def zipped(members: dict[str, bytes], compress: int = zipfile.ZIP_STORED) -> bytes:
    """Write members into a zip, whatever their names."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compress) as out:
        for name, content in members.items():
            info = zipfile.ZipInfo("x", (1980, 1, 1, 0, 0, 0))
            info.filename = name
            info.compress_type = compress
            out.writestr(info, content)
    return stream.getvalue()


def in_text(raw: bytes, rng: random.Random) -> bytes:
    """Change a line of TOML: drop, repeat or swap it, or give it another value."""
    lines = raw.decode().splitlines()
    for _ in range(rng.choice((1, 2, 4))):
        at = rng.randrange(len(lines))
        key, sign, _ = lines[at].partition("=")
        match rng.randrange(4):
            case 0:
                lines[at : at + 1] = []
            case 1:
                lines.insert(at, lines[at])
            case 2:
                lines[at] = in_bytes(lines[at].encode(), rng).decode("utf-8", "replace")
            case _ if sign:
                value = rng.choice([*map(str, NUMBERS), *map(json.dumps, TEXTS), "[]", "{}", "nan"])
                lines[at] = f"{key}= {value}"
        if not lines:
            lines = [""]
    return "\n".join(lines).encode()
