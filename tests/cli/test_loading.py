"""How ``edgeinfer run`` loads: apart, in time, signed, counted."""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tiny import MLP
from benchmarks.tiny import bundle as tiny
from edgeinfer.bundle.manifest import EngineRequirement, Manifest, SourceRecord, Variant
from edgeinfer.bundle.writer import BundleWriter
from edgeinfer.cli.output import Output
from edgeinfer.types import TensorSpec


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 16), np.float32))
    return tmp_path / "in.npz"


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return tiny(MLP, tmp_path / "mlp.edge", {"x": np.ones((1, 16), np.float32)})


@pytest.fixture
def failing(tmp_path: Path, faulty_engines: Path) -> tuple[Path, Path]:
    """A bundle whose first engine hangs or ends its process in a run, and an input."""
    x, y = TensorSpec("x", "float32", (4,)), TensorSpec("x_out", "float32", (4,))
    ones = np.ones(4, np.float32)
    path = tmp_path / "m.edge"
    with BundleWriter(path) as writer:
        file = writer.add_bytes("variants/v/m.onnx", b"run:hang")
        engines = (EngineRequirement("faulty"),)
        variant = Variant("v", "cpu", "onnx", "fp32", (file,), engines)
        source = SourceRecord("onnx", "f", "0" * 64)
        writer.finish(Manifest("m", (x,), (y,), (variant,), (), source))
    np.savez(tmp_path / "in.npz", x=ones)
    return path, tmp_path / "in.npz"


def test_an_engine_that_hangs_is_stopped(cli: Any, failing: tuple[Path, Path]) -> None:
    result = cli("run", *failing, "--run-timeout", "0.5")
    assert (result.code, result.out) == (3, "")
    told = "faulty: its process ended while it was to run: no answer for 0.5 s"
    assert result.err.splitlines()[-1] == f"edgeinfer: {told}"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_limit_is_a_number_above_zero(
    cli: Any, mlp: Path, arrays: Path, seconds: str
) -> None:
    result = cli("run", mlp, arrays, "--run-timeout", seconds)
    assert (result.code, result.out) == (2, "")


def test_a_process_of_its_own_and_who_is_next(cli: Any, mlp: Path, arrays: Path) -> None:
    apart = cli("run", mlp, arrays, "--isolate", "--on-crash", "next", "-v")
    assert apart.code == 0
    assert ", in a process of its own\n" in apart.out
    assert "in a process of its own" not in cli("run", mlp, arrays, "-v").out
    assert cli("run", mlp, arrays, "--on-crash", "maybe").code == 2


def test_nothing_unsigned_is_run(cli: Any, mlp: Path, arrays: Path, tmp_path: Path) -> None:
    refused = cli("run", mlp, arrays, "--require-signature")
    assert refused.code == 1
    assert "no key is trusted: give trusted= (--trusted) or set EDGEINFER_TRUSTED_KEYS" in (
        refused.err
    )
    key, public = tmp_path / "key.pem", tmp_path / "key.pub"
    assert cli("sign", "--key", key, "--new-key", public).code == 0
    for more in ((), ("--require-signature",)):
        refused = cli("run", mlp, arrays, "--trusted", public, *more)
        assert refused.code == 1
        assert "is not signed, and a signature is required" in refused.err
    assert cli("sign", mlp, "--key", key).code == 0
    assert cli("run", mlp, arrays, "--trusted", public, "--require-signature").code == 0


def test_a_device_that_is_not_here(cli: Any, mlp: Path, arrays: Path) -> None:
    result = cli("run", mlp, arrays, "--device", "npu")
    assert result.code == 3
    assert "npu was requested and cannot be used" in result.err


def test_runs_are_counted(
    cli: Any, mlp: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "stats" not in json.loads(cli("run", mlp, arrays, "--json").out)
    told = json.loads(cli("run", mlp, arrays, "--repeat", "4", "--stats", "--json").out)
    assert told["stats"]["runs"] == 5
    assert told["stats"]["labels"]["model"] == "mlp"
    monkeypatch.setitem(os.environ, "EDGEINFER_STATS", "0")
    assert "\n1 runs in " in cli("run", mlp, arrays, "--stats").out


def test_the_steps_of_a_first_load_are_shown(
    cli: Any, mlp: Path, arrays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    @contextlib.contextmanager
    def progress(_: Output) -> Iterator[Any]:
        yield lambda what, done: shown.append(what)

    monkeypatch.setattr(Output, "progress", progress)
    assert cli("run", mlp, arrays).err == ""
    assert shown == [
        "load the bundle",
        "loading and checking cpu-onnx-fp32 on onnxruntime (cpu), 1 of 1",
        "timing 1 candidates, for 3 s at most",
    ]
    shown.clear()
    assert cli("run", mlp, arrays).code == 0
    assert shown == ["load the bundle"]
    assert logging.getLogger("edgeinfer").level == logging.NOTSET
