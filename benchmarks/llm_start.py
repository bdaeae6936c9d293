"""What a language model needs to start, and how right it is, next to llama.cpp on the same file.

    python -m benchmarks.llm_start BUNDLE GGUF --peer FOLDER --cpu haswell

Printed are the time and the memory that opening and a first token take, for one process, and of
both engines the divergence from the file's weights in float32 on the texts of the converter's gate
and on what ``--text`` names, for each type of cache.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.llamacpp import Library, Peer
from edgeinfer import LLM, SamplingParams
from edgeinfer.backends.llm.backend import open_executor
from edgeinfer.backends.llm.sizes import ExecutorSizes
from edgeinfer.bundle.archive import Bundle
from edgeinfer.convert.llm import judge, source, tokenizer
from edgeinfer.convert.llm.oracle import Oracle
from edgeinfer.llm.step import StepBatch
from edgeinfer.llm.tape import FILE_NAME, Tape
from edgeinfer.types import Array


class AsExecutor:
    """llama.cpp as what the gate compares."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def step(self, batch: StepBatch) -> Array:
        self.peer.forget(0)
        found = self.peer.step([(0, list(batch.tokens), 0, len(batch.tokens))])
        return np.asarray(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle")
    parser.add_argument("gguf", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--cpu", default="haswell")
    parser.add_argument(
        "--text", type=Path, help="more text, of which rows of 256 tokens are taken"
    )
    asked = parser.parse_args()
    start(asked.bundle)
    divergence(asked)


def memory_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1e3


def start(bundle: str) -> None:
    """Open, and make a token."""
    before, begun = memory_mb("VmRSS"), time.perf_counter()
    with LLM(bundle, context=1024, sequences=1, threads=1) as llm:
        opened = time.perf_counter() - begun
        llm.generate("Once upon a time", SamplingParams(max_tokens=1, temperature=0))
        first = time.perf_counter() - begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 - before
    print(
        f"open {opened:.2f} s, with the first token {first:.2f} s; memory at most {peak:.0f} MB "
        f"more than {before:.0f} MB before",
        flush=True,
    )


def divergence(asked: argparse.Namespace) -> None:
    """Compare both with float32."""
    given = source.read(asked.gguf)
    beside, _ = tokenizer.files(given)
    ids = judge.texts(beside["tokenizer.json"])
    if asked.text is not None:
        ids += _rows(beside["tokenizer.json"], asked.text.read_text("utf-8"))
    longest = -(-max(len(i) for i in ids) // 16) * 16
    with Bundle.open(asked.bundle, native="allow") as bundle:
        variant = next(v for v in bundle.manifest.variants if v.format == "llm")
        folder = bundle.paths(variant)[0].parent
        kinds = Tape.from_json((folder / FILE_NAME).read_bytes()).caches
        sizes = [ExecutorSizes(longest // 16, longest, 1, longest, kind) for kind in kinds]
        ours = [open_executor(folder, size) for size in sizes]
        library = Library(asked.peer, asked.cpu)
        room = {"threads": 2, "context": max(longest, 256), "sequences": 1}
        theirs = [Peer(library, asked.gguf, cache=kind, **room) for kind in (1, 8)]
        executors = [*ours, *map(AsExecutor, theirs)]
        oracle = Oracle(given.config, given.tensors)
        found, _ = judge.compare(oracle, executors, ids)  # type: ignore[arg-type]
        names = [*(f"ours, {kind}" for kind in kinds), "llama.cpp, f16", "llama.cpp, q8_0"]
        for name, quality in zip(names, found, strict=True):
            print(f"{name}: {quality}; KL {quality.kl:.5f}", flush=True)
        for executor in ours:
            executor.close()


def _rows(data: bytes, text: str) -> list[Array]:
    from tokenizers import Tokenizer

    ids = Tokenizer.from_str(data.decode()).encode(text, add_special_tokens=False).ids
    return [np.array(ids[at : at + 256], np.int32) for at in range(0, len(ids) - 255, 256)]


if __name__ == "__main__":
    main()
