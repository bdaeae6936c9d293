"""README's table of what was run where has every target, with the formats that it converts to."""

from __future__ import annotations

from pathlib import Path

from edgeinfer import profiles

FORMATS = {
    "onnx": "ONNX",
    "openvino_ir": "OpenVINO IR",
    "tflite": "TFLite",
    "mlprogram": "Core ML package",
    "aimodel": "Core AI asset",
    "tvm": "machine code",
}


def test_every_target_has_one_row_with_its_formats() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
    table = text.partition("| device | targets | converts to |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:-1] for line in table.splitlines()[2:]]
    named = [name for row in rows for name in row[1].replace("`", "").replace(",", "").split()]
    assert sorted(named) == sorted(p.name for p in profiles.targets())
    for profile in profiles.targets():
        (row,) = (r for r in rows if f"`{profile.name}`" in r[1])
        assert [f for f in profile.formats if FORMATS[f] not in row[2]] == []
