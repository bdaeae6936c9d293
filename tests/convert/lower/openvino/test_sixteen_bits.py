"""Numbers rounded to 16 bits stay within them on OpenVINO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeinfer.errors import EdgeInferError
from tests.convert.lower.running import lower, model, run_openvino

X = np.array([[0.1, 1, 5, -7], [0.3, -1, 100, -100]], np.float32)


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
@pytest.mark.parametrize(("kind", "zero"), [("int16", 0), ("uint16", 32768), ("int16", -7)])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "between products"])
def test_what_lies_beyond_is_the_end(
    domain: str, kind: str, zero: int, inside: bool, tmp_path: Path
) -> None:
    eye = ",".join(map(str, np.eye(4).ravel()))
    before, after = ("a = MatMul(x, w)", "y = MatMul(b, w)") if inside else ("", "")
    whole = model(f"""g (float[2,4] x) => (float[2,4] y) <
        float[4,4] w = {{{eye}}}, float s = {{0.00003051757}}, {kind} z = {{{zero}}}
    > {{
        {before}
        q = {domain}QuantizeLinear({"a" if inside else "x"}, s, z)
        {"b" if inside else "y"} = {domain}DequantizeLinear(q, s, z)
        {after}
    }}""")
    step, ends = np.float32(0.00003051757), np.iinfo(kind)
    right = (np.clip(np.rint(X / step) + zero, ends.min, ends.max) - zero) * step
    (found,) = run_openvino(lower(whole, tmp_path, "openvino").files[0], X)
    np.testing.assert_allclose(found, right, atol=2e-7)


def test_a_scale_for_each_channel_is_refused(tmp_path: Path) -> None:
    whole = model("""g (float[2,4] x) => (float[2,4] y) <
        float[4] s = {1, 2, 3, 4}, int16[4] z = {0, 0, 0, 0}
    > {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
    }""")
    with pytest.raises(EdgeInferError, match="16 bits do not saturate"):
        lower(whole, tmp_path, "openvino")
