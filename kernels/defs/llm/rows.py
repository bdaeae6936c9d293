"""Whole rows of a step: embeddings, norms, and what is copied."""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs.emit import Buffer, Expr, KernelCpu, function, load, splat, store
from edgeinfer.kernels.defs.gemv import Dot
from edgeinfer.kernels.defs.llm.form import STEP, SUPER, Form
from edgeinfer.kernels.defs.llm.product import widened
from edgeinfer.kernels.defs.llm.rounding import inverse_root
from edgeinfer.kernels.defs.llm.steps import SPAN, TOKENS, between, fma, span_of
from edgeinfer.kernels.defs.rows import sweep


def embed(dot: Dot, form: Form, rows: int, columns: int, factor: float) -> tirx.PrimFunc:
    """Look tokens up in a packed matrix.

    The kernel takes the form's buffers, ``tokens``, ``x`` (tokens, columns) and ``span`` of tokens.
    A token below zero is left as it is: its row was given.
    """
    buffers = {
        **form.buffers(rows, columns, dot.rows),
        "tokens": ((TOKENS,), "int32"),
        "x": ((TOKENS, columns), "float32"),
        "span": ((SPAN,), "int32"),
    }

    def body(*given: Buffer) -> None:
        named = dict(zip(buffers, given, strict=True))
        first, end = span_of(named["span"])
        with between(first, end) as t:
            token = T.BufferLoad(named["tokens"], [t])
            with T.If(token >= T.int32(0)), T.Then(), T.serial(columns) as k:
                value = _weight(dot, form, named, token, k) * T.float32(factor)
                T.buffer_store(named["x"], value, [t, k])

    return function("embed", buffers, body)


def _weight(dot: Dot, form: Form, named: dict[str, Buffer], row: Expr, k: Expr) -> Expr:
    run, side = row // dot.rows, row % dot.rows
    if form.floats:
        return widened(T.BufferLoad(named["w"], [run, k, side]), form.floats, 1)
    g, inside = k // STEP, k % STEP
    j, at = inside // 4, side * 4 + inside % 4
    one = tirx.const(1, "int32")

    def byte(vector: Expr) -> Expr:
        return tirx.Cast("int32", T.BufferLoad(named["w"], [run, g, vector, at]))

    if form.bits == 8:
        raw = byte(j)
        stored = raw if form.zero else tirx.Select(raw > T.int32(127), raw - 256, raw)
    else:
        shift = tirx.Select(j >= T.int32(4), T.int32(4), T.int32(0))
        stored = tirx.bitwise_and(tirx.shift_right(byte(j % 4), shift), T.int32(15))
        if form.bits == 5:
            high = tirx.bitwise_and(tirx.shift_right(byte(T.int32(4)), j), one)
            stored = stored + high * 16
        if form.bits == 6:
            plane = byte(4 + j // 4)
            high = tirx.bitwise_and(tirx.shift_right(plane, j % 4 * 2), T.int32(3))
            stored = stored + high * 16
    value = tirx.Cast("float32", stored - form.zero)
    value = value * _factor(form, named, "s", form.scale, run, k, side)
    if form.offset:
        value = value + _factor(form, named, "m", form.offset, run, k, side)
    return value


def _factor(
    form: Form, named: dict[str, Buffer], name: str, kind: str, run: Expr, k: Expr, side: Expr
) -> Expr:
    value = tirx.Cast("float32", T.BufferLoad(named[name], [run, k // form.group, side]))
    if kind == "codes":
        outer = T.BufferLoad(named[f"{name}d"], [run, k // SUPER, side])
        value = value * tirx.Cast("float32", outer)
    return value


def gather(cpu: KernelCpu, columns: int) -> tirx.PrimFunc:
    """Copy the rows that are wanted: ``x``, ``rows`` (indices), ``y``, ``span`` of results."""
    buffers = {
        "x": ((TOKENS, columns), "float32"),
        "rows": ((TOKENS,), "int32"),
        "y": ((TOKENS, columns), "float32"),
        "span": ((SPAN,), "int32"),
    }

    def body(x: Buffer, rows: Buffer, y: Buffer, span: Buffer) -> None:
        first, end = span_of(span)
        with between(first, end) as t:
            source = T.BufferLoad(rows, [t])

            def copy(at: Expr, width: int) -> None:
                store(y, [t, at], load(x, [source, at], width), width)

            sweep(cpu, columns, copy)

    return function("gather", buffers, body)


def norm_add(cpu: KernelCpu, columns: int, epsilon: float) -> tirx.PrimFunc:
    """Add normed rows: ``y += norm(x) * w``; takes ``x``, ``w``, ``y`` and ``span`` of tokens."""
    return _normed(cpu, "norm_add", columns, columns, epsilon, adds=True)


def norm(cpu: KernelCpu, columns: int, stride: int, epsilon: float) -> tirx.PrimFunc:
    """Norm rows by their root mean square.

    The kernel takes ``x``, ``w`` (columns), ``y`` and ``span`` of tokens. ``x`` and ``y`` (tokens,
    stride) may begin inside a row of a larger array, and be the same.
    """
    return _normed(cpu, "norm", columns, stride, epsilon, adds=False)


def _normed(
    cpu: KernelCpu, name: str, columns: int, stride: int, epsilon: float, *, adds: bool
) -> tirx.PrimFunc:
    buffers = {
        "x": ((TOKENS, stride), "float32"),
        "w": ((columns,), "float32"),
        "y": ((TOKENS, stride), "float32"),
        "span": ((SPAN,), "int32"),
    }

    def body(x: Buffer, w: Buffer, y: Buffer, span: Buffer) -> None:
        first, end = span_of(span)
        with between(first, end) as t:
            factor = inverse_root(cpu, columns, epsilon, lambda at, n: load(x, [t, at], n))

            def write(at: Expr, width: int) -> None:
                value = load(x, [t, at], width) * splat(T.BufferLoad(factor, [0]), width)
                scale = load(w, [at], width)
                old = load(y, [t, at], width) if adds else None
                made = value * scale if old is None else fma(value, scale, old, width)
                store(y, [t, at], made, width)

            sweep(cpu, columns, write)

    return function(name, buffers, body)
