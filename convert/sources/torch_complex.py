"""Complex numbers of a PyTorch program as pairs of real ones, before it is exported.

PyTorch's exporter (2.13) has forms of some operators of complex numbers and none of others, such as
the product of a real number and an imaginary one. Here a program is run once more while it is
traced, with two real tensors in the place of each complex one; what is left of complex numbers is
what Fourier transforms take and give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class ComplexPair(NamedTuple):
    """A complex tensor."""

    re: Any
    im: Any


class NoFormError(Exception):
    """An operator of complex numbers that is not known here; its name."""


def has_complex(program: torch.export.ExportedProgram) -> bool:
    """Whether any value inside is complex."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    return any(_is_complex(v) for v in values)


def as_pairs(program: torch.export.ExportedProgram) -> torch.nn.Module:
    """Return a module that computes what a program does, by pairs.

    Its arguments are positional, the tensors that the program was exported with in their order.
    """
    import torch

    inner = program.module()

    class Real(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, *tensors: torch.Tensor) -> Any:
            from torch.utils import _pytree

            runner = _runner(self.inner)
            # The program's own placeholders are the leaves of what it was called with.
            made = runner.run(*tensors)
            return _pytree.tree_map(_whole, made, is_leaf=lambda v: isinstance(v, ComplexPair))

    return Real()


def _whole(value: Any) -> Any:
    import torch

    return torch.complex(value.re, value.im) if isinstance(value, ComplexPair) else value


def _is_complex(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.is_complex()


def _runner(module: Any) -> Any:
    import torch
    from torch.utils import _pytree

    rules = _rules()

    class Runner(torch.fx.Interpreter):  # type: ignore[misc]
        """Runs the graph of a program with pairs for what is complex."""

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            leaves = _pytree.tree_leaves(
                (args, kwargs), is_leaf=lambda v: isinstance(v, ComplexPair)
            )
            takes = any(
                isinstance(v, (ComplexPair, complex))
                or (isinstance(v, torch.dtype) and v.is_complex)
                for v in leaves
            )
            name = getattr(target, "_overloadpacket", target)
            rule = rules.get(str(name))
            if not takes and str(name) not in _MAKERS:
                made = super().call_function(target, args, kwargs)
                if _is_complex(made):
                    raise NoFormError(str(name).removeprefix("aten."))
                return made
            if rule is None:
                raise NoFormError(str(name).removeprefix("aten."))
            return rule(*args, **kwargs)

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            found = super().get_attr(target, args, kwargs)
            return (
                ComplexPair(found.real.clone(), found.imag.clone()) if _is_complex(found) else found
            )

    return Runner(module)


_MAKERS = frozenset(
    {
        *("aten.complex", "aten.polar", "aten.view_as_complex"),
        *("aten.fft_fft", "aten.fft_rfft", "aten.fft_ifft", "aten.stft"),
        *("aten.fft_fft2", "aten.fft_rfft2", "aten.fft_ifft2"),
        *("aten.fft_fftn", "aten.fft_rfftn", "aten.fft_ifftn"),
    }
)
"""Operators that make complex numbers of real ones."""

Rule = Callable[..., Any]


def _pair(value: Any) -> ComplexPair:
    """A number or a real tensor as a pair."""
    import torch

    if isinstance(value, ComplexPair):
        return value
    if isinstance(value, torch.Tensor):
        return ComplexPair(value, torch.zeros_like(value))
    return ComplexPair(complex(value).real, complex(value).imag)


def _apart(*functions: str) -> dict[str, Rule]:
    """Operators that do the same with either part."""
    import torch

    def rule(name: str) -> Rule:
        operator = getattr(torch.ops.aten, name)

        def run(x: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(x, (list, tuple)) and not isinstance(x, ComplexPair):
                pairs = [_pair(v) for v in x]
                parts = ([p.re for p in pairs], [p.im for p in pairs])
                return ComplexPair(*(operator(part, *args, **kwargs) for part in parts))
            found = [operator(part, *args, **kwargs) for part in _pair(x)]
            if isinstance(found[0], (list, tuple)):
                return [ComplexPair(re, im) for re, im in zip(*found, strict=True)]
            return ComplexPair(*found)

        return run

    return {f"aten.{name}": rule(name) for name in functions}


def _add(a: Any, b: Any, alpha: Any = 1) -> ComplexPair:
    x, y = _pair(a), _pair(b)
    return ComplexPair(x.re + y.re * alpha, x.im + y.im * alpha)


def _sub(a: Any, b: Any, alpha: Any = 1) -> ComplexPair:
    x, y = _pair(a), _pair(b)
    return ComplexPair(x.re - y.re * alpha, x.im - y.im * alpha)


def _mul(a: Any, b: Any) -> ComplexPair:
    if not isinstance(a, (ComplexPair, complex)):
        a, b = b, a
    x = _pair(a)
    if not isinstance(b, (ComplexPair, complex)):
        return ComplexPair(x.re * b, x.im * b)
    y = _pair(b)
    return ComplexPair(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re)


def _div(a: Any, b: Any) -> ComplexPair:
    x = _pair(a)
    if not isinstance(b, (ComplexPair, complex)):
        return ComplexPair(x.re / b, x.im / b)
    y = _pair(b)
    size = y.re * y.re + y.im * y.im
    return ComplexPair((x.re * y.re + x.im * y.im) / size, (x.im * y.re - x.re * y.im) / size)


def _exp(x: ComplexPair) -> ComplexPair:
    import torch

    size = torch.exp(x.re)
    return ComplexPair(size * torch.cos(x.im), size * torch.sin(x.im))


def _abs(x: ComplexPair) -> Any:
    import torch

    return torch.sqrt(x.re * x.re + x.im * x.im)


def _nonzero(size: Any) -> Any:
    import torch

    return torch.where(size == 0, torch.ones_like(size), size)


def _log(x: ComplexPair) -> ComplexPair:
    import torch

    return ComplexPair(torch.log(_abs(x)), torch.atan2(x.im, x.re))


def _sqrt(x: ComplexPair) -> ComplexPair:
    """The root whose real part is not negative; without differences, which lose digits."""
    import torch

    larger = torch.sqrt((_abs(x) + torch.abs(x.re)) / 2)
    smaller = x.im / (2 * _nonzero(larger))
    left = x.re < 0
    side = torch.where(x.im < 0, -larger, larger)
    return ComplexPair(
        torch.where(left, torch.abs(smaller), larger), torch.where(left, side, smaller)
    )


_MOST_FACTORS = 8


def _pow(x: Any, exponent: Any) -> Any:
    if isinstance(x, ComplexPair) and isinstance(exponent, (int, float)):
        whole = int(exponent)
        if whole == exponent and 1 <= abs(whole) <= _MOST_FACTORS:
            made = x
            for _ in range(abs(whole) - 1):
                made = _mul(made, x)
            return made if whole > 0 else _div(1, made)
        scaled = _log(x)
        return _exp(ComplexPair(scaled.re * exponent, scaled.im * exponent))
    raise NoFormError("pow with a complex exponent")


def _equal(x: ComplexPair, y: ComplexPair) -> Any:
    return (x.re == y.re) & (x.im == y.im)


def _cast(x: Any, *args: Any, **kwargs: Any) -> Any:
    """A cast to complex numbers, or between them; the width stays."""
    import torch

    given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.dtype)]
    if given and not given[0].is_complex:
        raise NoFormError("cast to real numbers")
    return _pair(x)


def _einsum(equation: str, operands: Any, **kwargs: Any) -> Any:
    import torch

    if len(operands) == 1:
        return ComplexPair(*(torch.einsum(equation, part) for part in _pair(operands[0])))
    if len(operands) > 2:
        raise NoFormError("einsum of more than two operands")
    return _matmul(lambda a, b: torch.einsum(equation, a, b))(*operands)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    import torch

    made = _matmul(torch.nn.functional.linear)(x, weight)
    return made if bias is None else _add(made, bias)


def _filled(*functions: str) -> dict[str, Rule]:
    """Operators that make a tensor of one value, whose type is complex."""
    import torch

    def rule(name: str) -> Rule:
        operator = getattr(torch.ops.aten, name)

        def run(*args: Any, dtype: Any = None, **kwargs: Any) -> Any:
            real = [a.re if isinstance(a, ComplexPair) else a for a in args]
            if dtype is not None and not dtype.is_complex:
                return operator(*real, dtype=dtype, **kwargs)
            width = real[0].dtype if isinstance(args[0], ComplexPair) else torch.float32
            if dtype is not None:
                width = torch.float64 if dtype is torch.complex128 else torch.float32
            real = [a.real if isinstance(a, complex) else a for a in real]
            made = operator(*real, dtype=width, **kwargs)
            imaginary = next((a.imag for a in args if isinstance(a, complex)), 0.0)
            return ComplexPair(made, torch.full_like(made, imaginary))

        return run

    return {f"aten.{name}": rule(name) for name in functions}


_WRITTEN = {
    **{"copy": 0, "copy_": 0, "fill_": 0, "slice_scatter": 0, "select_scatter": 0},
    **{"index_put": 1, "index_put_": 1, "masked_fill": 1, "masked_fill_": 1, "index_add": 2},
}
"""Operators that write a value into elements of a tensor, and which argument behind it that is."""


def _written() -> dict[str, Rule]:
    import torch

    def rule(name: str, place: int) -> Rule:
        operator = getattr(torch.ops.aten, name)

        def run(x: Any, *args: Any, **kwargs: Any) -> ComplexPair:
            if not isinstance(x, ComplexPair):
                raise NoFormError(f"{name} into real numbers")
            before, after = args[:place], args[place + 1 :]
            pairs = zip(x, _pair(args[place]), strict=True)
            return ComplexPair(*(operator(p, *before, v, *after, **kwargs) for p, v in pairs))

        return run

    return {f"aten.{name}": rule(name, place) for name, place in _WRITTEN.items()}


def _matmul(operator: Any) -> Rule:
    def run(a: Any, b: Any) -> ComplexPair:
        if not isinstance(b, ComplexPair):
            return ComplexPair(operator(a.re, b), operator(a.im, b))
        if not isinstance(a, ComplexPair):
            return ComplexPair(operator(a, b.re), operator(a, b.im))
        re = operator(a.re, b.re) - operator(a.im, b.im)
        return ComplexPair(re, operator(a.re, b.im) + operator(a.im, b.re))

    return run


def _transform(function: Callable[..., torch.Tensor], *, real: bool = False) -> Rule:
    import torch

    def run(x: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(x, ComplexPair):
            x = _whole(_fitted(x, real and function is not torch.fft.hfft, *args, **kwargs))
        made = function(x, *args, **kwargs)
        if real:
            return made
        parts = torch.view_as_real(made)
        return ComplexPair(parts[..., 0], parts[..., 1])

    return run


def _fitted(
    x: ComplexPair,
    half: bool,
    sizes: Any = None,
    dims: Any = None,
    norm: Any = None,
    **names: Any,
) -> ComplexPair:
    """Cut or fill up with zeros what a transform takes less or more of than there is.

    PyTorch's exporter does so for real numbers only.
    """
    import torch

    sizes = names.get("n", names.get("s", sizes))
    dims = names.get("dim", dims)
    if sizes is None:
        return x
    sizes = [sizes] if not isinstance(sizes, (list, tuple)) else list(sizes)
    dims = range(-len(sizes), 0) if dims is None else [dims] if isinstance(dims, int) else dims
    wanted = dict(zip(dims, sizes, strict=True))
    if half:
        last = list(dims)[-1]
        wanted[last] = wanted[last] // 2 + 1
    for dim, size in wanted.items():
        more = size - x.re.shape[dim]
        if more < 0:
            x = ComplexPair(*(part.narrow(dim, 0, size) for part in x))
        elif more > 0:
            shape = [more if axis == dim % x.re.dim() else n for axis, n in enumerate(x.re.shape)]
            x = ComplexPair(*(torch.cat((p, p.new_zeros(shape)), dim) for p in x))
    return x


def _of_elements() -> Mapping[str, Rule]:
    return {
        "aten.exp": _exp,
        "aten.log": _log,
        "aten.sqrt": _sqrt,
        "aten.pow": _pow,
        "aten.square": lambda x: _mul(x, x),
        "aten.reciprocal": lambda x: _div(1, x),
        "aten.sgn": lambda x: _div(x, _nonzero(_abs(x))),
        "aten.eq": lambda a, b: _equal(_pair(a), _pair(b)),
        "aten.ne": lambda a, b: ~_equal(_pair(a), _pair(b)),
        "aten.to": _cast,
        "aten._to_copy": _cast,
        "aten.einsum": _einsum,
        "aten.linear": _linear,
    }


def _transforms() -> Mapping[str, Rule]:
    import torch

    aten, fft = torch.ops.aten, torch.fft
    return {
        "aten.fft_fft": _transform(fft.fft),
        "aten.fft_ifft": _transform(fft.ifft),
        "aten.fft_rfft": _transform(fft.rfft),
        "aten.fft_irfft": _transform(fft.irfft, real=True),
        "aten.fft_fft2": _transform(fft.fft2),
        "aten.fft_ifft2": _transform(fft.ifft2),
        "aten.fft_rfft2": _transform(fft.rfft2),
        "aten.fft_irfft2": _transform(fft.irfft2, real=True),
        "aten.fft_fftn": _transform(fft.fftn),
        "aten.fft_ifftn": _transform(fft.ifftn),
        "aten.fft_rfftn": _transform(fft.rfftn),
        "aten.fft_irfftn": _transform(fft.irfftn, real=True),
        "aten.fft_hfft": _transform(fft.hfft, real=True),
        "aten.stft": _transform(aten.stft.default),
        "aten.istft": _istft,
    }


def _rules() -> Mapping[str, Rule]:
    """Map each operator to its rule for pairs of real numbers."""
    import torch

    return {
        **_apart("view", "reshape", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand"),
        **_apart(
            "slice", "select", "cat", "stack", "clone", "contiguous", "repeat", "roll", "flip"
        ),
        **_apart("sum", "mean", "neg", "index", "index_select", "gather", "split", "chunk"),
        **_apart("split_with_sizes", "unbind", "alias", "detach", "narrow", "flatten", "flip"),
        **_apart("constant_pad_nd", "pad", "unfold", "_unsafe_view", "expand_as", "view_as"),
        **_apart("cumsum", "fft_fftshift", "fft_ifftshift", "movedim", "diagonal", "tril"),
        **_apart("triu", "lift_fresh", "lift_fresh_copy", "masked_select", "take"),
        **_filled("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty"),
        **_filled("ones", "ones_like", "new_ones", "full", "full_like", "new_full"),
        **_written(),
        "aten.add": _add,
        "aten.sub": _sub,
        "aten.rsub": lambda a, b, alpha=1: _sub(b, a, alpha),
        "aten.mul": _mul,
        "aten.div": _div,
        **_of_elements(),
        "aten.matmul": _matmul(torch.matmul),
        "aten.mm": _matmul(torch.mm),
        "aten.mv": _matmul(torch.mv),
        "aten.bmm": _matmul(torch.bmm),
        "aten.conj": lambda x: ComplexPair(x.re, -x.im),
        "aten._conj": lambda x: ComplexPair(x.re, -x.im),
        "aten._conj_physical": lambda x: ComplexPair(x.re, -x.im),
        "aten.resolve_conj": lambda x: x,
        "aten.real": lambda x: x.re,
        "aten.imag": lambda x: x.im,
        "aten.abs": _abs,
        "aten.angle": lambda x: torch.atan2(x.im, x.re),
        "aten.complex": ComplexPair,
        "aten.polar": lambda size, angle: ComplexPair(
            size * torch.cos(angle), size * torch.sin(angle)
        ),
        "aten.view_as_complex": lambda x: ComplexPair(x[..., 0], x[..., 1]),
        "aten.view_as_real": lambda x: torch.stack((x.re, x.im), dim=-1),
        "aten.where": lambda c, a, b: ComplexPair(
            *(torch.where(c, p, q) for p, q in zip(_pair(a), _pair(b), strict=True))
        ),
        **_transforms(),
    }


def _istft(
    x: ComplexPair,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """Inverse of the short-time Fourier transform; frames overlap by a transposed convolution."""
    import torch

    if return_complex or onesided is False:
        raise NoFormError("istft with a complex result, or of both sides")
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    alone = x.re.dim() == 2
    whole = torch.complex(x.re[None], x.im[None]) if alone else torch.complex(x.re, x.im)
    frames = torch.fft.irfft(whole, n_fft, dim=1, norm="ortho" if normalized else None)
    shape = torch.ones(width, dtype=frames.dtype) if window is None else window
    before = (n_fft - width) // 2
    shape = torch.nn.functional.pad(shape, (before, n_fft - width - before))[None, :, None]
    kernel = torch.eye(n_fft, dtype=frames.dtype)[:, None]
    together = torch.nn.functional.conv_transpose1d
    signal = together(frames * shape, kernel, stride=hop)[:, 0]
    weight = together((shape * shape).expand_as(frames), kernel, stride=hop)[:, 0]
    start = n_fft // 2 if center else 0
    end = signal.shape[1] - start
    if length is not None:
        end = min(start + length, signal.shape[1]) if isinstance(length, int) else start + length
    made = signal[:, start:end] / weight[:, start:end]
    return made[0] if alone else made
