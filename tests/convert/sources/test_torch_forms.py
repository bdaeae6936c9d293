"""What PyTorch's exporter lacks, or exports so that it fails: operators of ours, and true words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgeinfer.convert.sources import read
from edgeinfer.errors import SourceError
from tests.convert.lower.running import run

torch = pytest.importorskip("torch")
tree_leaves = pytest.importorskip("torch.utils._pytree").tree_leaves


def module(forward: Callable[..., Any]) -> Any:
    made = type(forward.__name__, (torch.nn.Module,), {"forward": forward})
    return made().eval()


def _masked(self: Any, e: Any, mask: Any, new: Any) -> Any:
    return e.masked_scatter(mask.unsqueeze(-1), new) * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("places", [(1, 3, 4, 7), (), (0,), tuple(range(8))])
def test_masked_scatter_takes_any_mask(places: tuple[int, ...]) -> None:
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[0, [1, 3]] = True
    new = torch.arange(32.0).reshape(8, 4) + 1
    examples = (torch.zeros(1, 8, 4), mask, new)
    model = read(module(_masked), example_inputs=examples).model
    other = np.zeros((1, 8), bool)
    other[0, list(places)] = True
    feeds = {"e": np.zeros((1, 8, 4), np.float32), "mask": other, "new": new.numpy()}
    expected = _masked(None, examples[0], torch.from_numpy(other), new)
    np.testing.assert_array_equal(run(model, feeds)[0], expected.numpy())


def test_masked_scatter_runs_where_the_mask_wants_more_than_there_is() -> None:
    mask = torch.zeros(1, 8, dtype=torch.bool)
    mask[0, [1, 3]] = True
    new = torch.ones(2, 4)
    model = read(module(_masked), example_inputs=(torch.zeros(1, 8, 4), mask, new)).model
    feeds = {"e": np.zeros((1, 8, 4), np.float32), "mask": np.ones((1, 8), bool)}
    assert run(model, {**feeds, "new": new.numpy()})[0].shape == (1, 8, 4)


def _checked(self: Any, x: Any, n: Any) -> Any:
    torch._check_tensor_all(n.prod() == x.shape[1])
    return x * 2


def _any(self: Any, x: Any, n: Any) -> Any:
    return torch.where(torch.ops.aten._is_any_true(n > 2), x, -x)


def _all(self: Any, x: Any, n: Any) -> Any:
    return torch.where(torch.ops.aten._is_all_true(n > 2), x, -x)


@pytest.mark.sample(1)
@pytest.mark.parametrize("forward", [_checked, _any, _all])
def test_questions_about_all_elements(forward: Callable[..., Any]) -> None:
    examples = (torch.ones(1, 6), torch.tensor([2, 3]))
    model = read(module(forward), example_inputs=examples).model
    feeds = {"x": examples[0].numpy(), "n": examples[1].numpy()}
    given = {str(v.name): feeds[str(v.name)] for v in model.graph.inputs}
    np.testing.assert_array_equal(run(model, given)[0], forward(None, *examples).numpy())


# ---- the exporter's forms that are wrong, or lose digits


def _mean_at(self: Any, x: Any, i: Any, s: Any) -> Any:
    return (
        x.scatter_reduce(1, i, s, "mean"),
        x.scatter_reduce(1, i, s, "mean", include_self=False),
    )


def _sorted_places(self: Any, x: Any, b: Any) -> Any:
    return torch.searchsorted(b, x), torch.searchsorted(b, x, side="right", out_int32=True)


def _medians(self: Any, x: Any) -> Any:
    return x.median(), *x.median(1), *x.median(0, keepdim=True), *torch.kthvalue(x, 2, 1)


def _apart(self: Any, a: Any, b: Any) -> Any:
    return tuple(torch.cdist(a, b, p=p) for p in (0, 1, 2, 3, torch.inf))


def _products_so_far(self: Any, x: Any) -> Any:
    return x.cumprod(1), x.cumprod(0), x.cumprod(1, dtype=torch.float64)


def _medians_of_numbers(self: Any, x: Any) -> Any:
    return x.nanmedian(), *x.nanmedian(1), x.nanmedian(0, keepdim=True).values


def _medians_alone(self: Any, x: Any) -> Any:
    return x.median(), *x.median(1)


def _most_frequent(self: Any, x: Any) -> Any:
    return *x.mode(1), *x.T.mode(0, keepdim=True)


def _extremes_so_far(self: Any, x: Any) -> Any:
    return *x.cummax(1), *x.cummin(-1), *x.cummax(0)


def _sums_of_exponentials_so_far(self: Any, x: Any) -> Any:
    return x.logcumsumexp(1), x.logcumsumexp(0), x[0, 0].logcumsumexp(0)


def _histograms(self: Any, x: Any) -> Any:
    return torch.histc(x, 5), torch.histc(x[0, :1], 4), torch.histc(x, 3, 2, 2)


def _reduced_at(self: Any, x: Any, i: Any, s: Any) -> Any:
    ways = [(how, keep) for how in ("prod", "mean", "amax", "amin") for keep in (True, False)]
    return tuple(x.index_reduce(-1, i, s, how, include_self=keep) for how, keep in ways)


def _pooled(self: Any, x: Any) -> Any:
    pools = torch.nn.functional
    return (
        *pools.adaptive_max_pool2d(x, (3, 2), return_indices=True),
        *pools.adaptive_max_pool2d(x, (2, 9), return_indices=True),
        *pools.adaptive_max_pool3d(x, (1, 3, 3), return_indices=True),
        pools.adaptive_max_pool2d(x, 1),
        pools.adaptive_max_pool1d(x[0], 3),
        pools.adaptive_avg_pool2d(x, (3, 5)),
        pools.adaptive_avg_pool2d(x, (7, 1)),
        pools.adaptive_avg_pool2d(x[0], (9, 2)),
        pools.adaptive_avg_pool3d(x, (1, 3, 3)),
        pools.adaptive_avg_pool1d(x[0], 3),
    )


def _seen(self: Any, q: Any, k: Any, mask: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=mask)


def _first_ones(self: Any, q: Any, k: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, k, is_causal=True, scale=0.3, enable_gqa=True
    )


ROWS = torch.tensor([[3.0, 1, 4, 1.5], [9, 2, 6, 5], [-5, 3, -5.5, 8]])
SPREAD = torch.tensor(
    [
        [-200, -100, 0, 0, 100, 0],
        [-torch.inf, 3, -300, 90, torch.inf, 1],
        [1, torch.nan, 2, 3, 4, 5],
    ]
)
TIES = torch.tensor([[3.0, 1, 1, 3], [2, 2, 5, 5], [2, 1, 5, 3]])
HOLES = torch.tensor([[torch.nan, 1, torch.inf, 4], [2, 5, torch.nan, torch.nan], [-5, 3, 7, 8]])
SIXTY = torch.linspace(-2, 3, 60).sin()
IMAGE = (torch.arange(2 * 7 * 5) * 37 % 11).reshape(1, 2, 7, 5).float()
MASK = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("forward", "examples"),
    [
        (_mean_at, (ROWS, torch.tensor([[0, 0, 2], [3, 3, 3]]), ROWS[:2, :3].clone())),
        (_sorted_places, (torch.tensor([[0.0, 4, 9], [1, 5, 2]]), ROWS.sort(1).values[:2])),
        (_sorted_places, (ROWS, torch.tensor([-5.0, 1, 1, 4]))),
        (_medians, (ROWS,)),
        (_apart, (ROWS, ROWS[1:].clone() + 0.5)),
        (_products_so_far, (ROWS,)),
        (_medians_of_numbers, (HOLES,)),
        (_medians_of_numbers, (ROWS.long(),)),
        (_medians_of_numbers, (torch.full((2, 1), torch.nan),)),
        (_most_frequent, (TIES,)),
        (_extremes_so_far, (TIES,)),
        (_extremes_so_far, (HOLES,)),
        (_extremes_so_far, (TIES.long(),)),
        (_sums_of_exponentials_so_far, (SPREAD,)),
        (_histograms, (ROWS,)),
        (_reduced_at, (ROWS, torch.tensor([0, 2, 0, 2, 2]), torch.arange(15.0).view(3, 5) - 6)),
        (_pooled, (IMAGE,)),
        (_seen, (ROWS[None, None], ROWS[[0, 1, 2, 1]][None, None].clone(), MASK)),
        (_seen, (ROWS[None], ROWS[[0, 1, 2, 1]][None].clone(), MASK)),
        # Windows have an axis of their own.
        (_seen, (SIXTY.view(5, 1, 1, 3, 4), SIXTY[:16].view(1, 1, 1, 4, 4).clone(), MASK)),
        (
            _seen,
            (
                SIXTY.view(1, 5, 1, 3, 4),
                SIXTY[:48].view(1, 1, 1, 12, 4) / 2,
                SIXTY[:36].view(3, 12),
            ),
        ),
        (_first_ones, (SIXTY[:48].view(1, 1, 4, 3, 4), SIXTY[:24].view(1, 1, 2, 3, 4) / 2)),
    ],
)
def test_operators_that_the_exporter_lacks(
    forward: Callable[..., Any], examples: tuple[Any, ...]
) -> None:
    model = read(module(forward), example_inputs=examples).model
    names = [str(value.name) for value in model.graph.inputs]
    found = run(model, dict(zip(names, (e.numpy() for e in examples), strict=True)))
    expected = forward(None, *examples)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for one, want in zip(found, expected, strict=True):
        assert one.dtype == want.numpy().dtype
        np.testing.assert_allclose(one, want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("forward", [_medians_alone, _most_frequent])
def test_what_is_no_number_is_where_it_is_in_pytorch(forward: Callable[..., Any]) -> None:
    """The export was compared on examples without."""
    model = read(module(forward), example_inputs=(TIES,)).model
    x = torch.tensor([[1, 1, torch.nan, 4], [torch.nan, 3, 2, 2], [5, 5, 5, 1]])
    for found, want in zip(run(model, {"x": x.numpy()}), forward(None, x), strict=True):
        np.testing.assert_array_equal(found, want.numpy())


SMALL = (-1e-3, -1e-7, 1e-30, 1e-7, 0.3, 20)
WIDE = (-1000.0, -100, -20, -0.5, 0, 0.5, 20, 1000)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("function", "places"),
    [
        (torch.log1p, (*SMALL, -0.9, 1e10)),
        (torch.expm1, (*SMALL, -100, 80)),
        (torch.erfc, (-3, 0, 0.1, 1, 3, 6)),
        (torch.nn.functional.logsigmoid, WIDE),
        (lambda x: torch.logaddexp(x, x.flip(0) + 0.5), WIDE),
        (lambda x: torch.logaddexp2(x, x.flip(0) + 0.5), WIDE),
        (lambda x: torch.logaddexp(x, x), (*WIDE, float("inf"), float("-inf"))),
    ],
)
def test_functions_keep_their_digits(function: Any, places: tuple[float, ...]) -> None:
    """The export was compared on harmless examples, and runs on others."""

    def forward(self: Any, x: Any) -> Any:
        return function(x)

    x = torch.tensor(places)
    model = read(module(forward), example_inputs=(torch.full_like(x, 0.5),)).model
    expected = function(x.double()).numpy()
    np.testing.assert_allclose(run(model, {"x": x.numpy()})[0], expected, rtol=1e-5)


def _branch(self: Any, x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


def _turns(self: Any, x: Any) -> Any:
    turns = torch.zeros((), dtype=torch.int64)
    loop = torch._higher_order_ops.while_loop
    return loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (turns, x))[1]


@pytest.mark.sample(each="forward")
@pytest.mark.parametrize("forward", [_branch, _turns])
@pytest.mark.parametrize("sign", [1, -1])
def test_branches_and_loops(forward: Callable[..., Any], sign: int) -> None:
    model = read(module(forward), example_inputs=(torch.ones(2, 3),)).model
    x = sign * torch.ones(2, 3)
    np.testing.assert_array_equal(run(model, {"x": x.numpy()})[0], forward(None, x).numpy())


def test_transformers_compute_padded_places() -> None:
    """PyTorch's own short cut, which is not what is exported, gives zeros there."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.TransformerEncoder(layer, 1)

        def forward(self, x: Any, padded: Any) -> Any:
            return self.encoder(x, src_key_padding_mask=padded)

    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 8)
    padded = torch.tensor([[False, False, True], [False] * 3])
    got = read(net, example_inputs=(x, padded))
    found = run(got.model, {"x": x.numpy(), "padded": padded.numpy()})[0]
    with torch.no_grad():
        expected = net(x, padded).numpy()
    seen = ~padded.numpy()
    np.testing.assert_allclose(found[seen], expected[seen], rtol=1e-4, atol=1e-5)
    assert not expected[~seen].any()
    assert any("padded tokens are computed" in line for line in got.notes.lines)


# ---- complex numbers


def _imaginary(self: Any, mag: Any, p: Any) -> Any:
    return torch.fft.irfft(mag * (torch.cos(p) + 1j * torch.sin(p)), dim=1)


def _rotated(self: Any, mag: Any, p: Any) -> Any:
    turned = torch.polar(mag, p) * torch.view_as_complex(torch.stack((p, mag), -1))
    return torch.view_as_real(turned / (2 - 1j)).flatten(-2), turned.conj().imag, turned.abs()


def _products(self: Any, mag: Any, p: Any) -> Any:
    z = 1j * p + mag
    return (
        (z @ z.transpose(-1, -2)).real,
        torch.angle(z[:, :2].exp()),
        (z - z.mean(1)[:, None]).imag,
    )


def _elements(self: Any, mag: Any, p: Any) -> Any:
    z = torch.complex(mag, p - 0.5)
    made = torch.zeros(z.shape, dtype=torch.complex64)
    made[:, 1:3] = z[:, :2] ** 2
    made[:, 4] = 2j
    parts = (made, z.sqrt(), z.log(), z**1.5, z**-2, torch.sgn(z), z.cumsum(1), 1 / z)
    return tuple(torch.view_as_real(part) for part in parts), z == z.conj()


def _layers(self: Any, mag: Any, p: Any) -> Any:
    z = torch.complex(mag, p)
    w = torch.complex(p[0, :4], mag[0, :4])
    parts = (torch.nn.functional.linear(z, w), torch.einsum("bij,kj->bik", z, w))
    return tuple(torch.view_as_real(part) for part in parts)


def _spectra(self: Any, mag: Any, p: Any) -> Any:
    """As Fourier neural operators do: some frequencies are mixed, the others are zero."""
    z = torch.fft.rfft2(mag)[:, :4, :2] * torch.complex(p[:, :4, :2], mag[:, :4, :2])
    return (
        torch.fft.irfft2(z, s=(9, 5)),
        torch.fft.irfft(torch.fft.rfft(p, n=7), n=12),
        torch.fft.ifftn(torch.fft.fftn(mag, dim=(1, 2)) * (1 + 2j), dim=(1, 2)).imag,
        torch.fft.hfft(torch.complex(mag, p)),
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("forward", [_imaginary, _rotated, _products, _elements, _layers, _spectra])
@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_numbers(forward: Callable[..., Any], dynamic: bool) -> None:
    torch.manual_seed(0)
    examples = (torch.rand(2, 9, 5), torch.rand(2, 9, 5))
    sizes = {name: {0: "n"} for name in ("mag", "p")} if dynamic else None
    if dynamic and forward is _elements and torch.__version__ < "2.12":
        # PyTorch 2.11 has no form for powers of complex numbers of an open size.
        with pytest.raises(SourceError, match="no form in ONNX for torch's pow"):
            read(module(forward), example_inputs=examples, dynamic_shapes=sizes)
        return
    model = read(module(forward), example_inputs=examples, dynamic_shapes=sizes).model
    if dynamic:
        examples = (torch.rand(5, 9, 5), torch.rand(5, 9, 5))
    feeds = dict(zip(("mag", "p"), (e.numpy() for e in examples), strict=True))
    expected = forward(None, *examples)
    for found, want in zip(run(model, feeds), tree_leaves(expected), strict=True):
        np.testing.assert_allclose(found, want.resolve_neg().numpy(), rtol=1e-4, atol=1e-5)


def test_programs_with_complex_numbers() -> None:
    examples = (torch.rand(1, 9, 5), torch.rand(1, 9, 5))
    program = torch.export.export(module(_imaginary), examples)
    assert any("equals PyTorch" in line for line in read(program).notes.lines)


@pytest.mark.sample(1)
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_sound_from_its_spectrum(center: bool, batch: tuple[int, ...]) -> None:
    window = torch.hann_window(16) + 0.1

    def sound(self: Any, mag: Any, p: Any) -> Any:
        z = mag * torch.exp(1j * p)
        return torch.istft(z, 16, 4, window=window, center=center)

    examples = (torch.rand(*batch, 9, 12), torch.rand(*batch, 9, 12))
    model = read(module(sound), example_inputs=examples).model
    feeds = {"mag": examples[0].numpy(), "p": examples[1].numpy()}
    expected = sound(None, *examples).numpy()
    np.testing.assert_allclose(run(model, feeds)[0], expected, rtol=1e-4, atol=1e-5)


# ---- refusals


def _eigenvalues(self: Any, x: Any) -> Any:
    return torch.linalg.eigvals(x).real


def _polygamma(self: Any, x: Any) -> Any:
    return torch.special.zeta(x, x)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (_eigenvalues, "linalg_eigvals of complex numbers has no form in ONNX"),
        (_polygamma, r"PyTorch's exporter has no form in ONNX for prims.zeta"),
    ],
)
def test_a_refusal_names_the_operator(forward: Callable[..., Any], words: str) -> None:
    with pytest.raises(SourceError, match=words) as caught:
        read(module(forward), example_inputs=(torch.rand(3, 3) + 2,))
    assert "\n" not in str(caught.value)
    assert "trace" not in str(caught.value)


def test_complex_inputs_and_outputs_are_named() -> None:
    z = torch.complex(torch.ones(3), torch.ones(3))
    with pytest.raises(SourceError, match=r"input 'x' is complex; .*view_as_complex"):
        read(module(lambda self, x: x.abs()), example_inputs=(z,))
    with pytest.raises(SourceError, match="output 1 is complex"):
        read(module(lambda self, x: (x, x * 1j)), example_inputs=(torch.ones(3),))


def test_means_of_windows_of_open_sizes() -> None:
    def pooled(self: Any, x: Any) -> Any:
        pool = torch.nn.functional.adaptive_avg_pool2d
        return pool(x, (7, 3)), pool(x, (None, 2))

    size = torch.export.Dim("size", min=2, max=64)
    shapes = {"x": {2: size}}
    example = (torch.ones(1, 2, 8, 9),)
    model = read(module(pooled), example_inputs=example, dynamic_shapes=shapes).model
    for height in (2, 5, 14, 20):
        x = torch.linspace(-3, 8, 2 * height * 9).sin().view(1, 2, height, 9)
        found = run(model, {str(model.graph.inputs[0].name): x.numpy()})
        for one, want in zip(found, pooled(None, x), strict=True):
            np.testing.assert_allclose(one, want.numpy(), 0, 1e-6)
