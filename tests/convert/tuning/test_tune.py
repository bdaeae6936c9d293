"""What ``edgeinfer tune`` asks for and tells."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from benchmarks.tiny import MLP, bundle, save
from edgeinfer.bundle.archive import Bundle
from edgeinfer.bundle.sealer import new_key, seal
from edgeinfer.convert.lower.tvm.machines import machine
from edgeinfer.convert.tuning import tune as tuning
from edgeinfer.convert.tuning.tune import TuningRequest, in_turns
from edgeinfer.errors import EdgeInferError, NotAvailableError, OutputError, UsageError


@pytest.fixture
def net(tmp_path: Path) -> Path:
    save(MLP, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_other_targets_are_refused(net: Path) -> None:
    with pytest.raises(UsageError, match=r"'rpi5' is not made by TVM; known: .*tvm-x86-64-v3"):
        tuning.tune(net, TuningRequest("rpi5"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="a Cortex is another machine there")
def test_another_machine_needs_a_device(net: Path) -> None:
    with pytest.raises(
        UsageError, match="cortex-a76 is not this machine: --device ssh://USER@HOST"
    ):
        tuning.tune(net, TuningRequest("tvm-cortex-a76"))


def test_a_bundle_gives_its_onnx_variant(tmp_path: Path) -> None:
    import numpy as np

    made = bundle(MLP, tmp_path / "made.edge", {"x": np.ones((1, 16), np.float32)})
    found = tuning._source(made, tmp_path)
    assert found.read_bytes() == (tmp_path / "made.onnx").read_bytes()


def test_a_device_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    order = TuningRequest("tvm-cortex-a76", device="10.0.0.7:9090", threads=4, workers=3)
    where = tuning._where(machine("cortex-a76"), order)
    assert (where.cpu, where.workers, where.linker) == ("cortex-a76", 1, "aarch64-linux-gnu-gcc")
    assert where.target["num-cores"] == 4
    named = TuningRequest("tvm-cortex-a76", device="10.0.0.7:9090", device_name="Pi 5")
    assert tuning._where(machine("cortex-a76"), named).cpu == "Pi 5"


@pytest.mark.parametrize("device", ["board", "board:ninety", "board:9190/", "ssh:/board"])
def test_a_device_has_a_known_form(net: Path, device: str) -> None:
    with pytest.raises(UsageError, match=r"expected HOST:PORT of a TVM RPC server.* ssh://"):
        tuning.tune(net, TuningRequest("tvm-x86-64-v3", device=device))


@pytest.mark.parametrize(
    ("before", "sure", "pays"), [(1.2, 1.1, True), (1.2, 1.03, False), (1.02, 1.1, False)]
)
def test_the_whole_model_must_gain_more_than_noise(before: float, sure: float, pays: bool) -> None:
    assert tuning.WholeModel(before, 1.0, {}, 0.0, sure).pays is pays


def test_calls_are_timed_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "_BATCH_S", 0.0)
    seen: list[str] = []
    calls: dict[str, Any] = {n: lambda n=n: seen.append(n) for n in ("a", "b")}
    found = in_turns(calls, 3)
    assert seen[8:] == ["a", "b"] * 3
    assert [len(times) for times in found.values()] == [3, 3]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minutes": 0.0}, "minutes: expected more than 0, received 0"),
        ({"minutes": -1.0}, "received -1"),
        ({"minutes": float("nan")}, "received nan"),
        ({"trials": 0}, "trials: expected 1 at least, received 0"),
        ({"tasks": -2}, "kernels: expected 1 at least, received -2"),
        ({"threads": 0}, "threads: expected"),
        ({"workers": 0}, "workers: expected"),
    ],
)
def test_numbers_that_ask_for_nothing_are_refused(
    net: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        tuning.tune(net, TuningRequest("tvm-x86-64-v3", **given))


@pytest.mark.parametrize("place", ["/dev/full", "/proc/nothing/d.jsonl", "."])
def test_a_place_that_keeps_nothing_is_refused_before_anything_is_measured(
    net: Path, place: str
) -> None:
    with pytest.raises(OutputError, match=r"cannot keep a measurement|is no file"):
        tuning.tune(net, TuningRequest("tvm-x86-64-v3", database=Path(place)))


def test_a_bundle_in_the_way_is_told_before_anything_is_measured(net: Path, tmp_path: Path) -> None:
    (tmp_path / "there.edge").touch()
    order = TuningRequest(
        "tvm-x86-64-v3", database=tmp_path / "d.jsonl", output=str(tmp_path / "there.edge")
    )
    with pytest.raises(UsageError, match=r"exists; --overwrite \(overwrite=True\) replaces it"):
        tuning.tune(net, order)


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("missing/o.edge", OutputError, "the folder .*missing does not exist"),
        ("pictures", UsageError, "is a folder but not a bundle"),
        ("net.onnx", UsageError, "what is tuned is written as a bundle"),
        ("notes.txt", UsageError, "exists and is not a bundle"),
    ],
)
def test_what_is_no_bundle_is_never_replaced(
    net: Path, tmp_path: Path, name: str, kind: type[Exception], said: str
) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "mine.jpg").write_text("mine")
    (tmp_path / "notes.txt").write_text("mine")
    before = net.read_bytes()
    order = TuningRequest(
        "tvm-x86-64-v3",
        database=tmp_path / "d.jsonl",
        output=str(tmp_path / name),
        overwrite=True,
    )
    with pytest.raises(kind, match=said):
        tuning.tune(net, order)
    assert (tmp_path / "pictures" / "mine.jpg").read_text() == "mine"
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert net.read_bytes() == before


@pytest.mark.parametrize("name", ["o.edge", "o.edge/"])
def test_the_chosen_bundle_is_written_whole_or_not_at_all(tmp_path: Path, name: str) -> None:
    import numpy as np

    made = bundle(MLP, tmp_path / "made.edge", {"x": np.ones((1, 16), np.float32)})
    target = f"{tmp_path}/{name}"
    found = tuning._put(made, target, overwrite=False)
    assert found.is_dir() == name.endswith("/")
    with Bundle.open(found) as written, Bundle.open(made) as source:
        written.check()
        assert written.manifest == source.manifest
    (record,) = written.manifest.variants[0].files[:1]
    folder = Path(f"{tmp_path}/broken")
    shutil.copytree(_unpacked(made, tmp_path), folder)
    (folder / record.path).unlink()
    with pytest.raises(EdgeInferError):
        tuning._put(folder, target, overwrite=True)
    with Bundle.open(found) as kept:
        kept.check()
    assert not list(tmp_path.glob(".*tmp-*"))


def _unpacked(made: Path, folder: Path) -> Path:
    return tuning._put(made, f"{folder}/unpacked/", overwrite=True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="tunes for x86-64")
def test_a_missing_linker_is_told_before_anything_is_measured(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    order = TuningRequest(
        "tvm-x86-64-v3", database=tmp_path / "d.jsonl", output=str(tmp_path / "o.edge")
    )
    with pytest.raises(NotAvailableError, match="need gcc; apt-get install gcc"):
        tuning.tune(net, order)
    far = TuningRequest("tvm-cortex-a76", database=tmp_path / "d.jsonl", device="board:9190")
    with pytest.raises(NotAvailableError, match="need aarch64-linux-gnu-gcc"):
        tuning.tune(net, far)


def test_weights_of_an_encrypted_bundle_are_not_written(tmp_path: Path) -> None:
    import numpy as np

    plain, folder = tmp_path / "m.edge", tmp_path / "t"
    folder.mkdir()
    made = bundle(MLP, plain, {"x": np.ones((1, 16), np.float32)})
    key = new_key(tmp_path / "key")
    seal(made, tmp_path / "sealed.edge", key)
    with pytest.raises(UsageError, match="is encrypted, and tuning writes its weights"):
        tuning._source(tmp_path / "sealed.edge", folder, {"key": tmp_path / "key"})
    assert list(folder.iterdir()) == []
