"""Cameras, microphones and files as streams, how fast they are looked at, and a page to watch.

Everything beyond Pillow and soundfile is imported when it is needed: OpenCV for USB cameras, videos
and streams, picamera2 for the camera of a Raspberry Pi, and ``arecord`` of ALSA for a microphone.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeinfer.bounded import open_file
from edgeinfer.errors import InputError, NotAvailableError, UsageError
from edgeinfer.installed import install
from edgeinfer.media.audio import pieces
from edgeinfer.media.image import open_image
from edgeinfer.origins import is_foreign, is_loopback, is_nearby, name_of
from edgeinfer.types import Array

if TYPE_CHECKING:
    from email.message import Message
    from typing import Self

    from PIL import Image

PICTURES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
PIECE = 0.032
"""Seconds of audio in one chunk."""

VIEWERS, PATIENCE_S = 16, 10.0
"""Connections to a page at once, and seconds for which one may send or read nothing."""


def frames(source: str, size: tuple[int, int] | None = None) -> Generator[Array, None, None]:
    """Yield images (height, width, 3), uint8, RGB, until the source ends.

    Args:
        source: ``picamera`` (the ribbon camera of a Raspberry Pi), a number (a USB camera), a
            image, a folder of images, a video, an ``rtsp://`` or ``http://`` address, or a
            GStreamer pipeline that ends in ``appsink``.
        size: width and height to ask a camera for; it gives what it can.

    Raises:
        InputError: the source is no image or video, or cannot be opened.
        NotAvailableError: a library that it needs is not installed.
        UsageError: no such file.
    """
    path = Path(source)
    if source == "picamera":
        yield from _pi_camera(size)
    elif path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES)
        if not files:
            raise InputError(source, "a folder of images", "a folder without any")
        yield from (np.asarray(open_image(file)) for file in files)
    elif path.suffix.lower() in PICTURES:
        yield np.asarray(open_image(path))
    else:
        yield from _by_opencv(source, size)


def audio(source: str, rate: int, *, paced: bool = False) -> Generator[Array, None, None]:
    """Yield chunks of audio (n,), float32, -1..1, mono, until the source ends.

    Args:
        source: ``mic`` (ALSA's default microphone), ``mic:DEVICE`` (as ``arecord -L`` lists them),
            or a recording.
        rate: samples a second.
        paced: give a recording as slowly as it was spoken.

    Raises:
        InputError: the source is no recording, or the microphone ended.
        NotAvailableError: ``arecord`` or a library is not installed.
        UsageError: no such file.
    """
    count = max(int(rate * PIECE), 1)
    if source == "mic" or source.startswith("mic:"):
        yield from _microphone(
            source.removeprefix("mic").removeprefix(":") or "default", rate, count
        )
        return
    start, given = time.monotonic(), 0
    for piece in pieces(source, rate):
        for begin in range(0, len(piece), count):
            yield piece[begin : begin + count]
            given += len(piece[begin : begin + count])
            if paced:
                time.sleep(max(start + given / rate - time.monotonic(), 0.0))


class FrameRate:
    """Frames a second over the last few frames.

    Args:
        window: frames.
    """

    def __init__(self, window: int = 30) -> None:
        self._times: deque[float] = deque(maxlen=window + 1)
        self.count = 0

    def tick(self) -> float:
        """Count a frame; return frames a second, 0.0 for the first."""
        self._times.append(time.perf_counter())
        self.count += 1
        spent = self._times[-1] - self._times[0]
        return (len(self._times) - 1) / spent if spent > 0 else 0.0


class Preview:
    """A page that shows the newest image, as motion JPEG; for devices without a screen.

    Args:
        port: 0 takes a free one.
        host: ``127.0.0.1`` for this machine alone; ``0.0.0.0`` lets everyone in the network watch.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._frame = b""
        self._lock = threading.Lock()
        self._new = threading.Condition(self._lock)
        preview = self

        class Handler(BaseHTTPRequestHandler):
            timeout = PATIENCE_S

            def do_GET(self) -> None:
                preview._serve(self)

            def log_message(self, *_: object) -> None:
                """Say nothing for each request."""

        self._is_local = is_loopback(host)
        self._server = _Viewers((host, port), Handler)
        self.address = f"http://{host}:{self._server.server_address[1]}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def show(self, image: Image.Image) -> None:
        """Let this be what is seen."""
        buffer = BytesIO()
        image.save(buffer, "JPEG", quality=80)
        with self._lock:
            self._frame = buffer.getvalue()
            self._new.notify_all()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def _refusal(self, headers: Message) -> str:
        """Say why a request is none of a person who looks; empty for one that is."""
        host, origin = headers.get("Host", ""), headers.get("Origin")
        name = name_of(host)
        if not (is_loopback(name) if self._is_local else is_nearby(name)):
            return f"{name!r} is no name of this machine: take its address"
        names = ("Sec-Fetch-Site", "Sec-Fetch-Mode", "Sec-Fetch-Dest")
        is_other = origin is not None and origin.partition("://")[2] != host
        if is_other or is_foreign(*(headers.get(each, "") for each in names)):
            return "pages of other sites may not look"
        return ""

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        if refusal := self._refusal(request.headers):
            request.send_error(403, refusal)
            return
        request.send_response(200)
        request.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        request.send_header("Cache-Control", "no-store")
        request.end_headers()
        shown = b""
        try:
            while True:
                with self._lock:
                    if self._frame is shown:
                        self._new.wait(timeout=5)
                    shown = self._frame
                head = f"Content-Type: image/jpeg\r\nContent-Length: {len(shown)}\r\n\r\n"
                request.wfile.write(b"--frame\r\n" + head.encode() + shown + b"\r\n")
        except OSError:
            # Who looks is gone, or reads no longer.
            return


class _Viewers(ThreadingHTTPServer):
    """A server of so many connections at once; more are closed."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._free = threading.Semaphore(VIEWERS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer one connection in a thread of its own, where there is room."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer it, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()


def _pi_camera(size: tuple[int, int] | None) -> Generator[Array, None, None]:
    try:
        from picamera2 import Picamera2
    except ImportError as e:
        fix = "sudo apt install python3-picamera2, and a venv with --system-site-packages"
        raise NotAvailableError(f"the camera of a Raspberry Pi needs picamera2: {fix}") from e
    camera = Picamera2()
    # libcamera names formats by a little-endian word: in memory, BGR888 has red first.
    main = {"format": "BGR888", "size": size or (640, 480)}
    camera.configure(camera.create_video_configuration(main=main))
    camera.start()
    try:
        while True:
            yield np.asarray(camera.capture_array("main"))[:, :, :3]
    finally:
        camera.stop()
        camera.close()


def _by_opencv(source: str, size: tuple[int, int] | None) -> Generator[Array, None, None]:
    # A file is a file, whatever a stranger called it.
    is_file = not source.isdigit() and Path(source).is_file()
    is_pipeline, is_address = " ! " in source and not is_file, "://" in source
    if not (source.isdigit() or is_pipeline or is_address or is_file):
        raise UsageError(f"{source}: no such file, camera or stream")
    try:
        import cv2
    except ImportError as e:
        fix = install("camera")
        raise NotAvailableError(f"cameras, videos and streams need OpenCV: {fix}") from e
    if is_pipeline:
        capture = cv2.VideoCapture(source, cv2.CAP_GSTREAMER)
    else:
        if is_file:
            _refuse_lists(Path(source))
            # Nor does OpenCV take the name for anything else then.
            source = str(Path(source).absolute())
        capture = cv2.VideoCapture(int(source) if source.isdigit() else source)
    try:
        if not capture.isOpened():
            hint = _build_hint(cv2) if is_pipeline else ""
            expected = "a camera, video or stream that OpenCV can open"
            raise InputError(source, expected, "one that it cannot", hint)
        if size is not None and source.isdigit():
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, size[0])
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, size[1])
        while True:
            ok, frame = capture.read()
            if not ok:
                return
            yield np.ascontiguousarray(frame[:, :, ::-1])
    finally:
        capture.release()


_VIDEOS = "AVI, FLV, GIF, IVF, Matroska, MJPEG, MP4, MPEG, Ogg, QuickTime, WMV"
_BEGINNINGS = (
    *((4, kind) for kind in (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")),
    *((0, mark) for mark in (b"RIFF", b"FLV\x01", b"GIF8", b"DKIF", b"OggS", b"\x1aE\xdf\xa3")),
    *((0, mark) for mark in (b"\xff\xd8\xff", b"\x00\x00\x01", b"\x00\x00\x00\x01")),
    (0, b"0&\xb2u\x8ef\xcf\x11"),
)
"""First bytes of containers, at their positions: FFmpeg takes what begins so for nothing else."""


def _refuse_lists(path: Path) -> None:
    """Refuse what does not begin as videos do: playlists name other files and addresses.

    Raises:
        InputError: it does not.
    """
    with open_file(path) as file:
        head = file.read(512)
    is_stream = head[:1] == head[188:189] == b"G"
    if not is_stream and not any(head[at : at + len(mark)] == mark for at, mark in _BEGINNINGS):
        received = "another file, such as a playlist"
        raise InputError(str(path), f"a video ({_VIDEOS})", received, "name what it plays")


def _build_hint(cv2: Any) -> str:
    has = any(
        "GStreamer" in line and "YES" in line for line in cv2.getBuildInformation().split("\n")
    )
    return "" if has else "this OpenCV was built without GStreamer; JetPack's own has it"


def _microphone(device: str, rate: int, count: int) -> Generator[Array, None, None]:
    if shutil.which("arecord") is None:
        raise NotAvailableError("a microphone needs arecord: sudo apt install alsa-utils")
    command = ["arecord", "-q", "-D", device, "-f", "S16_LE", "-c", "1", "-r", str(rate)]
    process = subprocess.Popen(
        [*command, "-t", "raw"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        while process.stdout is not None and (raw := process.stdout.read(2 * count)):
            whole = raw[: len(raw) // 2 * 2]
            yield np.frombuffer(whole, "<i2").astype(np.float32) / np.float32(32768)
        said = b"" if process.stderr is None else process.stderr.read()
        reason = " ".join(said.decode(errors="replace").split()) or "no more audio"
        raise InputError(f"mic:{device}", "a microphone that records", reason)
    finally:
        process.terminate()
        process.wait()
