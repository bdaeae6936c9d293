"""What was measured on this machine, kept between processes in one SQLite file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgeinfer import forks, log
from edgeinfer.backends.base import Probe
from edgeinfer.bundle.cache import cache_root, is_own_file, writable_folder
from edgeinfer.bundle.codec import decode, encode
from edgeinfer.bundle.passing import is_passing
from edgeinfer.records import dataclass
from edgeinfer.runtime.select import Measured

if TYPE_CHECKING:
    from typing import Self

    from edgeinfer.bundle.manifest import Manifest, Variant

FILE = "history-1.sqlite"
"""A change of the table's meaning changes the number, so versions live next to each other."""

PROBLEM_S = 86_400.0
"""Seconds after which a pair that failed is tried again: an engine may have been mended."""

TRYING = "was being tried: process "
"""Starts the problem of a pair that is tried for the first time, before the outcome is known."""

WAIT_S = 5.0
"""Seconds to wait for another process that holds the file."""

_TABLE = """
CREATE TABLE IF NOT EXISTS measured (
    artifact TEXT, backend TEXT, version TEXT, device TEXT, machine TEXT, options TEXT,
    data TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (artifact, backend, version, device, machine, options)
) WITHOUT ROWID
"""

_PROBED = """
CREATE TABLE IF NOT EXISTS probed (backend TEXT PRIMARY KEY, stamp TEXT, data TEXT NOT NULL)
"""

_COLUMNS = ("artifact", "backend", "version", "device", "machine", "options", "data", "at")


@dataclass(frozen=True, slots=True)
class MeasurementKey:
    """What a measurement holds for.

    Attributes:
        artifact: digest of the variant: its files and what judges them.
        backend: the backend's name.
        version: Version of the engine.
        device: kind of unit.
        machine: ``Fingerprint.key`` of that kind.
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
        path: Path of the file; None takes the one in the cache folder.

    Attributes:
        path: Path of the file; None in memory.
        notes: what the user should know.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.notes: list[str] = []
        self._is_inherited = False
        self._lock = forks.lock()
        self.path: Path | None
        try:
            self.path = writable_folder() / FILE if path is None else path
            self._db = self._open(self.path)
        except (OSError, sqlite3.Error) as e:
            where = cache_root() / FILE if path is None else path
            why = (e.strerror or e) if isinstance(e, OSError) else e
            self.notes.append(f"history {where} cannot be written ({why}): kept in memory only")
            self.path = None
            self._db = _copy_in_memory(where)
        forks.watch(self)

    def forked(self) -> None:
        """Open the file for ourselves when it is needed: SQLite's connections cannot be shared."""
        forks.leave_behind(self._db)
        self._is_inherited = True

    def _connection(self) -> sqlite3.Connection:
        """Return the open file; called with the lock held.

        Raises:
            sqlite3.Error: a forked process cannot open it.
        """
        if self._is_inherited:
            try:
                self._db = self._open(self.path) if self.path else _connect(":memory:")
            except OSError as e:
                raise sqlite3.OperationalError(str(e)) from e
            self._is_inherited = False
        return self._db

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        with self._lock:
            if not self._is_inherited:
                self._db.close()

    def get(self, key: MeasurementKey) -> Measured | None:
        """Return what is known; None when nothing is, or a problem that is more than a day old.

        A problem says since when it is remembered, and how it is forgotten; one of memory, disk,
        time or permission is none to remember.

        A problem from the future, which a clock that was set back leaves, is as good as old.
        """
        query = (
            "SELECT data, at FROM measured WHERE artifact=? AND backend=? AND version=? "
            "AND device=? AND machine=? AND options=?"
        )
        try:
            with self._lock:
                row = self._connection().execute(query, _values(key)).fetchone()
        except sqlite3.Error as e:
            self._complain("read", e)
            return None
        measured = None if row is None else _parse(row[0])
        if measured is None or not measured.problem or is_being_tried(measured):
            recent = measured is None or not measured.problem or _is_recent(row[1])
            return measured if recent else None
        # Earlier versions kept what passes, too.
        if not _is_recent(row[1]) or is_passing(measured.problem):
            return None
        since = time.strftime("%H:%M", time.localtime(row[1]))
        hint = f"remembered from {since}; `edgeinfer cache clear` forgets it"
        return replace(measured, problem=f"{measured.problem} ({hint})")

    def put(self, key: MeasurementKey, measured: Measured) -> None:
        """Remember; a failure to write is noted, not raised, because it costs only time."""
        data = json.dumps(asdict(measured))
        row = (*_values(key), data, time.time())
        try:
            with self._lock, self._connection() as db:
                db.execute("INSERT OR REPLACE INTO measured VALUES (?,?,?,?,?,?,?,?)", row)
        except sqlite3.Error as e:
            self._complain("written", e)

    def probe(self, backend: str, stamp: str) -> Probe | None:
        """Return what a backend found when everything it depends on was as ``stamp`` says."""
        query = "SELECT data FROM probed WHERE backend=? AND stamp=?"
        try:
            with self._lock:
                row = self._connection().execute(query, (backend, stamp)).fetchone()
        except sqlite3.Error as e:
            self._complain("read", e)
            return None
        try:
            found = None if row is None else decode(Probe, json.loads(row[0]))[0]
        except (TypeError, ValueError):
            return None
        return found if found is not None and found.available else None

    def put_probe(self, found: Probe, stamp: str) -> None:
        """Remember what a backend found; the one before it is forgotten."""
        row = (found.backend, stamp, json.dumps(asdict(found)))
        try:
            with self._lock, self._connection() as db:
                db.execute("INSERT OR REPLACE INTO probed VALUES (?,?,?)", row)
        except sqlite3.Error as e:
            self._complain("written", e)

    def begin(self, keys: Iterable[MeasurementKey]) -> None:
        """Note that pairs are about to be tried, which may end this process."""
        trying = Measured(problem=f"{TRYING}{os.getpid()} {_started(os.getpid())}")
        for key in keys:
            self.put(key, trying)

    def forget(self, keys: Iterable[MeasurementKey]) -> None:
        """Take back what ``begin`` noted, where a trial was broken off and not at fault."""
        for key in keys:
            try:
                with self._lock, self._connection() as db:
                    query = (
                        "DELETE FROM measured WHERE artifact=? AND backend=? AND version=? "
                        "AND device=? AND machine=? AND options=?"
                    )
                    db.execute(query, _values(key))
            except sqlite3.Error as e:
                self._complain("written", e)

    def clear(self) -> None:
        """Forget everything; that it cannot be written is noted, not raised."""
        try:
            with self._lock, self._connection() as db:
                db.execute("DELETE FROM measured")
                db.execute("DELETE FROM probed")
        except sqlite3.Error as e:
            self._complain("written", e)

    def _complain(self, what: str, error: sqlite3.Error) -> None:
        note = f"history {self.path} could not be {what}: {error}"
        if note not in self.notes:
            self.notes.append(note)
            log.warning("%s", note)

    def _open(self, path: Path) -> sqlite3.Connection:
        # SQLite would wait forever at the other end of a pipe.
        if path.exists() and not path.is_file():
            raise OSError("it is not a file")
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
            log.warning("%s", self.notes[-1])
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
            db.execute(_PROBED)
        db.execute("SELECT count(*) FROM measured").fetchone()
        _check_columns(db)
    except BaseException:
        db.close()
        raise
    return db


def _check_columns(db: sqlite3.Connection) -> None:
    """Refuse a sound database that somebody else made."""
    columns = tuple(row[1] for row in db.execute("PRAGMA table_info(measured)"))
    if columns != _COLUMNS:
        raise sqlite3.DatabaseError(f"its table has the columns {', '.join(columns)}")


def _copy_in_memory(path: Path) -> sqlite3.Connection:
    """Start from a file that can be read though not written, as in an image of a container.

    One that others than this user and root could have made is not believed: it decides what runs.
    """
    db = _connect(":memory:")
    # Nor may it be looked at, where the folder is another user's.
    with contextlib.suppress(sqlite3.Error, OSError):
        if not path.is_file() or not is_own_file(path):
            return db
        source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            kinds = source.execute("SELECT type FROM sqlite_master WHERE name='measured'")
            # A view may have no end.
            if kinds.fetchall() != [("table",)]:
                return db
            rows = source.execute("SELECT * FROM measured").fetchall()
        finally:
            source.close()
        with db:
            db.executemany("INSERT INTO measured VALUES (?,?,?,?,?,?,?,?)", rows)
    return db


_IDLE = ("id", "target", "accuracy", "latency_ms")
"""Fields of a variant that say whose it is and how it fared at its maker's."""


def digest_of(variant: Variant, manifest: Manifest) -> str:
    """Return the digest of what is measured, and of all that its bundle says of judging it.

    Two bundles may hold the same files and judge them by other vectors, budgets or types: whatever
    one of them allows or refuses counts for itself alone.

    Args:
        variant: that is run.
        manifest: its bundle's manifest.
    """
    of_variant = {k: v for k, v in encode(variant).items() if k not in _IDLE}
    about = (manifest.inputs, manifest.outputs, manifest.states, manifest.vectors)
    parts = [of_variant, *(encode(part) for part in about)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _values(key: MeasurementKey) -> tuple[str, ...]:
    return (key.artifact, key.backend, key.version, key.device, key.machine, key.options)


def ended_while_tried(measured: Measured | None) -> str:
    """Say which process ended while it tried a pair; empty where none did, or it still runs."""
    if measured is None or not measured.problem.startswith(TRYING):
        return ""
    number, _, started = measured.problem.removeprefix(TRYING).partition(" ")
    alive = number.isdecimal() and started and _started(int(number)) == started
    return "" if alive else number


def is_being_tried(measured: Measured) -> bool:
    """Whether a row tells only that somebody began to try the pair."""
    return measured.problem.startswith(TRYING)


def _started(process: int) -> str:
    """Return when a process was started, in the kernel's count; empty where that is not known."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name, in brackets, may hold anything.
    return text.rpartition(")")[2].split()[19]


def _is_recent(at: Any) -> bool:
    return isinstance(at, float) and 0 <= time.time() - at <= PROBLEM_S


def _parse(text: Any) -> Measured | None:
    """Python writes infinities as ``Infinity``, which JSON has not; they are the defaults here."""
    if not isinstance(text, str):
        return None
    try:
        data = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return None
    if not isinstance(data, dict):
        return None
    known = {key: value for key, value in data.items() if value is not None}
    measured = decode(Measured, known, extra_keys=True)[0]
    figures = () if measured is None else [v for v in asdict(measured).values() if v != ""]
    # A time below zero would win forever.
    if any(isinstance(v, int | float) and not v >= 0 for v in figures):
        return None
    return measured
