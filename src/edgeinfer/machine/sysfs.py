"""What a system says of itself: small files of Linux or of a recorded copy, output of programs."""

from __future__ import annotations

from pathlib import Path


def text(path: Path) -> str:
    """Return a file's text without surrounding space; empty where it cannot be read.

    Kernel files come and go with the driver, and some may be read by root only: what cannot be read
    is unknown.
    """
    try:
        return path.read_text(errors="replace").strip().strip("\0").strip()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return a file's whole number, decimal or with ``0x``; None where there is none."""
    try:
        return int(text(path), 0)
    except ValueError:
        return None


def indices(listing: str) -> tuple[int, ...]:
    """Return the numbers of a kernel list such as ``0-3,8``; nothing of what is no list."""
    found: list[int] = []
    for part in filter(None, listing.split(",")):
        first, _, last = part.partition("-")
        try:
            found.extend(range(int(first), int(last or first) + 1))
        except ValueError:
            return ()
    return tuple(found)


def printed(*command: str) -> str:
    """Return what a program prints; empty where it is not there or does not end."""
    # Few systems need one, and the module takes milliseconds to import.
    import subprocess

    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout
