"""``import edgeinfer`` is quick and light, and offers what it says."""

import json
import statistics
import subprocess
import sys
import time

import pytest

import edgeinfer

HEAVY = ("onnx", "onnx_ir", "torch", "openvino", "tvm", "onnxruntime", "numpy")
LIMIT_S = 0.150


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def seconds(code: str) -> float:
    start = time.perf_counter()
    run(code)
    return time.perf_counter() - start


def test_importing_is_quick() -> None:
    bare, loaded = [], []
    for _ in range(7):
        bare.append(seconds("pass"))
        loaded.append(seconds("import edgeinfer"))
    assert statistics.median(loaded) - statistics.median(bare) < LIMIT_S


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import edgeinfer", ()),
        ("import edgeinfer; edgeinfer.errors", ()),
        ("import edgeinfer; edgeinfer.load, edgeinfer.Session, edgeinfer.Bundle", ("numpy",)),
        ("import edgeinfer; edgeinfer.pipeline", ("numpy",)),
        ("import edgeinfer.runtime.session, edgeinfer.backends.registry", ("numpy",)),
    ],
)
def test_importing_is_light(code: str, allowed: tuple[str, ...]) -> None:
    out = run(f"{code}; import json, sys; print(json.dumps(list(sys.modules)))")
    assert set(json.loads(out)) & set(HEAVY) <= set(allowed)


def test_the_public_names() -> None:
    assert edgeinfer.__all__ == [
        *("Batching", "Bundle", "Runtime", "Session"),
        *("__version__", "errors", "export", "load", "pipeline"),
    ]
    assert dir(edgeinfer) == edgeinfer.__all__
    for name in edgeinfer.__all__:
        assert getattr(edgeinfer, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edgeinfer' has no attribute 'lode'"):
        _ = edgeinfer.lode
