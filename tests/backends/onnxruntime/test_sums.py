"""Integer products are exact on every processor, and only those that need it pay for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.engines import import_onnxruntime
from edgeinfer.backends.onnxruntime import sums
from edgeinfer.backends.onnxruntime.backend import OnnxRuntimeBackend

ort = pytest.importorskip("onnxruntime")

X = np.full((1, 64), 255, np.uint8)


def product(entries: dict[str, str]) -> int:
    options = ort.SessionOptions()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(sums._MODEL, options, providers=["CPUExecutionProvider"])
    return int(session.run(None, {"x": X})[0][0, 0])


def test_the_largest_sum_is_exact_with_what_is_asked_for_here() -> None:
    assert product(sums.precise_entries(import_onnxruntime())) == 255 * 127 * 64


def test_the_entry_is_asked_for_only_where_sums_saturate() -> None:
    saturates = product({}) != 255 * 127 * 64
    assert sums.precise_entries(import_onnxruntime()) == ({sums.ENTRY: "1"} if saturates else {})


@pytest.mark.parametrize("exact", [True, False])
def test_sessions_take_what_the_processor_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    monkeypatch.setattr(sums, "_is_exact", lambda _: exact)
    (tmp_path / "m.onnx").write_bytes(sums._MODEL)
    artifact = Artifact("onnx", tmp_path / "m.onnx", (), ())
    for precise, wanted in ((True, not exact), (False, False)):
        executable: Any = OnnxRuntimeBackend().load(artifact, LoadOptions(precise=precise))
        assert has_entry(executable._session.get_session_options()) is wanted
        executable.close()


def has_entry(settings: Any) -> bool:
    try:
        return bool(settings.get_session_config_entry(sums.ENTRY) == "1")
    except RuntimeError:
        return False


def test_other_architectures_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    sums._is_exact.cache_clear()
    try:
        assert sums.precise_entries(import_onnxruntime()) == {}
    finally:
        sums._is_exact.cache_clear()


def test_a_processor_with_vnni_needs_no_session_to_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy found is right here, and where it finds nothing one product tells."""
    if sums._has_vnni():
        assert product({}) == 255 * 127 * 64
    opened: list[object] = []
    session = ort.InferenceSession

    def opening(*args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return session(*args, **kwargs)

    monkeypatch.setattr(ort, "InferenceSession", opening)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for has, sessions in ((True, 0), (False, 1)):
        monkeypatch.setattr(sums, "_has_vnni", lambda has=has: has)
        sums._is_exact.cache_clear()
        sums.precise_entries(ort)
        assert len(opened) == sessions
    sums._is_exact.cache_clear()
