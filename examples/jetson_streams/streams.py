"""One detector on many cameras at once, with boxes and the frame rate of each.

    python streams.py detector.edge rtsp://a/1 rtsp://b/2        network cameras
    python streams.py detector.edge 0 2                          USB cameras
    python streams.py detector.edge street.mp4 folder/           files

Each source has a thread that keeps its newest image only; one engine serves them in turn, so a
slow camera never holds up a fast one and nothing piles up.
"""

import argparse
import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import edgeinfer
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.live import FrameRate, Preview, frames
from edgeinfer.media.overlay import overlay
from edgeinfer.runtime.pipelines import ImagePipeline

TILE = (640, 360)


class Source:
    """The newest image of one camera; of a file every image, in order."""

    def __init__(self, name: str, every: bool) -> None:
        self.name, self.every = name, every
        self.rate, self.dropped = FrameRate(), 0
        self.tile: Any = None
        self.ended, self.error = False, ""
        self._picture: Any = None
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def take(self) -> Any:
        """Return an image that was not taken yet, or None."""
        with self._changed:
            picture, self._picture = self._picture, None
            self._changed.notify_all()
        return picture

    def _read(self) -> None:
        try:
            for picture in frames(self.name):
                with self._changed:
                    while self.every and self._picture is not None:
                        self._changed.wait()
                    self.dropped += self._picture is not None
                    self._picture = picture
        except EdgeInferError as e:
            self.error = str(e)
        with self._changed:
            while self._picture is not None:
                self._changed.wait()
            self.ended = True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Finds objects in many streams.")
    parser.add_argument("bundle", help="a detector with its pipeline file")
    parser.add_argument("sources", nargs="+", help="rtsp address, GStreamer pipeline, number, file")
    parser.add_argument("--backend", help="of edgeinfer; default the fastest here")
    parser.add_argument("--frames", type=int, help="stop after so many of all streams")
    parser.add_argument("--http", type=int, metavar="PORT", help="show all streams on a page")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: the network may watch")
    parser.add_argument("--save", type=Path, metavar="JPG", help="keep the last image of all")
    return parser.parse_args()


def together(sources: list[Source]) -> Any:
    """Put the newest tile of every stream side by side."""
    from PIL import Image

    columns = int(np.ceil(np.sqrt(len(sources))))
    rows = -(-len(sources) // columns)
    wall = Image.new("RGB", (columns * TILE[0], rows * TILE[1]))
    for number, source in enumerate(sources):
        if source.tile is not None:
            place = (number % columns * TILE[0], number // columns * TILE[1])
            wall.paste(source.tile.resize(TILE), place)
    return wall


def run(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        detect = stack.enter_context(edgeinfer.pipeline(args.bundle, backend=args.backend))
        if not isinstance(detect, ImagePipeline):
            raise SystemExit(f"{args.bundle}: takes no image")
        preview: Preview | None = None
        if args.http is not None:
            preview = stack.enter_context(Preview(args.http, args.host))
            print(f"watch at {preview.address}", flush=True)
        sources = [Source(name, every=Path(name).exists()) for name in args.sources]
        total, start = 0, time.perf_counter()
        while not all(source.ended for source in sources) and total != args.frames:
            idle = True
            for source in sources:
                picture = source.take()
                if picture is None or total == args.frames:
                    continue
                idle, total = False, total + 1
                found = detect(picture)
                speed = source.rate.tick()
                print(f"{source.name}: {len(found)} objects, {speed:.1f} frames/s", flush=True)
                source.tile = overlay(picture, found, f"{source.name}  {speed:.1f} frames/s")
            if idle:
                time.sleep(0.001)
            elif preview is not None:
                preview.show(together(sources))
        spent = time.perf_counter() - start
        if args.save is not None:
            together(sources).save(args.save)
        for source in sources:
            note = source.error or f"{source.rate.count} frames, {source.dropped} skipped"
            print(f"{source.name}: {note}")
        print(f"all: {total} frames in {spent:.1f} s, {total / max(spent, 1e-9):.1f} frames/s")
        if any(source.error for source in sources):
            sys.exit(1)


if __name__ == "__main__":
    try:
        run(arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdgeInferError as e:
        sys.exit(f"streams.py: {e}")
