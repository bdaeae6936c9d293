"""What a camera sees, named or boxed, with the frame rate; a file stands in for the camera.

    python watch.py model.edge                          the ribbon camera of a Raspberry Pi
    python watch.py model.edge --source 0               a USB camera
    python watch.py model.edge --source photo.jpg       an image, a folder of them or a video

A classifier and a detector are run the same way: the bundle says which it is.
"""

import argparse
import contextlib
import sys
from pathlib import Path

import edgeinfer
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.live import FrameRate, Preview, frames
from edgeinfer.media.overlay import overlay
from edgeinfer.results import Classification, Detection
from edgeinfer.runtime.pipelines import ImagePipeline


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Names or boxes what a camera sees.")
    parser.add_argument("bundle", help="a classifier or detector with its pipeline file")
    parser.add_argument("--source", default="picamera", help="picamera, a number, a file, a stream")
    parser.add_argument("--size", type=int, nargs=2, default=(640, 480), help="width and height")
    parser.add_argument("--frames", type=int, help="stop after so many")
    parser.add_argument("--threads", type=int, help="of the engine")
    parser.add_argument("--http", type=int, metavar="PORT", help="show the overlay on a page")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0: the network may watch")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="keep each frame with overlay")
    return parser.parse_args()


def line(results: list[object]) -> str:
    """Sum up one frame."""
    parts = []
    for result in results:
        if isinstance(result, Classification):
            parts.append(f"{result.label} {result.score:.2f}")
        if isinstance(result, Detection):
            left, top, right, bottom = (round(x) for x in result.box)
            parts.append(f"{result.label} {result.score:.2f} at {left},{top}-{right},{bottom}")
    return "; ".join(parts) or "nothing"


def watch(args: argparse.Namespace) -> None:
    rate = FrameRate()
    with contextlib.ExitStack() as stack:
        look = stack.enter_context(edgeinfer.pipeline(args.bundle, threads=args.threads))
        if not isinstance(look, ImagePipeline):
            raise SystemExit(f"{args.bundle}: takes no image")
        preview = None
        if args.http is not None:
            preview = stack.enter_context(Preview(args.http, args.host))
            print(f"watch at {preview.address}", flush=True)
        if args.save is not None:
            args.save.mkdir(parents=True, exist_ok=True)
        source = stack.enter_context(contextlib.closing(frames(args.source, tuple(args.size))))
        for frame in source:
            results = look(frame)
            speed = rate.tick()
            print(f"{speed:5.1f} frames/s  {line([*results])}", flush=True)
            if preview is not None or args.save is not None:
                drawn = overlay(frame, results, f"{speed:.1f} frames/s")
                if preview is not None:
                    preview.show(drawn)
                if args.save is not None:
                    drawn.save(args.save / f"{rate.count:06d}.jpg")
            if rate.count == args.frames:
                return


if __name__ == "__main__":
    try:
        watch(arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdgeInferError as e:
        sys.exit(f"watch.py: {e}")
