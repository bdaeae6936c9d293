"""``edgeinfer convert`` and ``check``: what is asked of the converter, and what is told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from edgeinfer.bundle.archive import Bundle
from edgeinfer.cli.convert import applied_budget
from edgeinfer.convert.pipeline import entry
from edgeinfer.convert.pipeline.entry import ExportResult
from edgeinfer.convert.verify import Change, EngineResult, OutputResult, Report, VariantResult
from edgeinfer.errors import OutputError, Problem, UnsupportedError, VerifyError
from edgeinfer.machine.host import MachineHost
from edgeinfer.metrics import Budget, OutputMetrics, budget_for
from edgeinfer.types import AudioInput


class Export:
    """Stands for the converter: remembers what it was asked, gives a made-up result."""

    def __init__(self, bundle: Path) -> None:
        self.asked: dict[str, Any] = {}
        self.bundle = bundle

    def __call__(self, model: Any, output: Any, **options: Any) -> ExportResult:
        self.asked = {"model": model, "output": output, **options}
        with Bundle.open(self.bundle) as opened:
            manifest = opened.manifest
        report = Report("colours", manifest.source, manifest.inputs, manifest.outputs)
        report.ops_before, report.ops_after = {"Conv": 3, "Relu": 2}, {"Conv": 3}
        report.changes = [
            Change("source", ("1 node had no name",)),
            Change("fold_constants", ("folded 2 nodes",)),
            Change("targets", ("tvm was left out: not installed",)),
        ]
        report.machine = MachineHost("Zen 4", "x86_64", "linux", 2)
        report.seconds = {"read the model": 0.5, "verify": 1.25}
        report.variants = [
            result("cpu-onnx-fp32", "onnxruntime", 1.23e-6, 231_000, {1: 20.0, 2: 12.3}),
            result("openvino-openvino_ir-fp32", "openvino", 0.0, 198_000, {0: 9.0}),
        ]
        return ExportResult(self.bundle, manifest, report)


def result(
    id: str, backend: str, error: float, size_bytes: int, latency: dict[int, float]
) -> VariantResult:
    output = OutputResult("scores", OutputMetrics(6, max_rel=error))
    engine = EngineResult(backend, "1.0", (output,), latency_ms=latency)
    skipped = EngineResult("reference", None, skipped="not installed")
    engines = (engine, skipped) if error else (engine,)
    return VariantResult(id, "fp32", budget_for("fp32"), engines, size_bytes, {"Conv": 3})


@pytest.fixture
def export(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Export:
    fake = Export(bundle)
    monkeypatch.setattr(entry, "export", fake)
    return fake


def test_a_note_of_several_outputs_and_variants_is_told_once(
    cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(model, None)
    metrics = OutputMetrics(6, max_rel=1e-6)
    outputs = tuple(OutputResult(name, metrics, note="only just") for name in ("a", "b"))
    for number, variant in enumerate(made.report.variants):
        engine = replace(variant.engines[0], outputs=outputs)
        made.report.variants[number] = replace(variant, engines=(engine,))
    monkeypatch.setattr(entry, "export", lambda *_, **__: made)
    told = [line for line in cli("convert", model, "-t", "cpu").out.splitlines() if "just" in line]
    assert told == [
        "note: cpu-onnx-fp32 on onnxruntime, openvino-openvino_ir-fp32 on openvino: "
        "'a', 'b' only just"
    ]


def test_what_is_told(cli: Any, model: Path, export: Export) -> None:
    told = cli("convert", model, "--target", "cpu")
    assert (told.code, told.err) == (0, "")
    path = export.bundle
    assert told.out == (
        f"{path}  {path.stat().st_size / 1000:.3g} kB\n"
        "\n"
        "variant                    precision    size  checked by   on     error  budget  "
        "verdict  median here\n"
        "cpu-onnx-fp32              fp32       231 kB  onnxruntime  cpu  1.2e-06   2e-03  "
        "pass         12.3 ms\n"
        "cpu-onnx-fp32              fp32       231 kB  reference    cpu        -       -  "
        "not run            -\n"
        "openvino-openvino_ir-fp32  fp32       198 kB  openvino     cpu    equal   2e-03  "
        "pass            9 ms\n"
        "\n"
        "times are medians on this machine: Zen 4 (x86_64, linux)\n"
        "5 operators, 3 after simplification; 0 test vectors; 1.8 s\n"
        "note: cpu-onnx-fp32 was not run on reference (cpu): not installed\n"
        "note: 1 node had no name\n"
        "note: tvm was left out: not installed\n"
        f"full report: edgeinfer inspect {path} --report report.html\n"
        f"run it here: edgeinfer run {path} IMAGE; time it: edgeinfer bench {path}\n"
        "maybe faster here: convert with --machine-code all, which takes longer\n"
    )


def test_what_is_asked(cli: Any, model: Path, export: Export, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[image]\nkind = "audio"\nsample_rate = 8000\n')
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    cli(
        *("convert", model, "-t", "cpu", "-t", "openvino", "--precision", "fp16"),
        *("--input-shape", "image=1..4,?,2,3", "--preprocessing", tmp_path / "p.toml"),
        *("--state", "h:hn", "--state", "a:b=c:d", "--image-input", "image", "--classifier"),
        *("--integers", "ids=0..30521", "--integers", "a=b=-2..-1"),
        *("--input-range", "image=-1:1", "--input-range", "a=b=-0.5:2e3"),
        *("--deployment", "iOS18", "--io-dtype", "int8", "--io-dtype", "a=b=uint8"),
        *("--labels", tmp_path / "labels.txt", "--data", "in.npz", "--calibration", "photos"),
        *("--calibrator", "minmax", "--max-drop", "2%", "--force"),
        *("--channels-last", "image", "--channels-first", "scores", "--signature", "main"),
        *("--random", "zero", "--machine-code", "model", "--regions-time", "20"),
        *(
            "--layers",
            "--unverified",
            "--time-limit",
            "90",
            "--records",
            "a.jsonl",
            "--records",
            "b.jsonl",
        ),
        *("--compress-weights", "--name", "pets", "-o", "out/", "--overwrite", "--quiet"),
        *("--keep", "kept", "--trust-source"),
    )
    assert export.asked == {
        "trust_source": True,
        "model": model,
        "output": "out/",
        "targets": ("cpu", "openvino"),
        "precision": "fp16",
        "also": (),
        "input_shapes": {"image": [(range(1, 5), None, 2, 3)]},
        "states": {"h": "hn", "a:b": "c:d"},
        "image_inputs": ("image",),
        "classifier": True,
        "deployment": "iOS18",
        "integers": {"ids": (0, 30521), "a=b": (-2, -1)},
        "input_ranges": {"image": (-1.0, 1.0), "a=b": (-0.5, 2000.0)},
        "io_dtypes": {"": "int8", "a=b": "uint8"},
        "description": None,
        "metric": None,
        "preprocessing": {"image": AudioInput(8000)},
        "labels": ("cat", "dog"),
        "data": "in.npz",
        "calibration": "photos",
        "adapters": {},
        "text_only": False,
        "block": 32,
        "calibrator": "minmax",
        "max_drop": 0.02,
        "force": True,
        "compress_weights": True,
        "machine_code": ("model",),
        "regions_time_s": 20.0,
        "keep": "kept",
        "layers": True,
        "unverified": True,
        "time_limit_s": 90.0,
        "records": ("a.jsonl", "b.jsonl"),
        "signature": "main",
        "random": "zero",
        "channels_last": ("image",),
        "channels_first": ("scores",),
        "name": "pets",
        "overwrite": True,
        "progress": None,
        "example_inputs": None,
        "dynamic_shapes": None,
    }


def test_a_measure_of_ones_own(cli: Any, model: Path, export: Export, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("limit = 3\ndef share(outputs, labels):\n    return 0.5\n")
    cli("convert", model, "-t", "cpu", "--metric", f"{tmp_path}/mine.py:share")
    assert export.asked["metric"]([], []) == 0.5
    done = cli("convert", model, "-t", "cpu", "--metric", f"{tmp_path}/mine.py:limit")
    assert (done.code, "expected a callable, found int" in done.err) == (2, True)
    done = cli("convert", model, "-t", "cpu", "--metric", f"{tmp_path}/mine.py:none")
    assert (done.code, "mine.py:none failed: AttributeError" in done.err) == (2, True)


def test_bad_data_and_what_a_search_leaves_open_are_told(
    cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*arguments: Any, **options: Any) -> ExportResult:
        result = export(*arguments, **options)
        result.report.quantization = {
            "data": {
                "level": "refused",
                "forced": True,
                "findings": [
                    {"level": "refused", "about": "samples", "text": "4 distinct samples"},
                    {"level": "note", "about": "balance", "text": "2 classes"},
                ],
            },
            "search": {
                "cpu (onnx)": {
                    "quality": "top1 0.9 (float 0.92)",
                    "holds": False,
                    "advice": "slower than float",
                    "on_device": True,
                }
            },
        }
        return result

    monkeypatch.setattr(entry, "export", made)
    told = cli("convert", model, "-t", "cpu").out
    assert "note: calibration data was REFUSED and used by --force" in told
    assert "note: calibration data: 4 distinct samples\n" in told
    assert "note: cpu (onnx): top1 0.9 (float 0.92)\n" in told
    assert "note: cpu (onnx): no mixture holds the budget\n" in told
    assert "note: cpu (onnx): slower than float\n" in told
    assert "2 classes" not in told


@pytest.mark.parametrize("keep", [(), ("--keep", "kept")])
def test_what_an_interrupt_leaves_is_told(
    keep: tuple[str, ...], cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> ExportResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(entry, "export", interrupted)
    done = cli("convert", model, "-t", "cpu", *keep)
    stays = " but the stages in kept" if keep else ""
    assert (done.code, done.err) == (130, f"edgeinfer: interrupted, nothing was written{stays}\n")


@pytest.mark.parametrize("given", ["ids", "ids=5", "ids=5..4", "=0..1", "ids=a..b"])
def test_bounds_that_are_none_are_a_usage_error(
    given: str, cli: Any, model: Path, export: Export
) -> None:
    done = cli("convert", model, "-t", "ios", "--integers", given)
    assert (done.code, export.asked) == (2, {})
    assert "INPUT=LOW..HIGH" in done.err


def test_a_share_that_is_none_is_a_usage_error(cli: Any, model: Path, export: Export) -> None:
    done = cli("convert", model, "-t", "cpu", "--max-drop", "much")
    assert (done.code, export.asked) == (2, {})
    assert "expected a share such as 1% or 0.01" in done.err


def test_an_element_type_is_given_once(cli: Any, model: Path, export: Export) -> None:
    done = cli("convert", model, "-t", "cpu", "--io-dtype", "x=int8", "--io-dtype", "x=uint8")
    assert (done.code, export.asked) == (2, {})
    assert "'x' has one already" in done.err


def test_defaults(cli: Any, model: Path, export: Export) -> None:
    cli("convert", model, "-t", "cpu")
    asked = export.asked
    assert (asked["output"], asked["name"], asked["precision"]) == (None, "colours", "")
    assert asked["overwrite"] is False


def test_a_callable_is_the_model(cli: Any, export: Export, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def make():\n    return 'module', (1,), {'x': {0: 'n'}}\n")
    assert cli("convert", f"{tmp_path}/net.py:make", "-t", "cpu").code == 0
    asked = export.asked
    assert (asked["model"], asked["name"], asked["example_inputs"]) == ("module", "net", (1,))


def test_json(cli: Any, model: Path, export: Export) -> None:
    data = json.loads(cli("convert", model, "-t", "cpu", "--json").out, parse_constant=pytest.fail)
    assert data["bundle"] == str(export.bundle)
    assert [v["id"] for v in data["variants"]] == ["cpu-onnx-fp32", "onnxruntime-onnx-fp32"]
    assert data["checks"][0]["outputs"]["scores"]["max_rel"] == 1.23e-6
    assert data["checks"][0]["outputs"]["scores"]["sqnr_db"] == "inf"
    assert data["changes"]["fold_constants"] == ["folded 2 nodes"]


def test_the_table_and_json_claim_the_same_of_what_ran_elsewhere(
    cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(model, None)
    first, second = made.report.variants
    instead = replace(first.engines[0], stands_in=True)
    made.report.variants[:] = [
        replace(first, engines=(instead,)),
        replace(second, is_of_target=False),
    ]
    monkeypatch.setattr(entry, "export", lambda *_, **__: made)
    told = cli("convert", model, "-t", "cpu").out
    rows = [line.partition("2e-03")[2].split() for line in told.splitlines()[3:5]]
    assert rows == [["numbers", "pass", "-"], ["pass", "on", "x86_64", "-"]]
    assert "made on Zen 4 (x86_64, linux): no time here is the target's\n" in told
    checks = json.loads(cli("convert", model, "-t", "cpu", "--json").out)["checks"]
    assert [c["verdict"] for c in checks] == ["numbers pass", "pass on x86_64"]
    assert [c["latency_ms"] for c in checks] == [{}, {}]


def test_what_was_not_timed_is_no_other_machines(
    cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = export(model, None)
    made.report.variants[:] = [
        replace(v, engines=tuple(replace(e, latency_ms={}) for e in v.engines))
        for v in made.report.variants
    ]
    monkeypatch.setattr(entry, "export", lambda *_, **__: made)
    told = cli("convert", model, "-t", "cpu").out
    assert "made on Zen 4 (x86_64, linux), nothing was timed\n" in told


def test_a_plain_artifact_is_told(
    cli: Any, model: Path, export: Export, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = (tmp_path / "m.onnx", tmp_path / "m.report.html")

    def made(*arguments: Any, **options: Any) -> ExportResult:
        return replace(export(*arguments, **options), path=files[0], files=files)

    monkeypatch.setattr(entry, "export", made)
    told = cli("convert", model, "-t", "cpu", "-o", files[0]).out
    assert told.startswith(f"{files[0]}  144 B\n")
    assert told.endswith("\nnext to it: m.report.html\n")
    data = json.loads(cli("convert", model, "-t", "cpu", "-o", files[0], "--json").out)
    assert (data["bundle"], data["files"]) == (None, [str(f) for f in files])


def test_quiet(cli: Any, model: Path, export: Export) -> None:
    told = cli("convert", model, "-t", "cpu", "-q")
    assert (told.code, told.out, told.err) == (0, "", "")
    assert export.asked["progress"] is None


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VerifyError("cpu-onnx-fp32: output 'y': too far off; first diverging node Add 'n'"), 1),
        (UnsupportedError("cpu", [Problem("n", "Foo", "unsupported_op", "unknown")]), 1),
        (OutputError("m.edge: cannot be written: No space left on device"), 3),
        (KeyboardInterrupt(), 130),
    ],
)
def test_failures(
    cli: Any, model: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(entry, "export", fail)
    result = cli("convert", model, "-t", "cpu")
    assert (result.code, result.out) == (code, "")
    assert str(error) in result.err


PROBLEM = Problem("n0", "com.acme::Foo", "unsupported_op", "unknown operator", "replace it")


def fake_check(monkeypatch: pytest.MonkeyPatch, **found: list[Problem]) -> None:
    answer = {key.replace("__", "-"): problems for key, problems in found.items()}
    monkeypatch.setattr(entry, "check", lambda *_, **__: answer)


def test_check_of_a_model_that_converts(cli: Any, model: Path) -> None:
    result = cli("check", model, "-t", "onnxruntime")
    assert (result.code, result.out) == (0, "onnxruntime-onnx: everything converts\n")


def test_check_lists_every_problem(cli: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_check(monkeypatch, openvino__openvino_ir=[PROBLEM], cpu__onnx=[])
    result = cli("check", model, "-t", "openvino", "-t", "cpu")
    assert result.code == 1
    assert result.out == (
        "openvino-openvino_ir: 1 node cannot be expressed\n"
        "operator       node  reason          detail            what helps\n"
        "com.acme::Foo  n0    unsupported_op  unknown operator  replace it\n"
        "cpu-onnx: everything converts\n"
    )
    data = json.loads(cli("check", model, "-t", "openvino", "-t", "cpu", "--json").out)
    assert data["convertible"] is False
    assert data["targets"]["openvino-openvino_ir"][0]["node"] == "n0"


def test_check_of_an_optional_format_is_no_failure(
    cli: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_check(monkeypatch, cpu__openvino_ir=[PROBLEM], cpu__onnx=[])
    result = cli("check", model, "-t", "cpu")
    assert result.code == 0
    assert result.out.startswith(
        "cpu-openvino_ir: 1 node cannot be expressed (optional, would be left out)\n"
    )


@pytest.mark.parametrize("command", ["check", "convert"])
def test_what_is_missing_hides_no_problem_of_another_target(
    command: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent() -> None:
        raise ModuleNotFoundError("No module named 'coreai'")

    monkeypatch.setattr("edgeinfer.convert.lower.coreai.target.import_coreai", absent)
    text = "g (string[N] a, string[N] b) => (string[N] c) {c = StringConcat(a, b)}"
    model = tmp_path / "strings.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), model)
    targets = ("-t", "macos27", "-t", "ios27", "-t", "rpi5")
    output = ("-o", tmp_path / "m.edge") if command == "convert" else ()
    result = cli(command, model, *targets, *output)
    assert result.code == 3
    told = [line for line in result.err.splitlines() if not line.startswith("stage ")]
    assert len(told) == 3
    assert "macos27" in told[0]
    assert "ios27" in told[0]
    assert told[0].count("pip install") == 1
    assert "rpi5" in told[1]
    assert told[2].startswith("  StringConcat 'StringConcat_0': unsupported_op: strings")
    assert not (tmp_path / "m.edge").exists()


def test_check_of_an_unknown_target(cli: Any, model: Path) -> None:
    result = cli("check", model, "-t", "cup")
    assert (result.code, result.out) == (2, "")
    assert "unknown target 'cup': did you mean 'cpu'?" in result.err


@pytest.mark.parametrize(
    ("metrics", "widened", "shown"),
    [
        (OutputMetrics(max_rel=1e-5, max_abs=1.0), None, "2e-03"),
        (OutputMetrics(max_rel=0.01, max_abs=1.0), 0.05, "5.0e-02 (widened)"),
        (OutputMetrics(max_rel=0.01, max_abs=1e-9), None, "1e-06 absolute"),
    ],
)
def test_the_budget_that_decided_is_shown(
    metrics: OutputMetrics, widened: float | None, shown: str
) -> None:
    plain = Budget(1e-6, 2e-3, 60.0, 40.0, 0.999)
    wide = None if widened is None else replace(plain, max_rel=widened)
    engine = EngineResult("e", "1", outputs=(OutputResult("y", metrics, widened=wide),))
    assert applied_budget(engine, plain) == shown
