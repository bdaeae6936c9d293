"""Plays ssh: options as it takes them, the command by a shell here, ``-L`` by a relay."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading


def relay(source: socket.socket, into: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            into.sendall(data)
    for end in (source, into):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def forward(here: int, host: str, port: int) -> None:
    listening = socket.create_server(("127.0.0.1", here))

    def serve() -> None:
        while True:
            caller, _ = listening.accept()
            try:
                called = socket.create_connection((host, port))
            except OSError:
                caller.close()
                continue
            for pair in ((caller, called), (called, caller)):
                threading.Thread(target=relay, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def main(arguments: list[str]) -> int:
    while (option := arguments.pop(0)) != "--":
        value = arguments.pop(0)
        if option == "-L":
            here, host, port = value.rsplit(":", 2)
            forward(int(here), host, int(port))
        elif option not in ("-o", "-p"):
            raise SystemExit(f"unknown option {option}")
    host, *command = arguments
    if host == "nobody@board":
        sys.stderr.write("nobody@board: Permission denied (publickey).\n")
        return 255
    if host == "nowhere":
        sys.stderr.write("ssh: Could not resolve hostname nowhere\n")
        return 255
    return subprocess.run(["sh", "-c", " ".join(command)], check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
