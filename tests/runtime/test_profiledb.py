import logging
import multiprocessing
import os
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from edgeinfer.bundle import cache
from edgeinfer.bundle.manifest import (
    EngineRequirement,
    FileRecord,
    Manifest,
    SourceRecord,
    StateRecord,
    Variant,
    VectorRecord,
)
from edgeinfer.runtime.profiledb import FILE, PROBLEM_S, MeasurementKey, ProfileDB, digest_of
from edgeinfer.runtime.select import Measured
from edgeinfer.types import Stored, TensorSpec
from tests.forked import in_fork

KEY = MeasurementKey("sha", "ort", "1.23", "cpu", "machine", "{}")
MEASURED = Measured(1.5, 2.0, 3.0, 666.0, 10.0, 20)


def test_what_was_put_is_there_next_time() -> None:
    with ProfileDB() as db:
        assert db.get(KEY) is None
        db.put(KEY, MEASURED)
        assert db.path == Path(os.environ["EDGEINFER_CACHE"]) / FILE
    with ProfileDB() as db:
        assert db.get(KEY) == MEASURED
        assert db.notes == []


@pytest.mark.parametrize(
    "field", ["artifact", "backend", "version", "device", "machine", "options"]
)
def test_every_part_of_the_key_counts(field: str) -> None:
    with ProfileDB() as db:
        db.put(KEY, MEASURED)
        assert db.get(replace(KEY, **{field: "other"})) is None


def test_the_last_measurement_counts_until_cleared() -> None:
    with ProfileDB() as db:
        db.put(KEY, MEASURED)
        db.put(KEY, replace(MEASURED, median_ms=9.0))
        assert db.get(KEY) == replace(MEASURED, median_ms=9.0)
        db.clear()
        assert db.get(KEY) is None


def test_what_was_not_measured_stays_so() -> None:
    with ProfileDB() as db:
        db.put(KEY, Measured(problem="refused"))
        found = db.get(KEY)
        assert found is not None
        assert re.fullmatch(
            r"refused \(remembered from \d\d:\d\d; `edgeinfer cache clear` forgets it\)",
            found.problem,
        )
        assert found == Measured(problem=found.problem)


def test_a_problem_is_forgotten_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with ProfileDB() as db:
        db.put(KEY, Measured(problem="out of memory"))
        db.put(replace(KEY, device="gpu"), MEASURED)
        monkeypatch.setattr(time, "time", lambda: now + PROBLEM_S + 60)
        assert db.get(KEY) is None
        assert db.get(replace(KEY, device="gpu")) == MEASURED


def test_a_clock_that_was_set_back_keeps_no_problem_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    with ProfileDB() as db:
        db.put(KEY, Measured(problem="out of memory"))
        db.put(replace(KEY, device="gpu"), MEASURED)
        monkeypatch.setattr(time, "time", lambda: now - 365 * 86400)
        assert db.get(KEY) is None
        assert db.get(replace(KEY, device="gpu")) == MEASURED


@pytest.mark.parametrize("damage", ["text", "middle", "empty"])
def test_a_damaged_file_is_moved_aside_and_begun_anew(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "h.sqlite"
    with ProfileDB(path) as db:
        for i in range(300):
            db.put(replace(KEY, artifact=f"{i:040}"), MEASURED)
    if damage == "text":
        path.write_bytes(b"this was a database once " * 100)
    elif damage == "middle":
        data = bytearray(path.read_bytes())
        data[100:] = b"\x55" * (len(data) - 100)
        path.write_bytes(data)
    else:
        path.write_bytes(b"")
    with caplog.at_level(logging.WARNING, "edgeinfer"), ProfileDB(path) as db:
        assert db.get(KEY) is None
        db.put(KEY, MEASURED)
        assert db.get(KEY) == MEASURED
        if damage != "empty":
            assert "was damaged" in db.notes[0]
            assert "was damaged" in caplog.text
            assert len(list(tmp_path.glob("h.sqlite.damaged-*"))) == 1
    with ProfileDB(path) as db:
        assert db.get(KEY) == MEASURED
        assert db.notes == []


@pytest.mark.parametrize("row", ["{", "[]", '{"median_ms": "fast"}', '{"runs": 1e999}'])
def test_a_row_that_makes_no_sense_is_no_measurement(tmp_path: Path, row: str) -> None:
    path = tmp_path / "h.sqlite"
    with ProfileDB(path) as db:
        db.put(KEY, MEASURED)
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE measured SET data = ?", (row,))
    raw.close()
    with ProfileDB(path) as db:
        assert db.get(KEY) in (None, Measured())


def test_an_unusable_cache_means_memory_and_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file"))
    with ProfileDB() as db:
        assert db.path is None
        assert "cannot be written" in db.notes[0]
        assert "kept in memory only" in db.notes[0]
        db.put(KEY, MEASURED)
        assert db.get(KEY) == MEASURED


def test_a_history_that_can_only_be_read_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProfileDB() as db:
        db.put(KEY, MEASURED)

    def refuse(*_: str) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("edgeinfer.runtime.profiledb.writable_folder", refuse)
    with ProfileDB() as db:
        assert db.path is None
        assert db.get(KEY) == MEASURED
        db.put(replace(KEY, device="gpu"), MEASURED)
        assert db.get(replace(KEY, device="gpu")) == MEASURED


def test_a_write_that_fails_is_noted_once(tmp_path: Path) -> None:
    db = ProfileDB(tmp_path / "h.sqlite")
    db.close()
    db.put(KEY, MEASURED)
    db.put(KEY, MEASURED)
    assert db.get(KEY) is None
    assert len(db.notes) == 2


def test_threads_share_one() -> None:
    with ProfileDB() as db, ThreadPoolExecutor(8) as pool:

        def work(i: int) -> bool:
            key = replace(KEY, artifact=str(i))
            db.put(key, replace(MEASURED, runs=i))
            return db.get(key) == replace(MEASURED, runs=i)

        assert all(pool.map(work, range(100)))


def write_many(path: str, start: int) -> None:
    with ProfileDB(Path(path)) as db:
        for i in range(start, start + 50):
            db.put(replace(KEY, artifact=str(i)), replace(MEASURED, runs=i))
        if db.notes:
            raise RuntimeError(db.notes[0])


def test_processes_share_one_file(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite"
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=write_many, args=(str(path), 50 * n)) for n in range(3)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(60)
    assert [job.exitcode for job in jobs] == [0, 0, 0]
    with ProfileDB(path) as db:
        for i in range(150):
            assert db.get(replace(KEY, artifact=str(i))) == replace(MEASURED, runs=i)


@pytest.mark.parametrize(
    "problem",
    ["std::bad_alloc", "out of memory while it was loaded", "No space left on device"],
)
def test_a_problem_that_passes_is_none_to_remember(problem: str) -> None:
    with ProfileDB() as db:
        db.put(KEY, Measured(problem=f"engine refuses model.onnx: {problem}"))
        assert db.get(KEY) is None


def test_a_folder_that_may_not_be_looked_into_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    with ProfileDB(tmp_path / "history") as db:
        assert "cannot be written (Permission denied): kept in memory only" in db.notes[0]
        db.put(KEY, Measured(problem="refused"))
        assert db.get(KEY) is not None


@pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX")
@pytest.mark.parametrize("how", ["theirs", "anybody's", "view"])
def test_a_history_that_others_may_have_made_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A view without an end in a folder of another user had every load hang."""
    path = tmp_path / "there" / "history"
    path.parent.mkdir()
    with ProfileDB(path) as db:
        db.put(KEY, Measured(median_ms=1.0))
    with sqlite3.connect(path) as own:
        # Without a log next to it.
        own.execute("PRAGMA journal_mode=DELETE")
        if how == "view":
            own.execute("ALTER TABLE measured RENAME TO other")
            own.execute("CREATE VIEW measured AS SELECT * FROM other")
    own.close()
    monkeypatch.setattr(ProfileDB, "_open", _refuse)
    with ProfileDB(path) as db:
        assert (db.get(KEY) is None) == (how == "view")
    if how == "theirs":
        # What root has made may be for all.
        if os.getuid():
            monkeypatch.setattr(cache, "owner", lambda: os.getuid() + 1)
        else:
            os.chown(path.parent, 65534, 65534)
    else:
        path.parent.chmod(0o777)
    with ProfileDB(path) as db:
        assert "kept in memory only" in db.notes[0]
        assert db.get(KEY) is None


def _refuse(self: ProfileDB, path: Path) -> sqlite3.Connection:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_forked_process_has_a_connection_of_its_own(tmp_path: Path) -> None:
    with ProfileDB(tmp_path / "history") as db:
        db.put(KEY, Measured(median_ms=1.0))

        def use() -> float | None:
            found = db.get(KEY)
            db.put(KEY, Measured(median_ms=2.0))
            db.close()
            return None if found is None else found.median_ms

        assert in_fork(use) == 1.0
        found = db.get(KEY)
        assert found is not None
        assert found.median_ms == 2.0


FILE_RECORD = FileRecord("variants/v/m.onnx", "0" * 64, 3)
OTHER_FILE = FileRecord("variants/v/n.onnx", "1" * 64, 4)
VARIANT = Variant("v", "t", "onnx", "fp32", (FILE_RECORD,), (EngineRequirement("ort"),))
VECTOR = VectorRecord(FILE_RECORD, "user")
OTHERWISE: dict[type, dict[str, Any]] = {
    Variant: {
        "id": "w",
        "target": "u",
        "format": "onnx_tvm",
        "precision": "fp16",
        "files": (OTHER_FILE,),
        "engines": (EngineRequirement("ort", tested="1.30"),),
        "constraints": {"arch": "aarch64"},
        "accuracy": {"y": {"max_abs": 1.0}},
        "latency_ms": 1.0,
        "stored": {"y": Stored("int8", 9.0, 3)},
        "unverified": "no such device",
        "computed_in": "bf16",
        "consent": "bf16",
    },
    VectorRecord: {
        "file": OTHER_FILE,
        "origin": "calibration",
        "spread": {"y": {"max_abs": 1.0}},
        "edge": True,
        "undecided": True,
    },
}
"""A value other than above for every field."""


@pytest.mark.parametrize("kind", [Variant, VectorRecord])
def test_what_decides_a_verdict_is_part_of_what_it_is_remembered_for(kind: type) -> None:
    spec = TensorSpec("x", "float32", (1,))
    source = SourceRecord("onnx", "m", "0" * 64)
    manifest = Manifest("m", (spec,), (replace(spec, name="y"),), (VARIANT,), (VECTOR,), source)
    key = digest_of(VARIANT, manifest)
    others = OTHERWISE[kind]
    assert set(others) == {f.name for f in fields(kind)}
    idle = {"id", "target", "accuracy", "latency_ms"} if kind is Variant else set()
    for name, value in others.items():
        variant, vector = VARIANT, VECTOR
        if kind is Variant:
            variant = replace(VARIANT, **{name: value})
        else:
            vector = replace(VECTOR, **{name: value})
        found = digest_of(variant, replace(manifest, vectors=(vector,)))
        assert (found == key) == (name in idle), name
    for part in (
        replace(manifest, outputs=(replace(spec, name="y", dtype="float16"),)),
        replace(manifest, inputs=(replace(spec, shape=(2,)),)),
        replace(manifest, states=(StateRecord("x", "y"),)),
        replace(manifest, vectors=()),
    ):
        assert digest_of(VARIANT, part) != key
