"""An arm64 Debian and the engines' wheels in the user's cache, for programs under emulation.

``python -m edgeinfer.convert.arm_userland`` makes it once: about 700 MB, from Debian's archive and
the Python package index. Nothing is installed into this system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from edgeinfer.backends.process.emulator import folder
from edgeinfer.errors import NotAvailableError

WHEELS = (
    *("numpy", "click", "rich", "platformdirs", "packaging", "pillow"),
    *("onnxruntime", "openvino", "ai-edge-litert"),
)
# The compiler's own dependencies stay away: the runtime needs none of them.
TVM_WHEELS = ("apache-tvm", "apache-tvm-ffi")
_PLATFORMS = (
    "manylinux_2_35",
    "manylinux_2_28",
    "manylinux_2_27",
    "manylinux_2_17",
    "manylinux2014",
)


def make() -> Path:
    """Make what is missing and return the folder.

    Raises:
        NotAvailableError: a tool is missing, or a step failed.
    """
    where = folder()
    root, site = where / "root", where / "site"
    if not (root / "usr/bin/python3.11").exists():
        for tool in ("debootstrap", "dpkg"):
            if shutil.which(tool, path=_path()) is None:
                raise NotAvailableError(f"{tool} is missing: apt-get install debootstrap")
        where.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        packages = "--include=python3,libgomp1,libstdc++6"
        options = ("--arch=arm64", "--foreign", "--variant=minbase", packages)
        _call("debootstrap", *options, "bookworm", root)
        for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
            _call("dpkg", "-x", package, root)
    if not (site / ".complete").exists():
        shutil.rmtree(site, ignore_errors=True)
        platforms = [x for name in _PLATFORMS for x in ("--platform", f"{name}_aarch64")]
        only = ("--only-binary=:all:", "--python-version", "3.11", "--implementation", "cp")
        pip = (sys.executable, "-P", "-m", "pip", "install", "-q", "--target", site)
        _call(*pip, *only, *platforms, *WHEELS)
        _call(*pip, "--no-deps", *only, *platforms, *TVM_WHEELS)
        (site / ".complete").touch()
    return where


def _path() -> str:
    return f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"


def _call(*command: object) -> None:
    done = subprocess.run(
        [*map(str, command)],
        stdout=sys.stderr.fileno(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PATH": _path()},
    )
    if done.returncode:
        raise NotAvailableError(f"{command[0]}: exit code {done.returncode}: {done.stderr[-500:]}")


if __name__ == "__main__":
    sys.stdout.write(f"{make()}\n")
