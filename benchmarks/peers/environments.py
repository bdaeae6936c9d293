"""The engines of ``engines.toml``, and an environment of its own for each of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("engines.toml")
OURS = "edgeinfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a model.

    Attributes:
        name: its table.
        title: shown.
        environment: whose packages it uses; the part of it before a hyphen says how it is opened.
        packages: installed into that environment, pinned.
        bare: installed without what they declare.
        file: what is opened.
        kinds: precisions in which it takes part.
        options: given to the worker's function.
        reduced: whether it computes in a lower precision by its own default.
        own: whether it runs what edgeinfer made.
        slow: whether the short form leaves it out.
    """

    name: str
    title: str = ""
    environment: str = ""
    packages: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    file: str = "onnx"
    kinds: tuple[str, ...] = ("fp32",)
    options: Mapping[str, Any] = field(default_factory=dict)
    reduced: bool = False
    own: bool = False
    slow: bool = False

    @property
    def opens(self) -> str:
        """The worker's function."""
        return self.environment.split("-", maxsplit=1)[0]

    @property
    def is_peer(self) -> bool:
        """Whether it is a competitor: not ours, and of full precision."""
        return not self.own and not self.reduced


def engines() -> dict[str, Engine]:
    """Every engine by name."""
    found = {}
    for name, row in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        shown: dict[str, Any] = {"name": name, "title": name, "environment": name}
        shown |= {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        found[name] = Engine(**shown)
    return found


def interpreters(chosen: Mapping[str, Engine], folder: Path | None) -> dict[str, Path | str]:
    """Return each environment's interpreter, or why there is none.

    Args:
        chosen: the engines that are requested.
        folder: for the environments; None takes this interpreter, with what is installed in it.
    """
    here = Path(sys.executable)
    if folder is None:
        return {e.environment: here for e in chosen.values()}
    found: dict[str, Path | str] = {OURS: here}
    every = engines()
    for name in dict.fromkeys(e.environment for e in chosen.values()):
        if name != OURS:
            found[name] = _installed(every[name], folder / name)
    return found


def _installed(engine: Engine, folder: Path) -> Path | str:
    """Make an environment once; what it holds is written down, so another pin makes it anew."""
    python = folder / "bin" / "python"
    mark, wanted = folder / "installed", "\n".join((*engine.packages, *engine.bare))
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted:
        return python
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [*pip, "numpy", *engine.packages],
        *([[*pip, "--no-deps", *engine.bare]] if engine.bare else []),
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["?"])[-1]
            return f"{' '.join(step[-2:])}: {last[-160:]}"
    mark.write_text(wanted, encoding="utf-8")
    return python
