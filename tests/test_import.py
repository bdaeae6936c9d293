"""``import edgeinfer`` is quick and light, and offers what it says."""

import json
import subprocess
import sys

import pytest

import edgeinfer

HEAVY = ("onnx", "onnx_ir", "torch", "openvino", "tvm", "onnxruntime", "numpy")
MOST = 20
"""Modules that the package may load beyond the interpreter's own."""


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def modules(code: str) -> set[str]:
    return set(json.loads(run(f"{code}; import json, sys; print(json.dumps(list(sys.modules)))")))


def test_importing_is_quick() -> None:
    """Counted, not timed: what else the machine does decides nothing."""
    assert len(modules("import edgeinfer") - modules("pass")) <= MOST


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import edgeinfer", ()),
        ("import edgeinfer; edgeinfer.errors", ()),
        ("import edgeinfer; edgeinfer.load, edgeinfer.Session, edgeinfer.Bundle", ("numpy",)),
        ("import edgeinfer; edgeinfer.pipeline", ("numpy",)),
        ("import edgeinfer; edgeinfer.LLM, edgeinfer.SamplingParams", ("numpy",)),
        ("import edgeinfer.runtime.session, edgeinfer.backends.registry", ("numpy",)),
    ],
)
def test_importing_is_light(code: str, allowed: tuple[str, ...]) -> None:
    assert modules(code) & set(HEAVY) <= set(allowed)


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("Runtime", "add close models stats"),
        ("Session", "bind close report reset run run_async stats verify"),
    ],
)
def test_nothing_of_a_class_is_public_by_accident(name: str, members: str) -> None:
    # The hook of ``edgeinfer.forks``, which every watched object has.
    found = {m for m in dir(getattr(edgeinfer, name)) if not m.startswith("_")} - {"forked"}
    assert found == set(members.split())


def test_the_public_names() -> None:
    assert edgeinfer.__all__ == [
        *("LLM", "Batching", "Bundle", "ImagePrompt", "LocalImage", "Runtime"),
        *("SamplingParams", "Session", "__version__"),
        *("bench", "check", "compare", "devices", "errors", "evaluate", "export", "heads"),
        *("inspect", "load", "media", "pipeline", "results", "targets", "tasks", "types", "verify"),
    ]
    assert dir(edgeinfer) == sorted(edgeinfer.__all__)
    for name in edgeinfer.__all__:
        assert getattr(edgeinfer, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'edgeinfer' has no attribute 'lode'"):
        _ = edgeinfer.lode
