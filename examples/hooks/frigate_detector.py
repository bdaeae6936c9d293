"""A detector for Frigate and Home Assistant: the HTTP interface of DeepStack, which both know.

    python frigate_detector.py yolo.edge --port 5000

Frigate's configuration:

    detectors:
      edgeinfer:
        type: deepstack
        api_url: http://localhost:5000/v1/vision/detection

A request is a form with an image as its part ``image``, and maybe ``min_confidence``; the answer
is JSON with ``predictions``. It listens on this machine alone unless --host says otherwise, knows
no keys and takes one image at a time: ``edgeinfer serve`` is for the open network.
"""

from __future__ import annotations

import argparse
import email
import email.policy
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from edgeinfer.errors import EdgeInferError, InputError
from edgeinfer.tasks import Detector

PATH = "/v1/vision/detection"
MOST = 16 << 20
"""Bytes of a request."""


def parts(kind: str, body: bytes) -> dict[str, bytes]:
    """Return the parts of a form by their names."""
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    found: dict[str, bytes] = {}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            found[name] = content
    return found


class Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    server: Server
    timeout = 30

    def do_POST(self) -> None:
        """Find the objects of an image."""
        length = self.headers.get("Content-Length", "")
        if self.path != PATH:
            self._answer(404, {"success": False, "error": f"POST {PATH}"})
        elif not length.isdecimal() or int(length) > MOST:
            self._answer(413, {"success": False, "error": f"at most {MOST} bytes, and their count"})
        else:
            self._answer(*self._found(self.rfile.read(int(length))))

    def _found(self, body: bytes) -> tuple[int, dict[str, Any]]:
        try:
            form = parts(self.headers.get("Content-Type", ""), body)
            least = float(form.get("min_confidence", b"0"))
        except (ValueError, KeyError) as e:
            return 400, {"success": False, "error": f"no form: {e}"}
        if "image" not in form:
            return 400, {"success": False, "error": "expected a form with the part 'image'"}
        try:
            with self.server.lock:
                found = self.server.detector.detect(form["image"])
        except InputError as e:
            return 400, {"success": False, "error": str(e)}
        except EdgeInferError as e:
            return 500, {"success": False, "error": str(e)}
        predictions = [
            {
                "label": one.label,
                "confidence": one.score,
                **dict(zip(("x_min", "y_min", "x_max", "y_max"), map(round, one.box), strict=True)),
            }
            for one in found
            if one.score >= least
        ]
        return 200, {"success": True, "predictions": predictions}

    def _answer(self, code: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing of each image."""


class Server(ThreadingHTTPServer):
    """Holds the detector; one image at a time."""

    daemon_threads = True

    def __init__(self, detector: Detector, host: str, port: int) -> None:
        self.detector, self.lock = detector, threading.Lock()
        super().__init__((host, port), Handler)


def main() -> int:
    """Serve until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    asked = parser.parse_args()
    with Detector(asked.bundle) as detector, Server(detector, asked.host, asked.port) as server:
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
