"""The page's part on fewer bits: the verdict, precisions as read back, the drawing."""

from typing import Any

import pytest

from tests.convert.verify.test_plots import search
from tests.convert.verify.test_report import ATTACK, Page, report


def page(name: str = "net", **data: Any) -> Page:
    made = report()
    finding = {"level": "refused", "about": "samples", "text": f"4 samples {name}"}
    kept = search()["chosen"] | {"kept": [name]}
    made.quantization = {
        "recipe": "static_wi8_ai8",
        "calibrator": "mse",
        "data": {
            "level": "refused",
            "forced": True,
            "findings": [finding],
            "numbers": {"samples": 4, "distinct": 4},
            **data,
        },
        "search": {name: search(chosen=kept, rules={name: f"rule {name}"})},
        "variants": {
            name: {
                "precision": "static_wi8_ai8",
                "weighted_layers": {"uint8/int8": 53},
                "bytes": 1_000_000,
                "source_bytes": 4_000_000,
                "layers": [
                    {"name": f"read {name}", "op": "Conv", "precision": "int8", "weights": "int8"}
                ],
                "units": [
                    {"name": f"unit {name}", "op": "Conv", "kept": False, "sqnr_db": 38.64},
                    {"name": "last", "op": "MatMul", "kept": True, "sqnr_db": None},
                ],
            }
        },
    }
    return Page(made.to_html())


def test_forced_data_is_told_for_ever() -> None:
    text = " ".join(page().text)
    assert "calibration data: refused, used by --force" in text
    assert "samples: 4 samples net" in text


def test_good_data_is_no_alarm() -> None:
    text = " ".join(page(level="good", forced=False, findings=[]).text)
    assert "calibration data: good" in text
    assert "--force" not in text


def test_layers_are_told_as_they_were_read_back() -> None:
    text = " ".join(" ".join(page().text).split())
    assert "53 layers uint8/int8" in text
    assert "4.0 MB became 1.0 MB" in text


def test_each_layer_has_its_precision_and_its_error() -> None:
    text = " ".join(" ".join(page().text).split())
    assert "1 layers with weights, as read back" in text
    assert "read net Conv int8 int8" in text
    assert "Signal to error behind each of 2 layers" in text
    assert "unit net Conv 38.6" in text
    assert "last MatMul exact out of 8 bits" in text


def test_the_drawing_has_a_circle_for_each_candidate_and_says_what_it_is() -> None:
    found = page()
    circles = [attrs for tag, attrs in found.tags if tag == "circle"]
    assert [c["class"] for c in circles] == ["other", "front", "front", "float", "chosen"]
    text = " ".join(found.text)
    assert "float: 0.00% lost, 4 ms, 4.00 MB" in text
    assert "rule net" in text
    assert "Dashed: what may be lost, 1%." in text


@pytest.mark.parametrize("hostile", [ATTACK])
def test_names_from_files_cannot_get_out(hostile: str) -> None:
    found = page(hostile)
    assert not {"script", "img"} & {tag for tag, _ in found.tags}
    assert all(not name.startswith("on") for _, attrs in found.tags for name in attrs)


def test_without_integers_there_is_no_such_part() -> None:
    assert "Fewer bits" not in " ".join(Page(report().to_html()).text)
