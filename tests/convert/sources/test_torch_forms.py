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


def module(forward: Callable[..., Any]) -> Any:
    made = type(forward.__name__, (torch.nn.Module,), {"forward": forward})
    return made().eval()


def _masked(self: Any, e: Any, mask: Any, new: Any) -> Any:
    return e.masked_scatter(mask.unsqueeze(-1), new) * 2


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


@pytest.mark.parametrize("forward", [_checked, _any, _all])
def test_questions_about_all_elements(forward: Callable[..., Any]) -> None:
    examples = (torch.ones(1, 6), torch.tensor([2, 3]))
    model = read(module(forward), example_inputs=examples).model
    feeds = {"x": examples[0].numpy(), "n": examples[1].numpy()}
    given = {str(v.name): feeds[str(v.name)] for v in model.graph.inputs}
    np.testing.assert_array_equal(run(model, given)[0], forward(None, *examples).numpy())


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


@pytest.mark.parametrize("forward", [_imaginary, _rotated, _products])
@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_numbers(forward: Callable[..., Any], dynamic: bool) -> None:
    torch.manual_seed(0)
    examples = (torch.rand(2, 9, 5), torch.rand(2, 9, 5))
    sizes = {name: {0: "n"} for name in ("mag", "p")} if dynamic else None
    model = read(module(forward), example_inputs=examples, dynamic_shapes=sizes).model
    if dynamic:
        examples = (torch.rand(5, 9, 5), torch.rand(5, 9, 5))
    feeds = dict(zip(("mag", "p"), (e.numpy() for e in examples), strict=True))
    expected = forward(None, *examples)
    expected = (expected,) if isinstance(expected, torch.Tensor) else expected
    for found, want in zip(run(model, feeds), expected, strict=True):
        np.testing.assert_allclose(found, want.resolve_neg().numpy(), rtol=1e-4, atol=1e-5)


def test_programs_with_complex_numbers() -> None:
    examples = (torch.rand(1, 9, 5), torch.rand(1, 9, 5))
    program = torch.export.export(module(_imaginary), examples)
    assert any("equals PyTorch" in line for line in read(program).notes.lines)


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
