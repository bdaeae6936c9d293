"""What is particular to TVM's libraries, and the conformance kit on files that our lowering writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if importlib.util.find_spec("tvm") is None:
    pytest.skip("apache-tvm is not installed", allow_module_level=True)

from edgeinfer.backends import tvm as module
from edgeinfer.backends import tvm_library, tvm_trial
from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.testing import Subject, conformance
from edgeinfer.backends.testing.cases import graph
from edgeinfer.backends.testing.subject import describe
from edgeinfer.backends.tvm import TvmBackend
from edgeinfer.errors import LoadError, UnsupportedError
from tests.convert.lower.tvm.run import artifact


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tvm_trial, "_remembered", {})
    # A trial takes a process of its own; one test below has it.
    monkeypatch.setattr(module, "check_runs", lambda *_: None)


def make_artifact(model: bytes, folder: Path) -> Artifact:
    import onnx

    try:
        made = artifact(onnx.load_from_string(model), folder)
    except UnsupportedError:
        # What cannot be written is a file that cannot be loaded.
        path = folder / "model.so"
        path.write_bytes(b"")
        return Artifact("tvm", path, *describe(model))
    return Artifact("tvm", made.path, *describe(model))


KNOWN = {
    "check_numbers_of_size_from_data": "sizes that depend on values are refused by the lowering",
    "check_numbers_of_two_sizes": "sizes of two names that have to agree are refused by the lowering",
    "check_failed_runs_raise": "its model has sizes of two names that have to agree",
}


@conformance([Subject(TvmBackend(), make_artifact, KNOWN)])
def test_conformance(subject: Subject, check: Any, tmp_path: Path) -> None:
    check(subject, tmp_path)
