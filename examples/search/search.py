"""A small search by meaning: what lies nearest in the space of an embedding model.

    python search.py minilm.edge index notes.txt -o notes.npz      # a line is a text
    python search.py minilm.edge find notes.npz "where do bees live"
    python search.py photos.edge index pictures/ -o pictures.npz   # a folder of images
    python search.py photos.edge find pictures.npz cat.jpg

The index is one array of vectors of length 1, and the names; the nearest are those with the largest
products, computed for all of them: a few hundred thousand need no other structure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgeinfer.tasks import Embedder
from edgeinfer.types import Array

PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


@dataclass(frozen=True, slots=True)
class Index:
    """What is searched.

    Attributes:
        vectors: (n, size), float32, each of length 1.
        names: Names of them: texts, or paths of images.
    """

    vectors: Array
    names: tuple[str, ...]

    def nearest(self, vector: Array, top: int) -> list[tuple[float, str]]:
        """Return cosine and name of the nearest ones, the nearest first; of equals the earlier."""
        cosines = self.vectors @ _of_length_1(vector)
        best = (-cosines).argsort(kind="stable")[:top]
        return [(float(cosines[i]), self.names[i]) for i in best]

    def save(self, path: Path) -> None:
        """Write it, without pickles."""
        with path.open("wb") as file:
            np.savez(file, vectors=self.vectors, names=np.array(self.names, dtype=np.str_))


def load(path: Path) -> Index:
    """Read an index."""
    with np.load(path) as file:
        return Index(file["vectors"], tuple(file["names"].tolist()))


def build(embedder: Embedder, things: Iterable[tuple[str, Any]]) -> Index:
    """Embed things, each given with its name."""
    names, vectors = [], []
    for name, thing in things:
        vectors.append(_of_length_1(embedder.embed(thing).vector))
        names.append(name)
    return Index(np.asarray(vectors, np.float32), tuple(names))


def _of_length_1(vector: Array) -> Array:
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12), np.float32)


def things_of(path: Path) -> list[tuple[str, Any]]:
    """Return the lines of a text, or the images below a folder."""
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in PICTURES]
        return [(str(p), p) for p in found]
    lines = (line.strip() for line in path.read_text("utf-8").splitlines())
    return [(line, line) for line in lines if line]


def main(arguments: Sequence[str] | None = None) -> int:
    """Index or find."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bundle")
    commands = parser.add_subparsers(dest="command", required=True)
    index = commands.add_parser("index")
    index.add_argument("things", type=Path)
    index.add_argument("-o", "--output", type=Path, required=True)
    find = commands.add_parser("find")
    find.add_argument("index", type=Path)
    find.add_argument("query")
    find.add_argument("--top", type=int, default=5)
    asked = parser.parse_args(arguments)
    with Embedder(asked.bundle) as embedder:
        if asked.command == "index":
            made = build(embedder, things_of(asked.things))
            made.save(asked.output)
            sys.stdout.write(f"{len(made.names)} vectors of {made.vectors.shape[-1]} numbers\n")
            return 0
        is_picture = Path(asked.query).suffix.lower() in PICTURES
        vector = embedder.embed(Path(asked.query) if is_picture else asked.query).vector
    for cosine, name in load(asked.index).nearest(vector, asked.top):
        sys.stdout.write(f"{cosine:.3f}  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
