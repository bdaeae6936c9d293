"""Runs on the device, as the text of ``python3 -c``: standard library only, from Python 3.6 on.

It takes a tar archive from its input, runs a command next to what was in it, and gives back a
header line of JSON, what the command printed, and the file that it wrote. It ends with the
connection: the command is ended and the folder is removed, however that ends.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from typing import NoReturn

LEAST = (3, 10)


def stop(number: int, _frame: object) -> NoReturn:
    """End as a program that a signal ends, with everything put away."""
    raise SystemExit(128 + number)


def follow(process: "subprocess.Popen[bytes]") -> None:
    """End the command when the connection ends."""
    try:
        while os.read(0, 1 << 16):
            pass
    except OSError:
        pass
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()


def unpack(folder: str) -> None:
    """Take the archive from the input."""
    os.mkdir(os.path.join(folder, "files"))
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:
            archive.extractall(folder)


def work(folder: str, variables: str, words: "list[str]", said: str) -> int:
    """Run the command, and return its exit code."""
    paths = [os.path.join(folder, "runtime"), os.environ.get("PYTHONPATH", "")]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    environment.update(json.loads(variables))
    with open(said, "wb") as out:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=os.path.join(folder, "files"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            env=environment,
        )
    try:
        threading.Thread(target=follow, args=(process,), daemon=True).start()
        return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def main(mark: str, output: str, variables: str, words: "list[str]") -> None:
    """Unpack, run, give back, remove."""
    if sys.version_info < LEAST:
        here = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"Python 3.10 or newer is needed and this is {here}; ssh://HOST/PYTHON names one")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, stop)
    os.umask(0o077)
    folder = tempfile.mkdtemp(prefix="edgeinfer-")
    try:
        unpack(folder)
        said = os.path.join(folder, "said")
        code = work(folder, variables, words, said)
        wrote = os.path.join(folder, "files", output)
        parts = [said, wrote] if output and os.path.isfile(wrote) else [said]
        header = {"code": code, "sizes": [os.path.getsize(part) for part in parts]}
        out = sys.stdout.buffer
        out.write(f"\n{mark} {json.dumps(header)}\n".encode())
        for part in parts:
            with open(part, "rb") as file:
                shutil.copyfileobj(file, out)
        out.flush()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
