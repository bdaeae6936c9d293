"""Files that hold one model at several fixed sizes, each as a signature of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgeinfer.errors import InputError
from edgeinfer.types import Array, Dim

Shapes = tuple[tuple[int, ...], ...]
"""One shape for each input, in the order of the main signature."""


class Signatures:
    """The signatures of a file that differ in sizes only; empty where there is but one.

    While this holds LiteRT's runners, the interpreter refuses to run its main graph by itself, so
    that one is run as a signature too.

    Args:
        interpreter: Interpreter of LiteRT.
        key: Key of the main signature.
    """

    def __init__(self, interpreter: Any, key: str) -> None:
        self._runners: dict[Shapes, Any] = {}
        listed = interpreter.get_signature_list()
        if len(listed) < 2:
            return
        self._names = names = listed[key]["inputs"]
        main = interpreter.get_signature_runner(key)
        sizes, kinds = _shapes(main, names), _kinds(main, names)
        if not all(size >= 0 for shape in sizes for size in shape):
            return
        for other, parts in listed.items():
            if other == key or {k: sorted(v) for k, v in parts.items()} != {
                k: sorted(v) for k, v in listed[key].items()
            }:
                continue
            runner = interpreter.get_signature_runner(other)
            if _kinds(runner, names) == kinds:
                self._runners.setdefault(_shapes(runner, names), runner)
        if self._runners:
            self._runners = {sizes: main, **self._runners}

    def __bool__(self) -> bool:
        return bool(self._runners)

    def open(self, name: str, shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        """Return the shape of an input with the sizes left open in which signatures differ."""
        if not self._runners or name not in self._names:
            return shape
        columns = zip(*(shapes[self._names.index(name)] for shapes in self._runners), strict=True)
        return tuple(column[0] if len(set(column)) == 1 else None for column in columns)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the signature of these sizes; results are copies.

        Raises:
            InputError: the file has no signature of these sizes.
        """
        shapes = tuple(feeds[name].shape for name in self._names)
        runner = self._runners.get(shapes)
        if runner is None:
            known = "; ".join(self._text(s) for s in self._runners)
            raise InputError("*", f"the sizes of a signature ({known})", self._text(shapes))
        results: dict[str, Array] = runner(**feeds)
        return results

    def _text(self, shapes: Shapes) -> str:
        texts = ("x".join(map(str, shape)) or "scalar" for shape in shapes)
        return ", ".join(f"{n}={t}" for n, t in zip(self._names, texts, strict=True))


def _shapes(runner: Any, names: Sequence[str]) -> Shapes:
    details = runner.get_input_details()
    return tuple(tuple(int(s) for s in details[n]["shape_signature"]) for n in names)


def _kinds(runner: Any, names: Sequence[str]) -> list[object]:
    details = runner.get_input_details()
    return [details[n]["dtype"] for n in names]
