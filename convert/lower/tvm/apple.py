"""Libraries for Apple's CPUs, linked and signed without Apple's tools."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from edgeinfer.bundle.scratch import Scratch
from edgeinfer.errors import NotAvailableError

INSTALL = "pip install 'edgeinfer[tvm-apple]'"

_CACHES = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")


@cache
def _cache() -> Scratch:
    """Make a folder for what Zig keeps; a converter that is confined cannot write to its own."""
    return Scratch()


def check_linker(name: str) -> str:
    """Return the linker's name.

    Raises:
        NotAvailableError: it is not installed; has the install line.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise NotAvailableError(
            f"libraries for {name} need a linker for macOS, which Zig is: {INSTALL}"
        )
    return "zig"


def link(output: str, objects: str | Sequence[str], options: Sequence[str] | None = None) -> None:
    """Link a dylib; Zig signs it, without an identity, as arm64 Macs want it.

    Raises:
        NotAvailableError: the linker fails.
    """
    given = [objects] if isinstance(objects, str) else [*objects]
    name = f"-Wl,-install_name,@rpath/{Path(output).name}"
    # TVM's runtime has them.
    later = "-Wl,-undefined,dynamic_lookup"
    # The folder that this is started in has no say in what is imported.
    command = [sys.executable, "-P", "-m", "ziglang", "cc"]
    command += ["-target", "aarch64-macos.12.0", "-shared"]
    done = subprocess.run(
        [*command, "-o", output, *given, name, later, *(options or ())],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **dict.fromkeys(_CACHES, str(_cache().path))},
    )
    if done.returncode:
        raise NotAvailableError(f"zig cc: exit code {done.returncode}: {done.stderr[-500:]}")


link.output_format = "dylib"  # type: ignore[attr-defined]  # how TVM asks for it
