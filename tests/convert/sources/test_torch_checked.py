"""Operators below PyTorch's checks are given operands that do not fit: memory of others, before."""

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from edgeinfer.convert.sources.torch_checked import check_operands  # noqa: E402

A = torch.ops.aten


def z(*sizes: int) -> Any:
    return torch.ones(sizes)


def program(operator: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a graph of one operator; its tensors are the graph's inputs."""
    graph = torch.fx.Graph()

    def given(value: Any) -> Any:
        if isinstance(value, list):
            return [given(v) for v in value]
        return graph.placeholder(f"x{len(graph.nodes)}") if torch.is_tensor(value) else value

    operands = [(name, given(value)) for name, value in _named(operator, arguments)]
    graph.output(graph.call_function(operator, (), dict(operands)))
    return torch.fx.GraphModule({}, graph)


def _named(operator: Any, arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return [(a.name, v) for a, v in zip(operator._schema.arguments, arguments, strict=False)]


def tensors(arguments: Any) -> list[Any]:
    flat = [v for x in arguments for v in (x if isinstance(x, list) else [x])]
    return [v for v in flat if torch.is_tensor(v)]


LSTM = [z(32, 4), z(32, 8), z(32), z(32)]
TAIL = (True, 1, 0.0, False, False, False)
GOOD = [
    (A._fft_r2c.default, (z(2, 8), [1], 0, True)),
    (A._fft_c2c.default, (z(2, 8).cfloat(), [0, 1], 0, True)),
    (A._fft_c2r.default, (z(2, 5).cfloat(), [1], 2, 8)),
    (A._weight_norm_interface.default, (z(3, 4), z(3, 1), 0)),
    (A._weight_norm.default, (z(3, 4), z(1, 4), 1)),
    (A._weight_norm.default, (z(3, 4), z(1, 1), -1)),
    (
        A._native_batch_norm_legit_no_training.default,
        (z(2, 3, 4), z(3), None, z(3), z(3), 0.1, 1e-5),
    ),
    (
        A._scaled_dot_product_flash_attention_for_cpu.default,
        (z(1, 2, 5, 4), z(1, 2, 7, 4), z(1, 2, 7, 4)),
    ),
    (
        A._scaled_dot_product_attention_math.default,
        (z(1, 4, 5, 3), z(1, 2, 7, 3), z(1, 2, 7, 3), None, 0.0, False, None, None, True),
    ),
    (A._cdist_forward.default, (z(2, 5, 4), z(2, 6, 4), 2.0, None)),
    (A.repeat_interleave.Tensor, (torch.tensor([1, 2, 0]),)),
    (A.repeat_interleave.self_int, (z(2, 3), 2, 1)),
    (A.lstm.input, (z(3, 5, 4), [z(1, 5, 8), z(1, 5, 8)], LSTM, *TAIL)),
    (A.upsample_bilinear2d.default, (z(1, 1, 4, 4), [8, 6], False, 2.0, 1.5)),
    (A.upsample_nearest1d.default, (z(1, 1, 3), [7], 2.4)),
    (A._upsample_bilinear2d_aa.default, (z(1, 1, 4, 4), [2, 2], False, None, None)),
]


@pytest.mark.parametrize(("operator", "arguments"), GOOD, ids=lambda x: str(x)[:40])
def test_what_fits_is_run(operator: Any, arguments: tuple[Any, ...]) -> None:
    module = program(operator, arguments)
    expected = module(*tensors(arguments))
    actual = check_operands(module)(*tensors(arguments))
    torch.testing.assert_close(actual, expected)


BAD = [
    (A._fft_r2c.default, (z(4), [10**9], 0, True)),
    (A._fft_r2c.default, (z(4), [-1], 0, True)),
    (A._fft_c2c.default, (z(4).cfloat(), [0, 0], 0, True)),
    (A._fft_c2c.default, (z(4).cfloat(), [1], 0, True)),
    (A._fft_c2r.default, (z(4).cfloat(), [0], 0, 0)),
    (A._weight_norm_interface.default, (z(1000, 4), z(1), 0)),
    (A._weight_norm.default, (z(1000, 4), z(1, 4), 0)),
    (A._weight_norm.default, (z(0), z(4), 0)),
    (
        A._native_batch_norm_legit_no_training.default,
        (z(1, 1000), None, None, z(1), z(1), 0.1, 1e-5),
    ),
    (
        A._scaled_dot_product_flash_attention_for_cpu.default,
        (z(4000, 2, 5, 4), z(1, 2, 7, 4), z(1, 2, 7, 4)),
    ),
    (
        A._scaled_dot_product_attention_math.default,
        (z(4, 4, 2), z(4, 2, 2), z(16, 0, 1, 8), None, 0.0, False, None, None, True),
    ),
    (A._cdist_forward.default, (z(3000, 2, 4), z(1, 2, 4), 2.0, None)),
    (A.repeat_interleave.Tensor, (torch.tensor([1 << 62] * 3 + [(1 << 62) + 4]),)),
    (A.repeat_interleave.Tensor, (torch.tensor([-1, 2]),)),
    (A.lstm.input, (z(3, 2000, 4), [z(1, 1, 8), z(1, 1, 8)], LSTM, *TAIL)),
    (A.lstm.input, (z(3, 1, 4), [z(1, 1, 800), z(1, 1, 800)], LSTM, *TAIL)),
    (A.lstm.input, (z(3, 1, 4), [z(1, 1, 8), z(1, 1, 8)], LSTM[:2], *TAIL)),
    (A._upsample_bilinear2d_aa.default, (z(1, 1, 6, 6), [64, 5], False, 0.001, 2.0)),
    (A.upsample_nearest1d.default, (z(1, 1, 3), [7], 0.01)),
]


@pytest.mark.parametrize(("operator", "arguments"), BAD, ids=lambda x: str(x)[:40])
def test_what_does_not_fit_is_refused(operator: Any, arguments: tuple[Any, ...]) -> None:
    module = check_operands(program(operator, arguments))
    child = os.fork()
    if not child:
        try:
            module(*tensors(arguments))
        except ValueError as error:
            os._exit(int("does not fit together" not in str(error)))
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_graphs_within_a_program_are_looked_at_and_stay_as_they_were() -> None:
    inner = program(A._fft_r2c.default, (z(4), [9], 0, True))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("inner", (x,)))
    outer = torch.fx.GraphModule({"inner": inner}, graph)
    with pytest.raises(ValueError, match="does not fit together"):
        check_operands(outer)(z(4))
    assert [n.target for n in inner.graph.nodes if n.op == "call_function"] == [A._fft_r2c.default]
