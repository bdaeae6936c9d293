"""Code of a language model's phases for NVIDIA GPUs, compiled where there may be none."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import resources
from pathlib import Path

from edgeinfer.errors import NotAvailableError
from edgeinfer.llm.gpu import MOST_FOLD, THREADS
from edgeinfer.records import dataclass

INSTALL = "pip install 'edgeinfer[tvm-cuda]', or CUDA 13"

_OPTIONS = ("--fmad=false", "--std=c++17")
"""Products that meet sums are written so: contracted in one place and not in another, the same
numbers would get other bits. Nothing else is approximate by default."""

_LIBRARY = "libnvrtc.so.13"
_SOURCES = ("step.cu", "attention.cu", "routed.cu", "adapted.cu")

KINDS = {"float16": 17, "bfloat16": 16, "float32": 32}
ENDS = {"store": 0, "add": 1, "silu": 2, "gelu_tanh": 3}
_SCALES = {"": 0, "float16": 1, "float32": 2}

_MATRIX = "const u32 *w, const void *s, const void *m, int zero, int group, int rows, int columns"
_FIELDS = "Matrix{w, s, m, zero, group, rows, columns}"
_ARRAYS = (
    "float *qkv, u16 *cache, const int *table, const int *positions, const int *owner, "
    "const int *count, const float *cos, const float *sin, const float *qnorm, "
    "const float *knorm"
)
_SIZES = "int columns, int page_size, int layer_at, int queries, int kept, int dims"
_TURN = f"{_ARRAYS}, {_SIZES}, float epsilon"
_ATTENTION = f"{_ARRAYS}, u16 *to, {_SIZES}, int window, float scale, float cap, float epsilon"


@dataclass(frozen=True, slots=True)
class Loads:
    """How a kernel reads a matrix.

    Attributes:
        kind: 4 or 8 bits, or one of ``KINDS``.
        scale: type of scales and offsets; empty for none.
        has_offsets: weights have them.
        is_narrow: 16 neighbours share a scale, not a multiple of 32.
    """

    kind: int
    scale: str = ""
    has_offsets: bool = False
    is_narrow: bool = False

    @property
    def label(self) -> str:
        """Its name in names of kernels."""
        parts = f"k{self.kind}s{_SCALES[self.scale]}"
        return parts + "o" * self.has_offsets + "n" * self.is_narrow

    @property
    def arguments(self) -> str:
        """Of a template."""
        return f"{self.kind}, {_SCALES[self.scale]}, {_said(self.has_offsets)}"


def product(
    loads: Loads, end: str, eights: int, tiles: int, fold: int, *, is_routed: bool = False
) -> tuple[str, str, int]:
    """Name, text and threads of a product.

    Args:
        loads: how it reads the matrix.
        end: what becomes of the sums, one of ``ENDS``.
        eights: Eights of tokens that a block of threads takes.
        tiles: Tiles of rows, likewise.
        fold: Eights of slices that columns are cut into.
        is_routed: the matrix is of experts that a router chooses.
    """
    stem = "experts" if is_routed else "product"
    name = f"{stem}_{loads.label}_{end}_f{fold}_{eights}x{tiles}"
    # More warps than registers suffice for are no use.
    together = fold if eights == 1 or (fold < MOST_FOLD and tiles == 1) else 1
    sizes = f"{eights}, {tiles}, {ENDS[end]}, {fold}, {together}"
    given = f"{loads.arguments}, {_said(loads.is_narrow)}, {sizes}, {_said(is_routed)}"
    threads = THREADS * together
    after = "{target, stride, bias, cap, squares, epsilon, next, split, parts, more, wide, adapter}"
    text = _entry(
        name,
        f"{_MATRIX}, const uint4 *x, const int *places, const int *count, void *target, "
        "int stride, const float *bias, float cap, const float *squares, float epsilon, "
        "const float *next, u16 *split, float *parts, const float *more, int wide, "
        "const int *adapter, int used",
        f"product<{given}>({_FIELDS}, x, places, count, After{after}, used);",
        threads,
    )
    return name, text, threads


def embed(loads: Loads) -> tuple[str, str]:
    """Name and text of the kernel that looks tokens up."""
    name = f"embed_{loads.label}"
    handed = "next, split, parts"
    return name, _entry(
        name,
        f"{_MATRIX}, const int *tokens, const int *count, float *x, float factor, "
        "const float *next, u16 *split, float *parts",
        f"embedded<{loads.arguments}>({_FIELDS}, tokens, count, x, factor, {handed});",
    )


def turn(cache: str) -> tuple[str, str]:
    """Name and text of what comes before attention over a type of cache."""
    name = f"turn_all_{cache}"
    given = "qkv, cache, table, positions, owner, count, cos, sin, qnorm, knorm"
    sizes = "columns, page_size, layer_at, queries, kept, dims, epsilon"
    return name, _entry(name, _TURN, f"turn_all<{_BYTES[cache]}>({given}, {sizes});")


def attend(cache: str, fused: bool) -> tuple[str, str]:
    """Name and text of attention over a type of cache; ``fused`` does what ``turn`` does, too."""
    name = f"attend_{'fused' if fused else 'turned'}_{cache}"
    given = "qkv, cache, table, positions, owner, count, cos, sin, qnorm, knorm, to"
    heads = "Heads{queries, kept, dims, window, scale, cap, epsilon}"
    sizes = f"columns, page_size, layer_at, {heads}"
    kinds = f"{_BYTES[cache]}, {_said(fused)}"
    return name, _entry(name, _ATTENTION, f"attend<{kinds}>({given}, {sizes});")


def _said(value: bool) -> str:
    return str(value).lower()


_BYTES = {"float16": "false", "uint8": "true"}


def _entry(name: str, parameters: str, body: str, threads: int = THREADS) -> str:
    begin = f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) {{'
    return f"{begin}\n  {body}\n}}\n"


def text(entries: Iterable[str], head_dim: int, share: int) -> str:
    """CUDA C of all kernels of a model.

    Args:
        entries: Texts of those that not every model has.
        head_dim: elements of a head.
        share: heads of queries that a block computes together.
    """
    folder = resources.files("edgeinfer.convert.llm")
    parts = [folder.joinpath(name).read_text("utf-8") for name in _SOURCES]
    sizes = f"enum {{ HEAD = {head_dim}, SHARE = {share} }};\n"
    return "\n".join([sizes, *parts, *entries])


def compiled(code: str, arch: str) -> bytes:
    """Compile CUDA C to machine code of one architecture, such as ``sm_87``.

    Raises:
        NotAvailableError: CUDA's compiler is not installed, or fails.
    """
    library = _nvrtc()
    program = ctypes.c_void_p()
    source = code.encode()
    _check(library, library.nvrtcCreateProgram(
        ctypes.byref(program), source, b"step.cu", 0, None, None
    ))  # fmt: skip
    try:
        options = [f"--gpu-architecture={arch}".encode(), *(o.encode() for o in _OPTIONS)]
        array = (ctypes.c_char_p * len(options))(*options)
        if library.nvrtcCompileProgram(program, len(options), array):
            log = _bytes(library, program, "ProgramLog").decode(errors="replace")
            raise NotAvailableError(f"kernels for {arch} were not compiled: {_errors(log)}")
        return _bytes(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    made = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, made))
    return made.raw


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        reason = library.nvrtcGetErrorString(code).decode(errors="replace")
        raise NotAvailableError(f"CUDA's compiler failed: {reason}")


def _errors(log: str) -> str:
    found = [line.strip() for line in log.splitlines() if "error" in line]
    return "; ".join(found[:3])[:600] or log[-300:]


@cache
def _nvrtc() -> ctypes.CDLL:
    for place in _places():
        try:
            return ctypes.CDLL(str(place))
        except OSError:
            continue
    raise NotAvailableError(f"kernels for NVIDIA GPUs need CUDA's compiler: {INSTALL}")


def _places() -> Iterator[str | Path]:
    """Where CUDA's compiler may be: of the wheels, of the toolkit, on the loader's path."""
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        for part in ("cu13", "cuda_nvrtc"):
            yield Path(folder) / part / "lib" / _LIBRARY
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            yield Path(home) / "lib64" / _LIBRARY
    yield _LIBRARY
