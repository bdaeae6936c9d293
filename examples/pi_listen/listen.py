"""Waits for a wake word and tells when someone speaks; a recording stands in for the microphone.

    python listen.py --voice vad.edge                                       speech alone
    python listen.py --voice vad.edge --word mel.edge embedding.edge alexa.edge
    python listen.py --voice vad.edge --source clip.wav                     a file

The three bundles of --word are a chain: sound to mel bands, to vectors, to how likely it was said.
"""

import argparse
import contextlib
import sys
import time

import edgeinfer
from edgeinfer.errors import EdgeInferError
from edgeinfer.media.live import audio
from edgeinfer.results import Result, VoiceActivity, WakeWord
from edgeinfer.runtime.pipelines import AudioPipeline


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Tells when someone speaks, or says a word.")
    parser.add_argument("--voice", metavar="BUNDLE", help="gives the probability of speech")
    parser.add_argument("--word", nargs="+", metavar="BUNDLE", help="a chain that ends in a word")
    parser.add_argument("--source", default="mic", help="mic, mic:DEVICE, or a recording")
    parser.add_argument("--paced", action="store_true", help="play a recording at its own speed")
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    args = parser.parse_args()
    if not args.voice and not args.word:
        parser.error("give --voice, --word or both")
    return args


def opened(stack: contextlib.ExitStack, bundles: list[str], threads: int) -> AudioPipeline:
    found = stack.enter_context(edgeinfer.pipeline(*bundles, threads=threads))
    if not isinstance(found, AudioPipeline):
        raise SystemExit(f"{bundles[0]}: takes no recording")
    return found


def tell(results: list[Result]) -> None:
    for result in results:
        if isinstance(result, VoiceActivity):
            print(f"speech {result.start:.2f} s to {result.end:.2f} s", flush=True)
        if isinstance(result, WakeWord):
            print(f"heard {result.label!r} at {result.time:.2f} s ({result.score:.2f})", flush=True)


def listen(args: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        bundles = [[args.voice]] if args.voice else []
        bundles += [args.word] if args.word else []
        pipelines = [opened(stack, each, args.threads) for each in bundles]
        rate = pipelines[0].rate
        if any(p.rate != rate for p in pipelines):
            raise SystemExit(f"sample rates differ: {[p.rate for p in pipelines]}")
        streams = [p.stream() for p in pipelines]
        source = stack.enter_context(contextlib.closing(audio(args.source, rate, paced=args.paced)))
        spent = heard = 0.0
        try:
            for piece in source:
                start = time.perf_counter()
                for stream in streams:
                    tell(stream.feed(piece))
                spent += time.perf_counter() - start
                heard += len(piece) / rate
            for stream in streams:
                tell(stream.finish())
        finally:
            if heard:
                share = spent / heard
                print(f"{heard:.1f} s of audio, {spent:.2f} s of work ({share:.1%})", flush=True)


if __name__ == "__main__":
    try:
        listen(arguments())
    except KeyboardInterrupt:
        sys.exit(130)
    except EdgeInferError as e:
        sys.exit(f"listen.py: {e}")
