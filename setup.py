"""Stops where a checkout lost its links, and builds outside it; all else is in pyproject.toml.

Five folders of src/edgeinfer are links. Git for Windows writes text files in place of links where
the user may make none, and the package would lack its parts. What an earlier build left in a folder
would get into the next wheel, so each has a folder of its own, which is removed.
"""

import sys
import tempfile
from pathlib import Path

from setuptools import setup

PARTS = ("backends", "convert", "kernels", "profiles", "runtime")

lost = [p for p in PARTS if not (Path(__file__).resolve().parent / "src/edgeinfer" / p).is_dir()]
if lost:
    sys.exit(
        f"edgeinfer: this checkout has no links: src/edgeinfer/{lost[0]} is no folder; on Windows "
        "turn Developer Mode on, run `git config --global core.symlinks true` and clone again, or "
        "install a wheel that was built elsewhere"
    )
with tempfile.TemporaryDirectory() as folder:
    setup(options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}})
