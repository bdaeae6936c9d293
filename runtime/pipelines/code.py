"""The functions that a bundle brings for this CPU."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from edgeinfer.backends.process.trial import Trials
from edgeinfer.backends.tvm.plain_functions import FOLDER, Functions, check_functions
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.trust import HINT
from edgeinfer.errors import EdgeInferError
from edgeinfer.types import Preprocessing, SpectrogramInput

SWITCH = "EDGEINFER_PIPELINE_CODE"
"""``off`` leaves images to Pillow, boxes and spectrograms to NumPy."""

TRIALS = Trials("code", "edgeinfer.runtime.pipelines.code_trial")


def open_code(bundle: Bundle) -> tuple[Functions | None, str]:
    """Open the library of a bundle for this CPU.

    A library that was never run here is run once in a process of its own.

    Returns:
        It, or None and why there is none that can be used.
    """
    if os.environ.get(SWITCH) == "off":
        return None, f"{SWITCH}=off"
    # macOS and Windows have other words for it, and other libraries.
    wanted = f"{FOLDER}/{platform.machine()}.so"
    record = next((f for f in bundle.manifest.extra_files if f.path == wanted), None)
    if record is None:
        return None, "the bundle has no code for this machine"
    if not bundle.native.allowed:
        note = f"{wanted} left out: machine code, and {bundle.native.why}"
        bundle.notes.append(f"{note}; {HINT}")
        return None, note
    try:
        path = bundle.path(record)
        return _opened(path, tuple(bundle.manifest.preprocessing.values())), ""
    except EdgeInferError as e:
        return None, f"the bundle's code cannot be used: {e}"


def _opened(path: Path, records: tuple[Preprocessing, ...]) -> Functions:
    check_functions(path)
    sounds = tuple(record for record in records if isinstance(record, SpectrogramInput))
    TRIALS.check(str(path), "", (str(path), sounds))
    return Functions(path)
