from pathlib import Path

import numpy as np
import pytest

import edgeinfer
from edgeinfer import profiles
from edgeinfer.convert.pipeline.request import resolve_profiles
from edgeinfer.errors import UsageError


def test_calibration_of_arrays_says_where_they_belong() -> None:
    with pytest.raises(
        UsageError, match=r"calibration: expected the path .* received list; .*savez"
    ):
        edgeinfer.export(
            *("net.onnx", "net.edge"),
            targets=["cpu"],
            precision="static_wi8_ai8",
            calibration=[np.zeros((1, 3))],  # type: ignore[arg-type]
        )


def test_a_language_models_calibration_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UsageError, match=r"calibration: expected the path .* received list; write"):
        edgeinfer.export(
            *(tmp_path, tmp_path / "net.edge"),
            targets=["llm"],
            calibration=["a text"],  # type: ignore[arg-type]
        )


def test_all_leaves_out_what_is_asked_for_by_name_only() -> None:
    found = {p.name: p for p in resolve_profiles(("all",))}
    assert {"cpu", "openvino", "rpi4", "ios", "macos", "android"} <= found.keys()
    assert not any(p.by_name_only for p in found.values())
    left = set(profiles.names()) - found.keys()
    assert {"ios27", "macos27", "tvm-x86-64-v3"} <= left
    assert [p.name for p in resolve_profiles(("all", "ios27", "cpu"))] == [*found, "ios27"]
