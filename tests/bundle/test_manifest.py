import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgeinfer.bundle.manifest import MAX_LISTED, EngineRequirement, Manifest
from edgeinfer.errors import BundleError

Edit = Callable[[dict[str, Any]], object]


def test_round_trip_through_text_is_the_identity(manifest: Manifest) -> None:
    text = json.dumps(manifest.to_json(), allow_nan=False)
    assert Manifest.from_json(json.loads(text)) == manifest


def test_files_lists_all_but_the_manifest(manifest: Manifest) -> None:
    assert sorted(manifest.files()) == [
        "report.json",
        "variants/cpu-onnx-fp32/model.onnx",
        "variants/cpu-onnx-fp32/model.onnx.data",
        "vectors/0.npz",
    ]


CASES: list[tuple[Edit, str]] = [
    (lambda d: d.pop("schema"), "schema: expected [major, minor] like [1, 5]"),
    (lambda d: d.update(schema=[True, 0]), "schema: expected [major, minor]"),
    (lambda d: d.update(schema=[1]), "schema: expected [major, minor]"),
    (lambda d: d.update(schema=[-1, 0]), "schema: expected [major, minor]"),
    (lambda d: d.update(schema=[2, 0]), "schema 2.0 is unknown, this reads 1.5; update edgeinfer"),
    (lambda d: d.update(schema=[0, 9]), "schema 0.9 is unknown, this reads 1.5; convert the model"),
    (lambda d: d.update(extra=1), "extra: unknown key"),
    (lambda d: d.update(outputs=[]), "outputs: expected at least one"),
    (lambda d: d.update(variants=[]), "variants: expected at least one"),
    (lambda d: d["variants"].append(d["variants"][0]), "variants[1].id: 'cpu-onnx-fp32' is given"),
    (lambda d: d["inputs"].append(d["inputs"][0]), "inputs[2].name: 'x' is given twice"),
    (lambda d: d["inputs"][0].update(dtype="float31"), "inputs[0].dtype: unknown type 'float31'"),
    (
        lambda d: d["inputs"][0].update(shape=[-1]),
        "inputs[0].shape[0]: expected a size",
    ),
    (
        lambda d: d["inputs"][0].update(shape=[""]),
        "inputs[0].shape[0]: expected a size",
    ),
    (lambda d: d["variants"][0].update(id="../x"), "variants[0].id: '../x' is not letters"),
    (lambda d: d["variants"][0].update(id="con"), "variants[0].id: 'con' is not letters"),
    (
        lambda d: d["variants"][0].update(precision="fp32\n0"),
        "variants[0].precision: 'fp32\\n0' holds a character that cannot be printed",
    ),
    (lambda d: d["variants"][0].update(files=[]), "variants[0].files: expected at least one"),
    (lambda d: d["variants"][0].update(engines=[]), "variants[0].engines: expected at least one"),
    (
        lambda d: d["variants"][0].update(latency_ms=-1),
        "variants[0].latency_ms: expected at least 0",
    ),
    (
        lambda d: d["variants"][0]["engines"][0].update(version=">=one"),
        "variants[0].engines[0].version: '>=one' is not a version specifier",
    ),
    (
        lambda d: d["variants"][0]["files"][0].update(path="../../etc/passwd"),
        "variants[0].files[0].path: '../../etc/passwd' has a '..' component",
    ),
    (
        lambda d: d["variants"][0]["files"][0].update(path="manifest.json"),
        "manifest.json cannot list itself",
    ),
    (
        lambda d: d["variants"][0]["files"][0].update(path="Manifest.JSON"),
        "files: 'Manifest.JSON' and 'manifest.json' are one file where case does not count",
    ),
    (
        lambda d: d["variants"][0]["files"][0].update(sha256="A" * 64),
        "variants[0].files[0].sha256: expected 64 lower-case hex digits",
    ),
    (
        lambda d: d["variants"][0]["files"][0].update(size_bytes=-5),
        "variants[0].files[0].size_bytes: expected at least 0",
    ),
    (
        lambda d: d["extra_files"].append({**d["extra_files"][0], "size_bytes": 1}),
        "extra_files[1]: 'report.json' is listed twice, with different contents",
    ),
    (
        lambda d: d["preprocessing"].update(z=d["preprocessing"]["x"]),
        "preprocessing['z']: no input has this name",
    ),
    (
        lambda d: d["preprocessing"]["x"].update(std=[0.0, 1.0, 1.0]),
        "preprocessing['x'].std: a divisor is 0",
    ),
    (
        lambda d: d["preprocessing"]["x"].update(mean=[0.0, 0.0]),
        "preprocessing['x'].mean: expected 3 values, received 2",
    ),
    (
        lambda d: d["preprocessing"]["x"].update(kind="video"),
        "preprocessing.x.kind: expected one of audio, constant, encoded, frames, image, noise, "
        "spectrogram, state, symbols, text, tokens, received 'video'",
    ),
    (lambda d: d["source"].update(sha256="0"), "source.sha256: expected 64 lower-case hex digits"),
]


@pytest.mark.parametrize(("edit", "message"), CASES, ids=[message for _, message in CASES])
def test_one_wrong_key_is_named(manifest: Manifest, edit: Edit, message: str) -> None:
    data = manifest.to_json()
    edit(data)
    with pytest.raises(BundleError) as caught:
        Manifest.from_json(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [None, [], "x", 1, True])
def test_another_document_is_refused(data: Any) -> None:
    with pytest.raises(BundleError, match="expected a JSON object"):
        Manifest.from_json(data)


def test_keys_of_a_newer_minor_are_ignored(manifest: Manifest) -> None:
    data = manifest.to_json()
    data.update(schema=[1, 7], invented=1)
    data["variants"][0]["invented"] = {}
    assert Manifest.from_json(data) == manifest


def test_the_list_of_problems_is_bounded(manifest: Manifest) -> None:
    data = manifest.to_json()
    data.update({f"key{i}": 1 for i in range(1000)})
    with pytest.raises(BundleError, match=f"and {1000 - MAX_LISTED} more"):
        Manifest.from_json(data)


def test_a_value_that_cannot_be_read_back_is_not_written(manifest: Manifest) -> None:
    infinite = replace(manifest.variants[0], accuracy={"y": {"sqnr_db": float("inf")}})
    with pytest.raises(BundleError, match=r"y\.sqnr_db: expected a finite number"):
        replace(manifest, variants=(infinite,)).to_json()
    wrong = replace(manifest.variants[0], engines=(EngineRequirement("onnxruntime", "new"),))
    with pytest.raises(BundleError, match="not a version specifier"):
        replace(manifest, variants=(wrong,)).to_json()


def test_any_mutation_is_read_or_refused_in_one_line(manifest: Manifest) -> None:
    rng = np.random.default_rng(0)
    original = manifest.to_json()
    refused = 0
    for _ in range(1500):
        data = copy.deepcopy(original)
        for _ in range(rng.integers(1, 4)):
            _mutate(data, rng)
        try:
            Manifest.from_json(data).to_json()
        except BundleError as e:
            refused += 1
            assert "\n" not in str(e)  # noqa: PT017
            assert len(str(e)) < 20_000  # noqa: PT017
    assert refused > 1000


def _mutate(data: Any, rng: np.random.Generator) -> None:
    """Walk to a random place and put something unexpected there."""
    junk: list[Any] = [None, True, -1, 2**70, 1e400, float("nan"), "", "../x", "\ud800", [], {}]
    junk += [[[]], {"kind": []}, {"": ""}, "x" * 10_000, [None] * 3]
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        child = data[key]
        if isinstance(child, (dict, list)) and child and rng.random() < 0.8:
            data = child
            continue
        if isinstance(data, dict) and rng.random() < 0.2:
            del data[key]
        elif isinstance(data, dict) and rng.random() < 0.2:
            data[str(rng.integers(100))] = child
        else:
            data[key] = copy.deepcopy(junk[rng.integers(len(junk))])
        return
