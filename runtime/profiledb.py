"""What was measured on this machine, kept between processes in one SQLite file."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from edgeinfer.bundle.cache import cache_root, writable_folder
from edgeinfer.bundle.codec import decode
from edgeinfer.runtime.select import Measured

FILE = "history-1.sqlite"
"""A change of the table's meaning changes the number, so versions live beside each other."""

PROBLEM_S = 86_400.0
"""Seconds after which a pair that failed is tried again: memory may have been short that day."""

WAIT_S = 5.0
"""Seconds to wait for another process that holds the file."""

_log = logging.getLogger("edgeinfer")

_TABLE = """
CREATE TABLE IF NOT EXISTS measured (
    artifact TEXT, backend TEXT, version TEXT, device TEXT, machine TEXT, options TEXT,
    data TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (artifact, backend, version, device, machine, options)
) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Key:
    """What a measurement holds for.

    Attributes:
        artifact: digest of the artifact's files and of the vectors it was measured with.
        backend: the backend's name.
        version: of the engine.
        device: kind of unit.
        machine: ``Fingerprint.key``.
        options: load options in a canonical form.
    """

    artifact: str
    backend: str
    version: str
    device: str
    machine: str
    options: str


class ProfileDB:
    """Measurements by key; one object may be used by several threads, one file by processes.

    A damaged file is moved aside and begun anew, with a warning in the log. Where the cache cannot
    be written the history lives in memory and ``notes`` says so.

    Args:
        path: of the file; None takes the one in the cache folder.

    Attributes:
        path: of the file; None in memory.
        notes: what the user should know.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.notes: list[str] = []
        self._lock = threading.Lock()
        self.path: Path | None
        try:
            self.path = writable_folder() / FILE if path is None else path
            self._db = self._open(self.path)
        except (OSError, sqlite3.Error) as e:
            where = cache_root() / FILE if path is None else path
            self.notes.append(f"history {where} cannot be written ({e}): kept in memory only")
            self.path = None
            self._db = _copy_in_memory(where)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            self._db.close()

    def get(self, key: Key) -> Measured | None:
        """Return what is known; None when nothing is, or a problem that is more than a day old.

        A problem from the future, which a clock that was set back leaves, is as good as old.
        """
        query = (
            "SELECT data, at FROM measured WHERE artifact=? AND backend=? AND version=? "
            "AND device=? AND machine=? AND options=?"
        )
        try:
            with self._lock:
                row = self._db.execute(query, _values(key)).fetchone()
        except sqlite3.Error as e:
            self._complain("read", e)
            return None
        measured = None if row is None else _parse(row[0])
        if measured is not None and measured.problem and not 0 <= time.time() - row[1] <= PROBLEM_S:
            return None
        return measured

    def put(self, key: Key, measured: Measured) -> None:
        """Remember; a failure to write is noted, not raised, because it costs only time."""
        data = json.dumps(asdict(measured))
        row = (*_values(key), data, time.time())
        try:
            with self._lock, self._db:
                self._db.execute("INSERT OR REPLACE INTO measured VALUES (?,?,?,?,?,?,?,?)", row)
        except sqlite3.Error as e:
            self._complain("written", e)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock, self._db:
            self._db.execute("DELETE FROM measured")

    def _complain(self, what: str, error: sqlite3.Error) -> None:
        note = f"history {self.path} could not be {what}: {error}"
        if note not in self.notes:
            self.notes.append(note)
            _log.warning("%s", note)

    def _open(self, path: Path) -> sqlite3.Connection:
        try:
            return _connect(str(path))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as e:
            aside = path.with_name(f"{path.name}.damaged-{int(time.time())}-{os.getpid()}")
            # Another process may have moved it first.
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            self.notes.append(f"history was damaged ({e}): moved to {aside}, begun anew")
            _log.warning("%s", self.notes[-1])
            return _connect(str(path))


def _connect(path: str) -> sqlite3.Connection:
    """Open, waiting for others: SQLite's own time-out does not cover the change to WAL."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return _connect_once(path)
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _connect_once(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=WAIT_S, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        with db:
            db.execute(_TABLE)
        db.execute("SELECT count(*) FROM measured").fetchone()
    except BaseException:
        db.close()
        raise
    return db


def _copy_in_memory(path: Path) -> sqlite3.Connection:
    """Start from a file that can be read though not written, as in an image of a container."""
    db = _connect(":memory:")
    with contextlib.suppress(sqlite3.Error):
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            rows = source.execute("SELECT * FROM measured").fetchall()
        finally:
            source.close()
        with db:
            db.executemany("INSERT INTO measured VALUES (?,?,?,?,?,?,?,?)", rows)
    return db


def _values(key: Key) -> tuple[str, ...]:
    return (key.artifact, key.backend, key.version, key.device, key.machine, key.options)


def _parse(text: str) -> Measured | None:
    """Python writes infinities as ``Infinity``, which JSON has not; they are the defaults here."""
    try:
        data = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    known = {key: value for key, value in data.items() if value is not None}
    return decode(Measured, known, extra_keys=True)[0]
