"""Reads documents: from a camera, from images, or all that come into a folder.

    python read.py det.edge cls.edge rec.edge letter.jpg sign.png      prints what they say
    python read.py det.edge cls.edge rec.edge --camera picamera        one look of a camera
    python read.py det.edge cls.edge rec.edge --inbox scans/           waits for new images

Next to each image of an inbox a .txt file appears, and with --overlay a .found.png.
"""

import argparse
import contextlib
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import edgeinfer
from edgeinfer.errors import EdgeInferError, InputError
from edgeinfer.media.live import PICTURES, frames
from edgeinfer.media.overlay import overlay
from edgeinfer.results import Text
from edgeinfer.runtime.pipelines import LinesPipeline

MARK = ".found.png"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Reads the text in images.")
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE|PICTURE")
    parser.add_argument("--camera", metavar="SOURCE", help="picamera, a number, a file")
    parser.add_argument("--inbox", type=Path, metavar="FOLDER", help="read what comes in here")
    parser.add_argument("--once", action="store_true", help="read what is in the inbox and stop")
    parser.add_argument("--overlay", action="store_true", help="draw boxes next to each image")
    parser.add_argument("--threads", type=int, help="of each engine")
    return parser.parse_args()


def text_of(read: LinesPipeline, picture: Any, drawn: Path | None) -> str:
    start = time.perf_counter()
    lines = [line for line in read(picture) if isinstance(line, Text)]
    spent = time.perf_counter() - start
    if drawn is not None:
        overlay(picture, lines, f"{1 / spent:.1f} pages/s").save(drawn)
    print(f"({len(lines)} lines, {spent:.2f} s)", file=sys.stderr, flush=True)
    return "\n".join(line.text for line in lines)


def waiting(inbox: Path) -> list[Path]:
    """Return images without their .txt that have been quiet for a second."""
    quiet = time.time() - 1
    return [
        path
        for path in sorted(inbox.iterdir())
        if path.suffix.lower() in PICTURES
        and not path.name.endswith(MARK)
        and not path.with_suffix(".txt").exists()
        and path.stat().st_mtime < quiet
    ]


def serve(read: LinesPipeline, args: argparse.Namespace) -> None:
    while True:
        for path in waiting(args.inbox):
            drawn = path.with_suffix(MARK) if args.overlay else None
            try:
                said = text_of(read, path, drawn)
            except InputError as e:
                said = f"cannot be read: {e}"
            unfinished = path.with_suffix(".txt.part")
            unfinished.write_text(said + "\n", encoding="utf-8")
            os.replace(unfinished, path.with_suffix(".txt"))
            print(f"{path.name}: {said.splitlines()[0] if said else 'nothing'}", flush=True)
        if args.once:
            return
        time.sleep(0.5)


def main(args: argparse.Namespace) -> None:
    bundles = [b for b in args.bundles if Path(b).suffix.lower() not in PICTURES]
    pictures = [Path(b) for b in args.bundles if b not in bundles]
    with contextlib.ExitStack() as stack:
        read = stack.enter_context(edgeinfer.pipeline(*bundles, threads=args.threads))
        if not isinstance(read, LinesPipeline):
            raise SystemExit(f"{bundles[0]}: name the bundles that find, turn and read lines")
        for path in pictures:
            drawn = path.with_suffix(MARK) if args.overlay else None
            print(text_of(read, path, drawn))
        if args.camera:
            # The first images of a camera are dark until it has found its exposure.
            for frame in itertools.islice(frames(args.camera), 0, 10):
                last = frame
            print(text_of(read, last, Path("camera" + MARK) if args.overlay else None))
        if args.inbox is not None:
            serve(read, args)


if __name__ == "__main__":
    try:
        main(arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdgeInferError as e:
        sys.exit(f"read.py: {e}")
