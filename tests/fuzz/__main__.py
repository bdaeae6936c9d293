"""Give mutated files to every reader, each in a process of its own that may not misbehave.

A finding is a signal, exit code 70, more than 10 s, or more memory than 20 times the file and
200 MB above what the process held before. The file is kept in ``tests/fuzz/corpus/<reader>`` and
is tried first from then on. ``--seconds 3600`` for the long run.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import hashlib
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.fuzz.readers import Reader, readers

CORPUS = Path(__file__).parent / "corpus"
LONGEST_S, TIMES, FLOOR_MB, BUG = 10.0, 20, 200, 70
BATCH = 64
FAULTS = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)


def main() -> int:
    """Run for so long; return 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", help="only these")
    parser.add_argument("--inputs", type=int, default=0, help="of each reader, whatever it takes")
    asked = parser.parse_args()
    os.environ.update(EDGEINFER_SMALL_CODE="off", EDGEINFER_REGIONS="off", COLUMNS="200")
    failed = 0
    with tempfile.TemporaryDirectory(prefix="edgeinfer-fuzz-") as name:
        folder = Path(name)
        os.environ.update(EDGEINFER_CACHE=f"{name}/cache", EDGEINFER_STATE=f"{name}/state")
        chosen = [r for r in readers(folder) if not asked.reader or r.name in asked.reader]
        for reader in chosen:
            share = asked.seconds / len(chosen)
            codes, findings = _fuzz(reader, folder, share, asked.inputs, asked.seed)
            failed += len(findings)
            told = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
            print(f"{reader.name}: {sum(codes.values())} inputs: {told}", flush=True)  # noqa: T201
            for finding in findings:
                print(f"  FOUND {finding}", flush=True)  # noqa: T201
    return 1 if failed else 0


def _fuzz(
    reader: Reader, folder: Path, seconds: float, inputs: int, seed: int
) -> tuple[Counter[str], list[str]]:
    rng = random.Random(f"{seed} {reader.name}")
    path = folder / f"input{reader.suffix}"
    path.write_bytes(reader.seeds[0])
    for command in reader.commands:
        # Once here: what is imported now is not imported again in every child.
        _quietly([a.replace("{}", str(path)) for a in command])
    gc.collect()
    gc.freeze()
    codes: Counter[str] = Counter()
    findings: list[str] = []
    until = time.monotonic() + seconds
    contents = _contents(reader, rng)
    while (sum(codes.values()) < inputs) if inputs else (time.monotonic() < until):
        batch = [content for content, _ in zip(contents, range(BATCH), strict=False)]
        while batch:
            ended, problem = run_apart(reader, path, batch)
            codes.update(ended)
            if problem:
                content = batch[len(ended) - 1]
                digest = hashlib.sha256(content).hexdigest()[:16]
                kept = CORPUS / reader.name / f"{digest}{reader.suffix}"
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(content)
                findings.append(f"{problem}: {kept}")
            batch = batch[len(ended) :] if problem else []
    return codes, findings


def _contents(reader: Reader, rng: random.Random) -> Iterator[bytes]:
    yield from (p.read_bytes() for p in sorted(CORPUS.glob(f"{reader.name}/*{reader.suffix}")))
    while True:
        yield rng.choice(reader.mutations)(rng.choice(reader.seeds), rng)


def run_apart(reader: Reader, path: Path, batch: list[bytes]) -> tuple[list[str], str]:
    """Give files to a copy of this process until one misbehaves.

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
    with os.fdopen(ours, "rb") as told:
        # Its own: this process may have held more once than it does now.
        before = float(told.readline() or 0)
        while not problem and len(ended) < len(batch):
            if not select.select([told], [], [], LONGEST_S * len(reader.commands))[0]:
                ended.append("hang")
                problem = f"no end after {LONGEST_S:g} s"
                break
            words = told.readline().split()
            if not words:
                _, status = os.waitpid(process, 0)
                signalled = os.WIFSIGNALED(status)
                problem = signal.Signals(os.WTERMSIG(status)).name if signalled else "exit"
                return [*ended, problem], problem
            ended.append(words[0].decode())
            grown = float(words[1]) - before
            if int(words[0]) == BUG:
                problem = "exit code 70"
            elif grown > FLOOR_MB + TIMES * len(batch[len(ended) - 1]) / 2**20:
                problem = f"{grown:.0f} MB for {len(batch[len(ended) - 1])} bytes"
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return ended, problem


def _be_the_copy(reader: Reader, path: Path, batch: list[bytes], theirs: int) -> NoReturn:
    try:
        _end_by_signals()
        os.write(theirs, f"{_peak_mb():.1f}\n".encode())
        for content in batch:
            path.write_bytes(content)
            codes = [_quietly([a.replace("{}", str(path)) for a in c]) for c in reader.commands]
            code = BUG if BUG in codes else codes[0]
            os.write(theirs, f"{code} {_peak_mb():.1f}\n".encode())
    finally:
        os._exit(1)


def _end_by_signals() -> None:
    """Let faults end this process, whatever libraries made of their signals before the fork."""
    faulthandler.disable()
    for fault in FAULTS:
        signal.signal(fault, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FAULTS)


def _quietly(command: list[str]) -> int:
    from edgeinfer.cli.failures import guarded
    from edgeinfer.cli.group import edgeinfer

    with open(os.devnull, "w") as nowhere:  # noqa: SIM117
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            return guarded(edgeinfer, command)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
