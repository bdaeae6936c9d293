"""What is particular to the reference evaluator; everything else is in the conformance kit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgeinfer.backends.base import Artifact, LoadOptions
from edgeinfer.backends.reference.backend import ReferenceBackend
from edgeinfer.errors import LoadError, RunError
from edgeinfer.types import TensorSpec
from tests.backends.conftest import Write


def load(artifact: Artifact, **options: Any) -> Any:
    return ReferenceBackend().load(artifact, LoadOptions(**options))


def test_undescribed_model_is_described_by_itself(write: Write) -> None:
    text = "(float[N,3] x, float w) => (float y) <float w = {2}> { s = ReduceSum<keepdims=0>(x) "
    executable = load(write(text + "y = Mul(s, w) }"))
    assert executable.inputs == (TensorSpec("x", "float32", ("N", 3)),)
    assert executable.outputs == (TensorSpec("y", "float32", ()),)
    assert executable.run({"x": np.ones((2, 3), np.float32)})["y"].tolist() == 12


def test_operators_of_others_are_refused(write: Write) -> None:
    text = "(float[2] x) => (float[2] y) { a = com.microsoft.FastGelu(x) y = com.acme.Foo(a) }"
    imports = '"" : 21, "com.microsoft" : 1, "com.acme" : 1'
    with pytest.raises(LoadError, match=r"not com\.acme::Foo, com\.microsoft::FastGelu"):
        load(write(text, imports))


def test_sequences_are_refused(write: Write) -> None:
    with pytest.raises(LoadError, match="'x' is a sequence_type"):
        load(write("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }"))


def test_options_are_refused(write: Write) -> None:
    artifact = write("(float[2] x) => (float[2] y) { y = Neg(x) }")
    with pytest.raises(LoadError, match=r"has no options, received \['a'\]"):
        load(artifact, extra={"a": "b"})


def test_result_of_another_size_is_not_broadcast_into_the_buffer(write: Write) -> None:
    executable = load(write("(float[N] x) => (float[M] y) { y = Neg(x) }"))
    bound = executable.bind({"x": np.ones(1, np.float32)}, {"y": np.zeros(3, np.float32)})
    with pytest.raises(RunError, match=r"buffer has shape \(3,\), the result \(1,\)"):
        bound()


def test_result_of_another_type_is_an_error(write: Write) -> None:
    """The model says int64 where the operator gives float32."""
    executable = load(write("(float[2] x) => (int64[2] y) { y = Neg(x) }"))
    with pytest.raises(RunError, match="gave float32 for output 'y', the model says int64"):
        executable.run({"x": np.ones(2, np.float32)})


def test_numpy_warnings_do_not_come_out(write: Write, recwarn: pytest.WarningsRecorder) -> None:
    executable = load(write("(float[1] x) => (float[1] y) { y = Log(x) }"))
    assert executable.run({"x": np.zeros(1, np.float32)})["y"].tolist() == [-np.inf]
    assert not recwarn.list
