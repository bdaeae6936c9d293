"""A matrix of 4-bit or 8-bit integers, scaled by blocks, times a few vectors, on a CUDA GPU.

Memory sets the pace, if enough of it is on its way at any time: a thread asks for 32 weights of
each of its rows at once, before it needs any, and even before the kernel that makes the vectors has
ended. Then each block of threads lays the vectors out in shared memory, where all of its rows find
them.

Vectors stay float32. Either weights become float32 too, or the 32 elements that meet a thread's
weights become whole numbers of 23 bits below the largest of them, in three digits of 8 bits, whose
products with the weights are exact: fewer instructions, and no more of an error than that of a sum
in float32. There an infinite element makes NaN of what it meets, as NaN does.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T  # noqa: N812

from edgeinfer.kernels.defs import ahead
from edgeinfer.kernels.defs.emit import Buffer, Expr, load, store
from edgeinfer.records import dataclass
from edgeinfer.types import Array

BLOCK = 32
"""Weights of a row that one thread reads at once."""

_WARP = 32
_EXACT = 0x4B000000
"""The float32 8388608, whose last bits hold a small integer: converting takes an or and a sum."""

_DIGITS, _LONG = 28, 36
"""Words of 32 elements in shared memory, as digits or as float32: so many that eight threads, each
at 32 elements of its own, read from all banks."""

_BLOCKS = 256
"""Blocks of threads, at least: two for nearly each of an H200's 132 multiprocessors. More rows to a
thread share what it makes of the vectors; of fewer blocks too little is on its way at once."""

_RESIDENT = "tirx.launch_bounds_min_blocks_per_sm"
_SHARED, _SUMS = 48 * 1024, 64
"""Bytes of a block's shared memory, and sums of a thread."""

_STEPS = 4
"""Runs of eight elements that a thread asks for at once."""

_ROUNDS = 12582912.0
"""1.5 * 2**23: a sum with it is rounded to a whole number, which its last bits hold."""


@dataclass(frozen=True, slots=True)
class Share:
    """How the work is cut.

    Attributes:
        rows: Rows of one thread.
        warps: that share these rows; each thread of them has 32 columns, and again 32 in the next
            turn, until there are no more.
        groups: Groups of such warps in a block of threads.
        digits: whether vectors become whole numbers.
        ahead: whether weights are read before what came before has ended.
        blocks: Blocks of threads that a multiprocessor must have room for, which leaves each thread
            fewer registers; 0 if that does not matter.
    """

    rows: int = 8
    warps: int = 4
    groups: int = 2
    digits: bool = True
    ahead: bool = True
    blocks: int = 0

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * self.groups * _WARP

    def shared(self, vectors: int) -> int:
        """Bytes of shared memory."""
        words = _DIGITS if self.digits else _LONG
        parts = self.warps * self.groups * self.rows * vectors
        return 4 * (vectors * self.warps * _WARP * words + parts)

    def problem(self, vectors: int) -> str:
        """Say why work cannot be cut so; empty if it can."""
        if min(self.rows, self.warps, self.groups) < 1 or self.blocks < 0:
            return "a number below one"
        if self.threads > 1024 or self.threads * self.blocks > 2048:
            return f"{self.threads} threads"
        if self.rows * vectors > _SUMS:
            return "too many registers"
        if self.shared(vectors) > _SHARED:
            return "too much shared memory"
        return ""


def share_for(n: int, k: int, vectors: int = 1, like: Share | None = None) -> Share:
    """Cut a matrix with as many rows to a thread as leave the multiprocessors enough blocks.

    Args:
        n: rows.
        k: columns.
        vectors: that are multiplied at once.
        like: gives the rest.
    """
    made = fitted(k, vectors, like)
    for rows in (16, 8, 4, 2):
        cut = fitted(k, vectors, replace(made, rows=rows))
        if n >= _BLOCKS * cut.rows * cut.groups:
            return cut
    return replace(made, rows=1)


def fitted(k: int, vectors: int = 1, like: Share | None = None) -> Share:
    """Cut rows of some columns into as few turns as fit, and fill a block of threads with rows.

    Args:
        k: columns.
        vectors: that are multiplied at once.
        like: gives the rest, and how many threads a block has at least room for.
    """
    like = like or Share()
    room, most = like.threads // _WARP, 1
    while most < room and replace(like, warps=most + 1, groups=1).shared(vectors) <= _SHARED:
        most += 1
    chunks = -(-k // BLOCK)
    turns = -(-chunks // (most * _WARP))
    warps = -(-chunks // (turns * _WARP))
    rows = max(1, min(like.rows, _SUMS // vectors))
    return replace(like, rows=rows, warps=warps, groups=max(1, room // warps))


def pack(q: Array, bits: int) -> Array:
    """Lay weights (N, K), 4-bit ones as 0 to 15, out as words (N, K * bits / 32) of int32.

    Raises:
        ValueError: K is no multiple of 32.
    """
    k = q.shape[1]
    if k % BLOCK:
        raise ValueError(f"{k} columns are no multiple of {BLOCK}")
    if bits == 8:
        return np.ascontiguousarray(q.astype(np.int8)).view(np.int32)
    nibbles = q.astype(np.uint8)
    # Bytes of a word count from its low end, as its nibbles do.
    pairs = nibbles[:, 0::2] | nibbles[:, 1::2] << np.uint8(4)
    return np.ascontiguousarray(pairs).view("<i4")


@dataclass(frozen=True, slots=True)
class CudaProductForm:
    """What a matrix comes with.

    Attributes:
        scales: their type, ``float16`` or ``float32``.
        zeros: whether blocks of nibbles have zeros of their own; else all have 8.
    """

    scales: str = "float16"
    zeros: bool = False


def gemv(
    n: int,
    k: int,
    bits: int = 4,
    block: int = BLOCK,
    vectors: int = 1,
    share: Share | None = None,
    form: CudaProductForm | None = None,
) -> tirx.PrimFunc:
    """``y = x @ ((q - zero) * scale).T`` for nibbles, ``y = x @ (q * scale).T`` for bytes.

    The kernel takes ``w`` of ``pack``, ``s`` (N, blocks), where there are any ``z`` (uint8,
    likewise), ``x`` (float32, (vectors, K)) and ``y`` (float32, (vectors, N)), ``w`` and ``x`` at
    addresses that 16 divides. One that reads ahead is compiled with ``ahead.PIPELINE``; no kernel
    that lets the next one start early may have written its matrix.

    Args:
        n: rows.
        k: columns, a multiple of 32.
        bits: 4 or 8.
        block: weights that share a scale: a multiple of 32; the last one of a row may be shorter.
        vectors: that are multiplied at once.
        share: how the work is cut.
        form: Form of scales and zeros.

    Raises:
        ValueError: a size is none, or the work cannot be cut so.
    """
    if bits not in (4, 8) or min(n, k, vectors) < 1 or k % BLOCK or block < 1 or block % BLOCK:
        raise ValueError(f"{bits} bits, {n} by {k}, blocks of {block}, {vectors} vectors")
    cut, form = share or share_for(n, k, vectors), form or CudaProductForm()
    if form.zeros and (bits == 8 or not cut.digits):
        raise ValueError(f"zeros with {bits} bits, and {cut}, for {vectors} vectors")
    if problem := cut.problem(vectors):
        raise ValueError(f"{cut} for {vectors} vectors: {problem}")
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        w = T.arg("w", T.Buffer((n, k * bits // 32), "int32"))
        s = T.arg("s", T.Buffer((n, -(-k // block)), form.scales))
        z = T.arg("z", T.Buffer((n, -(-k // block)), "uint8")) if form.zeros else None
        x = T.arg("x", T.Buffer((vectors, k), "float32"))
        y = T.arg("y", T.Buffer((vectors, n), "float32"))
        with (
            T.launch_thread("blockIdx.x", -(-n // (cut.rows * cut.groups))) as group,
            T.launch_thread("threadIdx.x", cut.threads) as thread,
            T.attr(group, _RESIDENT, cut.blocks) if cut.blocks else nullcontext(),
        ):
            _Product((w, s, z), x, y, (n, k, bits, block, vectors), cut, group, thread).write()
    return builder.get()


class _Product:
    def __init__(
        self,
        matrix: tuple[Buffer, Buffer, Buffer | None],
        x: Buffer,
        y: Buffer,
        sizes: tuple[int, int, int, int, int],
        cut: Share,
        group: Expr,
        thread: Expr,
    ) -> None:
        self.w, self.s, self.z = matrix
        self.x, self.y, self.cut, self.thread = x, y, cut, thread
        self.n, self.k, self.bits, self.block, self.vectors = sizes
        self.across = cut.warps * _WARP
        self.chunks = self.k // BLOCK
        self.words = BLOCK * self.bits // 32
        self.stride = _DIGITS if cut.digits else _LONG
        self.first = T.bind((group * cut.groups + thread // self.across) * cut.rows)

    def write(self) -> None:
        """Write what a thread does."""
        cut = self.cut
        self.held = T.alloc_buffer((cut.rows * self.words,), "int32", scope="local")
        self.scales = T.alloc_buffer((cut.rows,), str(self.s.dtype), scope="local")
        if self.z is not None:
            self.zeros = T.alloc_buffer((cut.rows,), "uint8", scope="local")
        self.sums = T.alloc_buffer((self.vectors * cut.rows,), "float32", scope="local")
        kind = "int32" if cut.digits else "float32"
        self.laid = T.alloc_buffer(
            (self.vectors * self.across * self.stride,), kind, scope="shared"
        )
        for i in range(self.vectors * cut.rows):
            T.buffer_store(self.sums, T.float32(0), [i])
        turns = -(-self.chunks // self.across)
        if turns == 1:
            self._turn(0, last=True)
        else:
            with T.serial(turns) as turn:
                self._turn(turn, last=False)
        self._meet()

    def _turn(self, turn: Expr, *, last: bool) -> None:
        chunk = T.bind(turn * self.across + self.thread % self.across)
        whole = self.chunks % self.across == 0
        self._read(chunk if whole else T.bind(tirx.min(chunk, self.chunks - 1)))
        if self.cut.ahead:
            ahead.let_next_start()
            ahead.wait()
        self._lay_out(turn)
        T.evaluate(T.tvm_storage_sync("shared"))
        if whole:
            self._multiply()
        else:
            with T.If(chunk < self.chunks), T.Then():
                self._multiply()
        if not last:
            T.evaluate(T.tvm_storage_sync("shared"))

    def _read(self, chunk: Expr) -> None:
        """Ask for weights and scales."""
        for r in range(self.cut.rows):
            # Rows beyond the end read the last one again, and keep nothing.
            row = tirx.min(self.first + r, self.n - 1)
            if self.n % (self.cut.rows * self.cut.groups) == 0:
                row = self.first + r
            for part in range(0, self.words, 4):
                read = ahead.read_once(self.w, [row, chunk * self.words + part])
                store(self.held, [r * self.words + part], read, 4)
            at = [row, chunk * BLOCK // self.block]
            T.buffer_store(self.scales, T.BufferLoad(self.s, at), [r])
            if self.z is not None:
                T.buffer_store(self.zeros, T.BufferLoad(self.z, at), [r])

    def _lay_out(self, turn: Expr) -> None:
        """Put the turn's vectors into shared memory: a thread has eight neighbours."""
        total = self.vectors * self.across * 4
        steps = -(-total // self.cut.threads)
        # All are on their way before the first is needed, if they are few.
        each = steps if steps <= _STEPS else 1
        near = T.alloc_buffer((8 * each,), "float32", scope="local")
        with T.serial(steps // each) as step:
            items = [
                T.bind((step * each + i) * self.cut.threads + self.thread) for i in range(each)
            ]
            for do in (self._read_near, self._put):
                for i, item in enumerate(items):
                    # Of a warp all take part or none does.
                    some = (step * each + i + 1) * self.cut.threads > total
                    if isinstance(some, bool) and not some:
                        do(near, i, item, turn)
                        continue
                    with T.If(item < total), T.Then():
                        do(near, i, item, turn)

    def _read_near(self, near: Buffer, i: int, item: Expr, turn: Expr) -> None:
        place = item // 4
        chunk = tirx.min(turn * self.across + place % self.across, self.chunks - 1)
        for e in (0, 4):
            at = chunk * BLOCK + item % 4 * 8 + e
            value = ahead.read(self.x, [place // self.across, at])
            store(near, [8 * i + e], value, 4)

    def _put(self, near: Buffer, i: int, item: Expr, _: Expr) -> None:
        values = [T.bind(T.BufferLoad(near, [8 * i + e])) for e in range(8)]
        at = item // 4 * self.stride
        if self.cut.digits:
            self._as_digits(values, at, item % 4)
        else:
            self._as_floats(values, at + item % 4 * 8)

    def _as_floats(self, values: list[Expr], at: Expr) -> None:
        # Weights are left where they lie in their word, so they are as many times too large.
        for e, value in enumerate(values):
            if times := _place(e, self.bits)[1]:
                value = value * tirx.const(2.0**-times, "float32")
            T.buffer_store(self.laid, value, [at + e])

    def _as_digits(self, values: list[Expr], at: Expr, quarter: Expr) -> None:
        size = _int(0)
        for value in values:
            # As integers, NaN is the largest.
            bits = tirx.reinterpret("int32", value) & _int(0x7FFFFFFF)
            size = T.bind(tirx.max(size, bits))
        for lane in (1, 2):
            size = T.bind(tirx.max(size, _other(size, lane)))
        exponent = T.bind(tirx.max(tirx.shift_right(size, _int(23)), _int(22)))
        times = T.bind(tirx.reinterpret("float32", (_int(275) - exponent) << _int(23)))
        factor = tirx.reinterpret("float32", (exponent - _int(21)) << _int(23))
        factor = tirx.if_then_else(exponent == 255, tirx.const(float("nan"), "float32"), factor)
        whole, total = [], _int(0)
        for value in values:
            rounded = value * times + tirx.const(_ROUNDS, "float32")
            number = T.bind(tirx.reinterpret("int32", rounded) - _int(0x4B400000))
            total = T.bind(total + number)
            # The last digits are signed as well: half a digit more, and taken back in each byte.
            whole.append(T.bind((number + _int(0x00808080)) ^ _int(0x00808080)))
        order = ((0, 2, 4, 6), (1, 3, 5, 7)) if self.bits == 4 else ((0, 1, 2, 3), (4, 5, 6, 7))
        for half, positions in enumerate(order):
            for digit, word in enumerate(_transposed([whole[p] for p in positions])):
                T.buffer_store(self.laid, word, [at + quarter * 6 + half * 3 + digit])
        for lane in (1, 2):
            total = T.bind(total + _other(total, lane))
        with T.If(quarter == 0), T.Then():
            # What a zero of one takes away; of 8, where all have that; bytes have none.
            less = total * _int(-1 if self.z is not None else -8 if self.bits == 4 else 0)
            T.buffer_store(self.laid, less, [at + 24])
            T.buffer_store(self.laid, tirx.reinterpret("int32", factor), [at + 25])

    def _multiply(self) -> None:
        for v in range(self.vectors):
            at = T.bind((v * self.across + self.thread % self.across) * self.stride)
            if self.cut.digits:
                self._by_digits(v, at)
            else:
                self._by_floats(v, at)

    def _by_digits(self, v: int, at: Expr) -> None:
        near = T.alloc_buffer((_DIGITS,), "int32", scope="local")
        for e in range(0, _DIGITS, 4):
            store(near, [e], load(self.laid, [at + e], 4), 4)
        factor = T.bind(tirx.reinterpret("float32", T.BufferLoad(near, [25])))
        for r in range(self.cut.rows):
            parts: list[Expr] = [T.BufferLoad(near, [24]), _int(0), _int(0)]
            if self.z is not None:
                parts[0] = T.bind(parts[0] * T.BufferLoad(self.zeros, [r]).astype("int32"))
            for place, word in enumerate(self._bytes(r)):
                for digit in range(3):
                    with_it = T.BufferLoad(near, [place * 3 + digit])
                    added = T.call_pure_extern("int32", "__dp4a", word, with_it, parts[digit])
                    parts[digit] = T.bind(added)
            value = self._number(parts)
            scale = T.BufferLoad(self.scales, [r]).astype("float32") * factor
            self._add(v, r, value * scale)

    def _bytes(self, r: int) -> list[Expr]:
        """The weights of a row, as bytes that lie as the digits do."""
        found = []
        for j in range(self.words):
            word = T.bind(T.BufferLoad(self.held, [r * self.words + j]))
            if self.bits == 8:
                found.append(word)
                continue
            mask = _int(0x0F0F0F0F)
            found += [T.bind(word & mask), T.bind(tirx.shift_right(word, _int(4)) & mask)]
        return found

    def _number(self, parts: list[Expr]) -> Expr:
        low, middle, high = parts
        upper = high * _int(256) + middle
        if self.bits == 4:
            return (upper * _int(256) + low).astype("float32")
        # Bytes are larger: all digits together would not fit.
        return upper.astype("float32") * tirx.const(256.0, "float32") + low.astype("float32")

    def _by_floats(self, v: int, at: Expr) -> None:
        near = T.alloc_buffer((8,), "float32", scope="local")
        parts = [T.bind(tirx.const(0.0, "float32")) for _ in range(self.cut.rows)]
        each = 32 // self.bits
        for j in range(BLOCK // 8):
            for e in (0, 4):
                store(near, [e], load(self.laid, [at + j * 8 + e], 4), 4)
            values = [T.bind(T.BufferLoad(near, [e])) for e in range(8)]
            for r in range(self.cut.rows):
                for part in range(8 // each):
                    at_word = r * self.words + j * (8 // each) + part
                    weights = _floats(T.bind(T.BufferLoad(self.held, [at_word])), self.bits)
                    for e, weight in enumerate(weights):
                        parts[r] = parts[r] + values[part * each + e] * weight
                parts[r] = T.bind(parts[r])
        for r in range(self.cut.rows):
            self._add(v, r, parts[r] * T.BufferLoad(self.scales, [r]).astype("float32"))

    def _add(self, v: int, r: int, value: Expr) -> None:
        at = v * self.cut.rows + r
        T.buffer_store(self.sums, T.BufferLoad(self.sums, [at]) + value, [at])

    def _meet(self) -> None:
        """Add the threads' parts up: within a warp, and then the warps that share rows."""
        cut, count = self.cut, self.vectors * self.cut.rows
        lane = self.thread % _WARP
        sums = [T.bind(T.BufferLoad(self.sums, [i])) for i in range(count)]
        at, own = _int(0), tirx.const(True, "bool")
        for bit in (16, 8, 4, 2, 1):
            upper = T.bind((lane & _int(bit)) != 0)
            if len(sums) % 2:
                sums = [T.bind(value + _other(value, bit)) for value in sums]
                own = tirx.all(own, tirx.Not(upper))
                continue
            # Half of them stay here, half go to the other lane.
            half, kept = len(sums) // 2, []
            for low, high in zip(sums[:half], sums[half:], strict=True):
                given = T.bind(tirx.Select(upper, low, high))
                kept.append(T.bind(tirx.Select(upper, high, low) + _other(given, bit)))
            sums, at = kept, T.bind(at + tirx.Select(upper, _int(half), _int(0)))
        parts = T.alloc_buffer((cut.warps * cut.groups * count,), "float32", scope="shared")
        with T.If(own), T.Then():
            for i, value in enumerate(sums):
                T.buffer_store(parts, value, [self.thread // _WARP * count + at + i])
        T.evaluate(T.tvm_storage_sync("shared"))
        with T.serial(-(-cut.groups * count // cut.threads)) as turn:
            item = T.bind(turn * cut.threads + self.thread)
            with T.If(item < cut.groups * count), T.Then():
                self._end(parts, item, count)

    def _end(self, parts: Buffer, item: Expr, count: int) -> None:
        cut = self.cut
        group, i = item // count, item % count
        total = T.BufferLoad(parts, [group * cut.warps * count + i])
        for warp in range(1, cut.warps):
            total = total + T.BufferLoad(parts, [(group * cut.warps + warp) * count + i])
        block = self.first - self.thread // self.across * cut.rows
        row = T.bind(block + group * cut.rows + i % cut.rows)
        with T.If(row < self.n), T.Then():
            T.buffer_store(self.y, total, [i // cut.rows, row])


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")


def _other(value: Expr, lane: int) -> Expr:
    """The same value of another thread of the warp."""
    kind = str(value.ty.dtype)
    everyone = tirx.const(0xFFFFFFFF, "uint32")
    return T.call_extern(kind, "__shfl_xor_sync", everyone, value, _int(lane))


def _transposed(words: list[Expr]) -> list[Expr]:
    """The first, second and third bytes of four words."""

    def bytes_of(one: Expr, other: Expr, which: int) -> Expr:
        chosen = tirx.const(which, "uint32")
        return T.bind(T.call_pure_extern("int32", "__byte_perm", one, other, chosen))

    a, b, c, d = words
    ab, cd = bytes_of(a, b, 0x5140), bytes_of(c, d, 0x5140)
    third = bytes_of(bytes_of(a, b, 0x0062), bytes_of(c, d, 0x0062), 0x5410)
    return [bytes_of(ab, cd, 0x5410), bytes_of(ab, cd, 0x7632), third]


def _place(element: int, bits: int) -> tuple[int, int]:
    """How far a word is moved for one of eight elements, and where the element lies then."""
    if bits == 4:
        # Of a float32 23 bits are free, which five nibbles fit into.
        return (0, 4 * element) if element < 5 else (20, 4 * (element - 5))
    return (16 * (element % 4 // 2), 8 * (element % 2))


def _floats(word: Expr, bits: int) -> list[Expr]:
    """The integers of a word as float32, each as many times too large as it lies high."""
    mask, zero = (15, 8) if bits == 4 else (255, 128)
    if bits == 8:
        # Bytes are signed: 128 more are none below zero.
        word = T.bind(word ^ tirx.const(-2139062144, "int32"))
    moved = {0: word}
    found = []
    for element in range(32 // bits):
        by, at = _place(element, bits)
        if by not in moved:
            moved[by] = T.bind(tirx.shift_right(word, _int(by)))
        held = (moved[by] & _int(mask << at)) | _int(_EXACT)
        less = tirx.const(8388608.0 + (zero << at), "float32")
        found.append(tirx.reinterpret("float32", held) - less)
    return found
