import sys

import pytest

from edgeinfer.convert.lower import FORMATS, target_for
from edgeinfer.errors import UsageError


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_writer_that_knows_its_name(name: str) -> None:
    assert target_for(name).format == name


def test_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="'caffe' cannot be written; known: onnx, openvino_ir"):
        target_for("caffe")


def test_writers_import_no_engine_until_they_are_used() -> None:
    import subprocess

    code = (
        "import sys; from edgeinfer.convert.lower import target_for, FORMATS;"
        "[target_for(f) for f in FORMATS];"
        "print([m for m in ('openvino', 'onnxruntime', 'torch') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
