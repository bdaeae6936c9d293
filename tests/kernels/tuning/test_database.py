"""Measurements that outlive any end of the program."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from edgeinfer.errors import OutputError
from edgeinfer.kernels.tuning import database as tuning_database
from edgeinfer.kernels.tuning.database import FINAL, TRIED, Database, Record, best

ONE = Record(TRIED, "k1", "x86-64-v3", "some CPU", 1, "matmul", [[1, "a"], []], 2.5, 0.01, 5)

WRITER = """
import sys
from pathlib import Path
from edgeinfer.kernels.tuning.database import TRIED, Database, Record
database, name = Database(Path(sys.argv[1])), sys.argv[2]
for i in range(int(sys.argv[3])):
    database.add(Record(TRIED, name, "m", "c", 1, trace=[i] * 300, us=float(i)))
    print(i, flush=True)
    while not i and len({r.key for r in database.read().records}) < int(sys.argv[4]):
        pass
"""


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "new" / "tuning.jsonl")


def test_what_is_added_is_read(database: Database) -> None:
    assert database.read().records == []
    database.add(ONE)
    database.add(replace(ONE, us=None, error="it rains"))
    assert database.read().records == [ONE, replace(ONE, us=None, error="it rains")]
    assert database.read().damaged == 0


@pytest.mark.parametrize("cut", [1, 20, 90])
def test_a_line_cut_short_costs_that_line_only(database: Database, cut: int) -> None:
    database.add(ONE)
    database.add(replace(ONE, key="k2"))
    data = database.path.read_bytes()
    database.path.write_bytes(data[:-cut])
    database.add(replace(ONE, key="k3"))
    found = database.read()
    if cut == 1:
        # The line was whole, only its end was not on the disk.
        assert [r.key for r in found.records] == ["k1", "k2", "k3"]
    else:
        assert [r.key for r in found.records] == ["k1", "k3"]
        assert found.damaged == 1


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"v":2,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":"1"}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"us":"fast"}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"us":NaN}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"us":-1}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"us":1e999}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"title":7}',
        b'{"v":1,"kind":"tried","key":"k","machine":"m","cpu":"c","threads":1,"sure":null}',
    ],
)
def test_lines_that_are_no_records_are_counted(database: Database, line: bytes) -> None:
    database.add(ONE)
    with database.path.open("ab") as file:
        file.write(line + b"\n")
    assert database.read().records == [ONE]
    assert database.read().damaged == 1


def _writer(database: Database, name: str, count: int, writers: int = 1) -> subprocess.Popen[bytes]:
    """Write lines, the second one as soon as there are so many writers."""
    given = (str(database.path), name, str(count), str(writers))
    command = [sys.executable, "-c", WRITER, *given]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def test_a_line_longer_than_any_record_is_not_read_whole(database: Database) -> None:
    database.add(ONE)
    with database.path.open("ab") as file:
        file.write(b"[" * 3_000_000 + b"\n" + b"[" * 100_000 + b"\n")
    database.add(ONE)
    read = database.read()
    assert (len(read.records), read.damaged) == (2, 2)


def test_what_all_lines_take_in_memory_has_a_bound(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line alone is small; orders of brackets take fifty times their size."""
    for i in range(40):
        database.add(replace(ONE, key=f"{i}", trace=[[[[[[[]]]]]]] * 500))
    assert len(database.read().records) == 40
    monkeypatch.setattr(tuning_database, "SPARE", 2_000_000)
    read = database.read()
    assert 5 < len(read.records) < 35
    assert read.damaged == 40 - len(read.records)


def test_two_writers_do_not_mix_their_lines(database: Database) -> None:
    both = [_writer(database, name, 60, writers=2) for name in ("a", "b")]
    assert [p.wait(60) for p in both] == [0, 0]
    found = database.read()
    assert found.damaged == 0
    for name in ("a", "b"):
        assert [r.us for r in found.records if r.key == name] == [float(i) for i in range(60)]
    order = "".join(r.key for r in found.records)
    assert "ab" in order
    assert "ba" in order


def test_a_writer_killed_at_any_time_loses_the_last_line_at_most(database: Database) -> None:
    writer = _writer(database, "a", 100_000)
    assert writer.stdout is not None
    while not writer.stdout.readline().startswith(b"20"):
        pass
    writer.send_signal(signal.SIGKILL)
    told = writer.stdout.read().split()
    writer.wait(30)
    last = int(told[-1]) if told else 20
    database.add(replace(ONE, key="after"))
    keys = [r.key for r in database.read().records]
    # What was told to be kept is there.
    assert len(keys) >= last + 2
    assert keys[-1] == "after"


def test_a_full_disk_is_told_and_leaves_what_was_there(database: Database) -> None:
    resource = pytest.importorskip("resource")
    database.add(ONE)
    before = database.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        with pytest.raises(OutputError, match="cannot keep a measurement"):
            database.add(replace(ONE, key="k2"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, old)
    assert database.path.read_bytes() == before
    database.add(replace(ONE, key="k2"))
    assert [r.key for r in database.read().records] == ["k1", "k2"]


def test_a_full_disk_leaves_no_empty_file(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OutputError, match="cannot keep a measurement: No space left"):
            database.add(ONE)
    assert not database.path.exists()
    database.add(ONE)
    assert [r.key for r in database.read().records] == ["k1"]


def test_who_waits_for_a_file_that_is_removed_writes_into_the_next(database: Database) -> None:
    fcntl = pytest.importorskip("fcntl")
    database.path.parent.mkdir(exist_ok=True)
    database.path.touch()
    with database.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=database.add, args=(ONE,))
        waiting.start()
        time.sleep(0.1)
        database.path.unlink()
    waiting.join(10)
    assert [r.key for r in database.read().records] == ["k1"]


def test_another_program_waits_for_the_lock(database: Database) -> None:
    fcntl = pytest.importorskip("fcntl")
    database.add(ONE)
    with database.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        writer = _writer(database, "b", 1)
        time.sleep(0.6)
        assert len(database.read().records) == 1
    assert writer.wait(30) == 0
    assert len(database.read().records) == 2


def test_who_keeps_the_lock_is_told_in_the_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read the file can hold it."""
    monkeypatch.setattr(tuning_database, "_PATIENCE_S", 0.2)
    database.add(ONE)
    with database.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        with pytest.raises(OutputError, match="another program keeps it locked"):
            database.add(ONE)
    assert database.read().records == [ONE]


def test_the_last_word_on_a_workload_counts_of_this_cpu_first() -> None:
    mine = replace(ONE, kind=FINAL, us=1.0, before_us=2.0)
    other = replace(mine, cpu="other", us=0.5)
    worse = replace(mine, us=4.0)
    assert best([mine, other], "x86-64-v3", "some CPU")["k1"] == mine
    assert best([other, mine], "x86-64-v3", "some CPU")["k1"] == mine
    assert best([mine, worse], "x86-64-v3", "some CPU")["k1"] == worse
    assert best([mine, other], "x86-64-v3", "third")["k1"] == other
    assert best([mine], "x86-64-v4") == {}
    assert best([ONE], "x86-64-v3") == {}
    assert (mine.gain, worse.gain, ONE.gain) == (2.0, 0.5, 0.0)


def test_lines_are_short_json(database: Database) -> None:
    database.add(ONE)
    (line,) = database.path.read_text().splitlines()
    data = json.loads(line)
    assert (data["v"], data["trace"], data["us"]) == (1, [[1, "a"], []], 2.5)
    assert os.stat(database.path).st_mode & 0o777 == 0o644 & ~_umask()


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old
