"""Build the page that ``edgeinfer serve`` shows at ``/``: ``python -m release.page``.

It needs Node.js with npm, which fetches the versions that ``release/web/package-lock.json`` names
by hash. What comes out stands in ``runtime/serve/static`` and is committed, so that neither users
nor tests build anything; its first line holds a hash of what it was made from.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WEB = ROOT / "release" / "web"
STATIC = ROOT / "runtime" / "serve" / "static"
BUILD = ROOT / "build" / "page"
PARTS = ("preact", "@preact/signals", "@preact/signals-core", "htm", "uplot")
"""Packages that the page holds."""

LARGEST = 96_000
"""Bytes that script and styles may have together; 80,000 of them are the packages'."""


def source_hash() -> str:
    """Return a hash of all that the page is made from, long enough to tell when it is stale."""
    found = hashlib.sha256()
    for path in sorted([*WEB.glob("*.json"), *(WEB / "src").iterdir()]):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:24]


def build() -> None:
    """Write the page anew.

    Raises:
        SystemExit: it is larger than it may be.
    """
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(WEB, BUILD)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=BUILD, check=True)
    out = BUILD / "out"
    for entry, kind in (("main.js", "page.js"), ("page.css", "page.css")):
        esbuild = str(BUILD / "node_modules" / ".bin" / "esbuild")
        command = [esbuild, f"src/{entry}", "--bundle"]
        command += ["--minify", "--target=es2022", "--legal-comments=none", "--charset=utf8"]
        subprocess.run([*command, f"--outfile={out / kind}"], cwd=BUILD, check=True)
    names = ", ".join(f"{name} {version}" for name, version, *_ in _packages())
    STATIC.mkdir(exist_ok=True)
    for name, parts in (("page.js", f" with {names}"), ("page.css", "")):
        head = f"/*! made from {source_hash()}{parts}; /licences.txt has the licences */\n"
        (STATIC / name).write_text(head + (out / name).read_text("utf-8"), "utf-8")
    (STATIC / "licences.txt").write_text(_licences(), "utf-8")
    shutil.copy2(WEB / "src" / "index.html", STATIC)
    size = sum((STATIC / name).stat().st_size for name in ("page.js", "page.css"))
    if size > LARGEST:
        raise SystemExit(f"the page has {size} bytes, at most {LARGEST} are wanted")


def _packages() -> list[tuple[str, str, str, Path]]:
    found = []
    for name in PARTS:
        folder = BUILD / "node_modules" / name
        told = json.loads((folder / "package.json").read_text("utf-8"))
        found.append((name, told["version"], told["license"], folder))
    return found


def _licences() -> str:
    rule = "\n" + "-" * 100 + "\n"
    parts = [
        f"{name} {version}, {licence}\n\n{(folder / 'LICENSE').read_text('utf-8').strip()}\n"
        for name, version, licence, folder in _packages()
    ]
    return rule.join(["The page of edgeinfer holds these packages.\n", *parts])


if __name__ == "__main__":
    build()
