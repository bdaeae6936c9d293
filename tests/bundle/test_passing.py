"""Problems of the machine and of the model are told apart."""

import errno
import os

import pytest

from edgeinfer.bundle.passing import is_passing


@pytest.mark.parametrize(
    "problem",
    [
        "onnxruntime refuses m.onnx: std::bad_alloc",
        "openvino refuses m.xml: Can not allocate 4096 bytes: bad allocation",
        "litert: m.tflite ends the process: SIGKILL, as when memory runs out",
        "tvm: out of memory while it was loaded: Unable to allocate 2.00 GiB for an array",
        "litert: no process to try m.tflite in: no process could be started: [Errno 11] Resource "
        "temporarily unavailable",
        "litert: the engine crashed in load m.tflite: no answer for 10 s",
        "m.onnx: [Errno 24] Too many open files",
        f"cannot write engine: {os.strerror(errno.ENOSPC)}",
        f"cannot write engine: {os.strerror(errno.EACCES)}",
        f"cannot write engine: {os.strerror(errno.EROFS)}",
    ],
)
def test_what_passes(problem: str) -> None:
    assert is_passing(problem)


@pytest.mark.parametrize(
    "problem",
    [
        "",
        "onnxruntime refuses m.onnx: NOT_IMPLEMENTED: no kernel for Foo(1)",
        "output 'memory': max relative error 0.3 exceeds 0.1",
        "litert: m.tflite ends the process: SIGSEGV",
        "tvm refuses m.so: this CPU lacks avx512f",
    ],
)
def test_what_stays(problem: str) -> None:
    assert not is_passing(problem)
