"""Give mutated files to every reader, in copies of this process that may not misbehave.

A finding is a signal, exit code 70, more than 10 s of a processor, or more memory than 20 times the
file and 200 MB above what the process held before. The file is kept in
``tests/fuzz/corpus/<reader>`` and is tried first from then on. ``--seconds 3600`` for the long run.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import os
import random
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tests.fuzz.readers import Reader, readers

CORPUS = Path(__file__).parent / "corpus"
LONGEST_S, TIMES, FLOOR_MB, BUG = 10.0, 20, 200, 70
_LONG_S = 5.0
_IDLE = 6
_ENOUGH = 5
"""Findings of a reader, after which others of the same cause are of no use."""

_ROOM_MB = 500
"""What a copy may come to hold before another takes its place."""

FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)


def main() -> int:
    """Run for so long; return 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="only these")
    parser.add_argument(
        "--inputs", type=int, default=0, help="of each reader, at most; 0: any number"
    )
    asked = parser.parse_args()
    os.environ.update(COLUMNS="200")
    failed = total = 0
    with tempfile.TemporaryDirectory(prefix="edgeinfer-fuzz-") as name:
        folder = Path(name)
        os.environ.update(EDGEINFER_CACHE=f"{name}/cache", EDGEINFER_STATE=f"{name}/state")
        chosen = [r for r in readers(folder) if not asked.reader or r.name in asked.reader]
        # Making what is mutated takes its own time.
        end = time.monotonic() + asked.seconds
        for number, reader in enumerate(chosen):
            share = (end - time.monotonic()) / (len(chosen) - number)
            codes, findings = _fuzz(reader, folder, share, asked.inputs, asked.seed)
            failed += len(findings)
            total += codes.total()
            told = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
            print(f"{reader.name}: {codes.total()} inputs: {told}", flush=True)  # noqa: T201
            for finding in findings:
                print(f"  FOUND {finding}", flush=True)  # noqa: T201
    print(f"{total} inputs, {failed} found, seed {asked.seed}", flush=True)  # noqa: T201
    return 1 if failed else 0


def _fuzz(
    reader: Reader, folder: Path, seconds: float, inputs: int, seed: int
) -> tuple[Counter[str], list[str]]:
    rng = random.Random(f"{seed} {reader.name}")
    path = folder / f"input{reader.suffix}"
    path.write_bytes(reader.seeds[0])
    for act in reader.acts:
        # Once here: what is imported now is not imported again in every copy.
        act(path)
    gc.collect()
    gc.freeze()
    codes: Counter[str] = Counter()
    findings: list[str] = []
    until = time.monotonic() + seconds
    contents = _contents(reader, rng)
    size = reader.batch if seconds > _LONG_S else -(-reader.batch // 5)
    while time.monotonic() < until and len(findings) < _ENOUGH:
        left = min(size, inputs - codes.total()) if inputs else size
        if not left:
            break
        batch = [content for content, _ in zip(contents, range(left), strict=False)]
        while batch:
            ended, problem = run_apart(reader, path, batch)
            codes.update(ended)
            if problem:
                findings.append(f"{problem}: {_kept(reader, batch[len(ended) - 1])}")
            batch = batch[len(ended) :]
    return codes, findings


def _kept(reader: Reader, content: bytes) -> Path:
    digest = hashlib.sha256(content).hexdigest()[:16]
    kept = CORPUS / reader.name / f"{digest}{reader.suffix}"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(content)
    return kept


def _contents(reader: Reader, rng: random.Random) -> Iterator[bytes]:
    yield from (p.read_bytes() for p in sorted(CORPUS.glob(f"{reader.name}/*{reader.suffix}")))
    while True:
        yield rng.choice(reader.mutations)(rng.choice(reader.seeds), rng)


def run_apart(reader: Reader, path: Path, batch: list[bytes]) -> tuple[list[str], str]:
    """Give files to a copy of this process until one misbehaves, or the copy has grown old.

    Returns:
        How each ended, up to that one, and what is wrong with it; empty where nothing is.
    """
    ours, theirs = os.pipe()
    process = os.fork()
    if not process:
        os.close(ours)
        _be_the_copy(reader, path, batch, theirs)
    os.close(theirs)
    ended: list[str] = []
    problem = ""
    with os.fdopen(ours, "rb", buffering=0) as told:
        lines = _lines(told, LONGEST_S * len(reader.acts), process)
        while not problem and len(ended) < len(batch):
            words = next(lines, None)
            if words is None:
                _, status = os.waitpid(process, 0)
                if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status) == _OLD:
                    return ended, ""
                problem = "exit"
                if os.WIFSIGNALED(status):
                    problem = signal.Signals(os.WTERMSIG(status)).name
                return [*ended, problem], problem
            if not words:
                ended.append("hang")
                problem = f"no end after {LONGEST_S:g} s"
                break
            ended.append(words[0])
            size, grown = len(batch[len(ended) - 1]), float(words[1])
            if int(words[0]) == BUG:
                problem = "exit code 70"
            elif grown > FLOOR_MB + TIMES * size / 2**20:
                problem = f"{grown:.0f} MB for {size} bytes"
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return ended, problem


def _lines(told: Any, longest_s: float, process: int) -> Iterator[list[str]]:
    """Yield the words of each line; none where it does not come in time.

    On a busy machine that is time of the processor; whoever waits for something has six times as
    much of the clock's.
    """
    rest = b""
    while True:
        start, spent = time.monotonic(), _spent_s(process)
        while b"\n" not in rest:
            if select.select([told], [], [], longest_s)[0]:
                if not (more := told.read(1 << 16)):
                    return
                rest += more
                continue
            waited = time.monotonic() - start
            if waited > _IDLE * longest_s or _spent_s(process) - spent > longest_s:
                yield []
        line, _, rest = rest.partition(b"\n")
        yield line.decode().split()


def _spent_s(process: int) -> float:
    """Return what a process had of the processors."""
    with open(f"/proc/{process}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _be_the_copy(reader: Reader, path: Path, batch: list[bytes], theirs: int) -> NoReturn:
    code = 1
    try:
        # What readers warn of in thousands of files is not what is looked for.
        warnings.simplefilter("ignore")
        _end_by_signals()
        first = _now_mb("VmRSS")
        for content in batch:
            path.write_bytes(content)
            _forget_peak()
            before = _now_mb("VmRSS")
            codes = [act(path) for act in reader.acts]
            worst = BUG if BUG in codes else codes[0]
            os.write(theirs, f"{worst} {_now_mb('VmHWM') - before:.1f}\n".encode())
            if before - first > _ROOM_MB:
                code = _OLD
                break
        else:
            code = _OLD
    finally:
        os._exit(code)


_OLD = 9
"""Exit code of a copy that ends in good order."""


def _forget_peak() -> None:
    """Let the peak of this process's memory be what it holds now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _now_mb(what: str) -> float:
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith(what)]
    return int(line.split()[1]) / 1024


def _end_by_signals() -> None:
    """Let faults end this process, whatever libraries made of their signals before the fork."""
    faulthandler.disable()
    for fault in FAULTS:
        signal.signal(fault, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FAULTS)


if __name__ == "__main__":
    sys.exit(main())
