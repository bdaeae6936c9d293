"""TensorRT by its own package, with a stand-in for it and for the driver; neither was run."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgeinfer.backends.base import Artifact, BuildsAhead, LoadOptions, ShapeRange
from edgeinfer.backends.engine_store import RECORD
from edgeinfer.backends.tensorrt import backend as module
from edgeinfer.backends.tensorrt.backend import ENGINE, TensorRTBackend
from edgeinfer.backends.tensorrt.build import Phases
from edgeinfer.backends.tensorrt.run import EngineExecutable
from edgeinfer.backends.testing import Subject
from edgeinfer.backends.testing.kit import checks
from edgeinfer.errors import ClosedError, LoadError, NotAvailableError, RunError
from edgeinfer.types import TensorSpec
from tests.backends.cuda_standin import Driver
from tests.backends.cuda_standin import driver as driver
from tests.backends.tensorrt.api import MEMBERS, State, put
from tests.backends.tensorrt.api import module as tensorrt_module
from tests.backends.tensorrt.api import trt as trt

GPU = LoadOptions(device="gpu")
SHAPES: dict[str, ShapeRange] = {"x": ((1, 3), (2, 3), (4, 3))}
OPEN = dataclasses.replace(GPU, shapes=SHAPES)
VERSIONS = [*MEMBERS]


@pytest.fixture
def backend() -> TensorRTBackend:
    return TensorRTBackend()


def write(folder: Path, text: str, *specs: TensorSpec, precision: str = "fp32") -> Artifact:
    """Write a graph; the first specs are its inputs, the last is its output."""
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> g {text}'), path)
    return Artifact("onnx", path, specs[:-1], specs[-1:], precision)


def fixed(folder: Path, precision: str = "fp32") -> Artifact:
    x, y = (TensorSpec(name, "float32", (2, 3)) for name in "xy")
    return write(
        folder, "(float[2,3] x) => (float[2,3] y) { y = Neg(x) }", x, y, precision=precision
    )


def opened(folder: Path) -> Artifact:
    x, y = (TensorSpec(name, "float32", ("n", 3)) for name in "xy")
    return write(folder, "(float[n,3] x) => (float[n,3] y) { y = Neg(x) }", x, y)


def options(**extra: str) -> LoadOptions:
    return dataclasses.replace(GPU, extra=extra)


class OnGpu(TensorRTBackend):
    """The backend as the kit asks it: on its only device, with sizes named for open ones."""

    def load(self, artifact: Artifact, options: LoadOptions) -> EngineExecutable:
        shapes: dict[str, ShapeRange] = {}
        for spec in artifact.inputs:
            low, usual, high = (
                tuple(d if isinstance(d, int) else size for d in spec.shape or ())
                for size in (0, 4, 64)
            )
            shapes[spec.name] = low, usual, high
        return super().load(artifact, dataclasses.replace(options, device="gpu", shapes=shapes))


@pytest.mark.parametrize("name", checks())
def test_conformance(name: str, tmp_path: Path, trt: State, backend: TensorRTBackend) -> None:
    asked = backend if name == "check_absent_devices_are_refused" else OnGpu()
    checks()[name](Subject(asked), tmp_path)


class TestTheStandIn:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_it_has_what_the_package_has_and_no_more(self, version: str) -> None:
        made = tensorrt_module(State(version, Driver()))
        for name, members in MEMBERS[version].items():
            if isinstance(members, list):
                assert [m.name for m in getattr(made, name)] == members
                continue
            if name == "functions":
                continue
            kind = getattr(made, name, None)
            if kind is None:
                # Seen through what others return.
                continue
            own = {m for m in vars(kind) if not m.startswith("_") and not m.isupper()}
            assert own <= set(members), name
            for member in own:
                wanted, found = members[member], vars(kind)[member]
                if wanted is None:
                    assert not callable(found)
                else:
                    got = [*inspect.signature(found).parameters][1:]
                    assert got == wanted[: len(got)], f"{name}.{member}"

    def test_all_that_is_called_is_recorded(self) -> None:
        assert set(MEMBERS) == {"8.6.1", "10.3.0", "11.4.0"}
        assert "progress_monitor" not in MEMBERS["8.6.1"]["IBuilderConfig"]


class TestBuild:
    @pytest.mark.parametrize("trt", VERSIONS, indirect=True)
    def test_every_version_builds_and_runs(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        assert isinstance(backend, BuildsAhead)
        assert backend.unbuilt(made, GPU) == "none was built yet"
        executable = backend.load(made, GPU)
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
        assert executable.notes[0].startswith(f"engine of TensorRT {trt.version}: ")
        assert backend.unbuilt(made, GPU) == ""
        (head,) = trt.built
        kind = "EXPLICIT_BATCH" if trt.version == "8.6.1" else "STRONGLY_TYPED"
        assert head["network"] == [kind]
        # Single precision is what it says, unless somebody allows less.
        assert head["flags"] == []
        backend.build(made, dataclasses.replace(GPU, precise=False))
        assert trt.built[1]["flags"] == ["TF32"]

    @pytest.mark.parametrize("trt", ["8.6.1"], indirect=True)
    @pytest.mark.parametrize(
        ("precision", "flags"),
        [("fp16+fp32", ["FP16"]), ("static_wi8_ai8+fp16", ["FP16", "INT8"]), ("fp8", ["FP8"])],
    )
    def test_without_strong_types_what_the_artifact_holds_is_allowed(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path, precision: str, flags: list[str]
    ) -> None:
        backend.build(fixed(tmp_path, precision), GPU)
        assert trt.built[0]["flags"] == flags

    @pytest.mark.parametrize("trt", ["8.6.1"], indirect=True)
    def test_a_type_that_an_old_version_does_not_know_is_refused(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        with pytest.raises(LoadError, match=r"TensorRT 8\.6\.1 does not know BF16"):
            backend.build(fixed(tmp_path, "bf16+fp32"), GPU)

    def test_options_reach_the_builder_and_are_part_of_the_key(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        backend.build(made, GPU)
        wanted = options(workspace_mb="64", optimization_level="5")
        assert backend.unbuilt(made, wanted) == "none was built with these options and shapes"
        backend.build(made, wanted)
        assert trt.pools == {"WORKSPACE": 64 << 20}
        assert [head["level"] for head in trt.built] == [3, 5]
        backend.build(made, dataclasses.replace(GPU, optimize=False))
        assert trt.built[2]["level"] == 0

    def test_every_wrong_option_is_listed(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        wrong = options(workspace="64", dla_core="-1", optimization_level="6")
        with pytest.raises(LoadError) as raised:
            backend.build(fixed(tmp_path), wrong)
        for part in (
            "there is no option 'workspace'",
            "dla_core=-1: expected a number from 0 to 15",
            "optimization_level=6: expected a number from 0 to 5",
            "options are workspace_mb, dla_core, gpu_fallback, optimization_level",
        ):
            assert part in str(raised.value)
        assert trt.built == []

    def test_times_of_kernels_are_kept_between_builds(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        folder = backend.build(made, GPU)
        backend.build(made, options(workspace_mb="64"))
        assert trt.timings == [b"", b"tactic;"]
        assert not [*folder.glob("*.timing")]
        trt.is_foreign = True
        backend.build(made, options(workspace_mb="32"))
        # Those of another device are left out, not believed.
        assert trt.timings[2] == b""

    def test_every_node_that_cannot_be_read_is_listed(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        model = onnx.load(made.path)
        for i in range(10):
            model.graph.node.add(op_type="Odd", name=f"odd{i}", output=[f"o{i}"], domain="acme")
        onnx.save(model, made.path)
        with pytest.raises(LoadError) as raised:
            backend.build(made, GPU)
        assert "Odd 'odd0': no importer; Odd 'odd1'" in str(raised.value)
        assert "and 2 more" in str(raised.value)
        assert backend.unbuilt(made, GPU) == "none was built yet"

    @pytest.mark.parametrize("trt", ["8.6.1"], indirect=True)
    def test_an_old_parser_knows_the_number_of_a_node(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        model = onnx.load(made.path)
        model.graph.node.add(op_type="Odd", output=["o"], domain="acme")
        onnx.save(model, made.path)
        with pytest.raises(LoadError, match="node 1: no importer"):
            backend.build(made, GPU)

    def test_what_tensorrt_says_of_a_refusal_is_told(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.refuses = "could not find any implementation for node y"
        with pytest.raises(LoadError, match=r"TensorRT 10\.3\.0 refuses .*any implementation"):
            backend.load(fixed(tmp_path), GPU)
        left = [p for p in (tmp_path / "cache" / "engines").rglob("*") if p.name == ENGINE]
        assert left == []

    def test_values_that_are_sizes_are_refused(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.sizes = {"x"}
        with pytest.raises(LoadError, match="values of 'x' are sizes of other tensors"):
            backend.build(fixed(tmp_path), GPU)


class TestProgress:
    def test_it_grows_to_the_end(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        told: list[tuple[str, float | None]] = []
        backend.build(fixed(tmp_path), GPU, lambda *state: told.append(state))
        assert told == [
            ("Building engine", 0.25),
            ("Building engine", 0.5),
            ("Building engine", 0.5),
            ("Building engine", 1.0),
        ]

    @pytest.mark.parametrize("trt", ["8.6.1"], indirect=True)
    def test_a_version_without_it_builds_as_well(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        told: list[object] = []
        backend.build(fixed(tmp_path), GPU, lambda *state: told.append(state))
        assert (len(trt.built), told) == (1, [])

    def test_an_interrupt_ends_the_build_and_leaves_nothing(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        made = fixed(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            backend.build(made, GPU, interrupt)
        assert trt.built == []
        assert backend.unbuilt(made, GPU) == "none was built yet"

    def test_phases_that_are_not_known_are_no_error(self) -> None:
        phases = Phases()
        phases.step("late", 3)
        phases.finish("late")
        assert phases.state == ("", 0.0)


class TestDla:
    @pytest.mark.parametrize("trt", VERSIONS, indirect=True)
    def test_a_core_is_asked_for_when_building_and_when_loading(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.cores = 2
        executable = backend.load(fixed(tmp_path, "fp16+fp32"), options(dla_core="1"))
        (head,) = trt.built
        assert (head["device"], head["dla"]) == ("DLA", 1)
        # Before 11 a network with strong types could not be placed there.
        strong = trt.version == "11.4.0"
        assert (head["flags"], "STRONGLY_TYPED" in head["network"]) == (
            ([], True) if strong else (["FP16"], False)
        )
        assert len(executable.notes) == 1

    def test_layers_that_it_does_not_take_are_named_and_nothing_runs_elsewhere(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.cores, trt.not_on_dla = 1, {"Neg"}
        made = fixed(tmp_path, "fp16+fp32")
        with pytest.raises(
            LoadError, match=r"DLA 0 does not take 1 of 1 layers: y; gpu_fallback=1"
        ):
            backend.load(made, options(dla_core="0"))
        executable = backend.load(made, options(dla_core="0", gpu_fallback="1"))
        assert executable.notes[1] == "DLA 0 does not take 1 of 1 layers: y; they run on the GPU"
        assert "GPU_FALLBACK" in trt.built[0]["flags"]

    def test_what_it_cannot_run_is_refused_before_anything_is_built(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        wanted = dataclasses.replace(OPEN, extra={"dla_core": "0"})
        with pytest.raises(LoadError) as raised:
            backend.load(opened(tmp_path), wanted)
        assert "a DLA computes in fp16 and int8, the artifact is in fp32" in str(raised.value)
        assert "a DLA takes one shape; 'x' has several" in str(raised.value)

    def test_a_device_without_one_says_so(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        with pytest.raises(LoadError, match=r"TensorRT 10\.3\.0 has 0 DLA cores on this device"):
            backend.load(fixed(tmp_path, "fp16"), options(dla_core="0"))


class TestStore:
    def test_an_engine_of_another_version_is_built_anew_and_said_to_be(
        self,
        trt: State,
        backend: TensorRTBackend,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        made = fixed(tmp_path)
        backend.build(made, GPU)
        trt.version = "11.4.0"
        put(monkeypatch, trt)
        why = "it was built for TensorRT 10.3.0, this is 11.4.0"
        assert backend.unbuilt(made, GPU) == why
        backend.load(made, GPU)
        assert why in caplog.records[0].getMessage()

    def test_an_engine_that_is_refused_is_built_anew_once(
        self,
        trt: State,
        backend: TensorRTBackend,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        made = fixed(tmp_path)
        folder = backend.build(made, GPU)
        head = {**trt.built[0], "version": "10.2.9"}
        content = json.dumps(head).encode() + b"\n" + made.path.read_bytes()
        (folder / ENGINE).write_bytes(content)
        # Whole by its record, as one that an older library wrote is.
        record = json.loads((folder / RECORD).read_text())
        record["files"][ENGINE] = hashlib.sha256(content).hexdigest()
        (folder / RECORD).write_text(json.dumps(record))
        backend.load(made, GPU)
        assert "refused and built anew" in caplog.records[0].getMessage()
        assert "engine of TensorRT 10.2.9" in caplog.records[0].getMessage()
        assert len(trt.built) == 2

    def test_a_damaged_engine_is_never_opened(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        folder = backend.build(made, GPU)
        (folder / ENGINE).write_bytes(b"{}")
        assert backend.unbuilt(made, GPU) == "its files are damaged"
        backend.load(made, GPU)
        assert len(trt.built) == 2

    def test_an_engine_that_others_may_write_is_never_opened(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        folder = backend.build(made, GPU)
        folder.chmod(0o777)
        assert backend.unbuilt(made, GPU) != ""

    def test_an_engine_in_a_model_is_refused(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        model = onnx.load(made.path)
        model.graph.node[0].op_type, model.graph.node[0].domain = "EPContext", "com.microsoft"
        onnx.save(model, made.path)
        with pytest.raises(LoadError, match="holds an engine that somebody else built"):
            backend.build(made, GPU)

    def test_nothing_of_an_encrypted_bundle_is_written_to_the_disk(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = fixed(tmp_path)
        link = tmp_path / "link.onnx"
        with made.path.open("rb") as file:
            link.symlink_to(f"/proc/self/fd/{file.fileno()}")
            with pytest.raises(LoadError, match="the bundle is encrypted"):
                backend.load(dataclasses.replace(made, path=link), GPU)
        assert trt.built == []


class TestSizes:
    def test_open_sizes_need_shapes_and_become_a_profile(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = opened(tmp_path)
        with pytest.raises(LoadError, match=r"sizes of 'x' are open: give the smallest, usual"):
            backend.load(made, GPU)
        executable = backend.load(made, OPEN)
        assert trt.built[0]["shapes"] == {"x": [[1, 3], [2, 3], [4, 3]]}
        for rows in (4, 1, 4):
            x = np.full((rows, 3), rows, np.float32)
            np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
        with pytest.raises(RunError, match=r"from \[1, 3\] to \[4, 3\].*received \[5, 3\]"):
            executable.run({"x": np.ones((5, 3), np.float32)})
        with pytest.raises(RunError, match="edgeinfer build --shape"):
            executable.bind({"x": np.ones((9, 3), np.float32)}, {"y": np.ones((9, 3), np.float32)})
        assert (len(trt.built), trt.driver.launches) == (1, 0)

    def test_sizes_that_only_the_file_leaves_open_need_shapes_too(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        made = dataclasses.replace(opened(tmp_path), inputs=(), outputs=())
        with pytest.raises(LoadError, match=r"sizes of 'x' are open"):
            backend.load(made, GPU)

    def test_an_output_whose_size_depends_on_values(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        x, y = TensorSpec("x", "float32", (4,)), TensorSpec("y", "int64", (1, None))
        made = write(tmp_path, "(float[4] x) => (int64[1,n] y) { y = NonZero(x) }", x, y)
        executable = backend.load(made, GPU)
        for row in ([0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]):
            found = executable.run({"x": np.array(row, np.float32)})["y"]
            np.testing.assert_array_equal(found, [np.flatnonzero(row)])
        with pytest.raises(RunError, match="its size depends on values; use run"):
            executable.bind({"x": np.ones(4, np.float32)}, {"y": np.ones((1, 4), np.int64)})

    def test_a_tensor_on_the_host_is_not_copied_to_the_device(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.on_host = {"y"}
        executable = backend.load(fixed(tmp_path), GPU)
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
        assert trt.driver.calls.count("cuMemAlloc_v2") == 1


class TestGraphs:
    def test_fixed_sizes_are_recorded_once_and_replayed(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        executable = backend.load(fixed(tmp_path), GPU)
        for value in (1, 2, 3):
            x = np.full((2, 3), value, np.float32)
            np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
        assert trt.driver.calls.count("cuStreamBeginCapture_v2") == 1
        assert trt.driver.launches == 3

    def test_a_bound_call_replays_a_recording_of_its_own(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        executable = backend.load(opened(tmp_path), OPEN)
        pairs = [(np.ones((n, 3), np.float32), np.zeros((n, 3), np.float32)) for n in (1, 4)]
        bounds = [executable.bind({"x": x}, {"y": y}) for x, y in pairs]
        for number, (x, _) in enumerate(pairs):
            x[...] = number + 5
        for bound in bounds:
            bound()
        for x, y in pairs:
            np.testing.assert_array_equal(y, -x)
        assert trt.driver.launches == 2

    def test_what_cannot_be_recorded_runs_all_the_same(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        trt.unrecorded = True
        executable = backend.load(fixed(tmp_path), GPU)
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)
        bound = executable.bind({"x": x}, {"y": (y := np.zeros((2, 3), np.float32))})
        bound()
        np.testing.assert_array_equal(y, -x)
        assert trt.driver.launches == 0

    def test_a_bound_output_of_another_size_is_refused(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        executable = backend.load(opened(tmp_path), OPEN)
        held = len(trt.driver.memory)
        with pytest.raises(RunError, match=r"expected shape \[2, 3\] for these inputs"):
            executable.bind({"x": np.ones((2, 3), np.float32)}, {"y": np.ones((4, 3), np.float32)})
        assert len(trt.driver.memory) == held


class TestFailures:
    @pytest.mark.parametrize(
        "break_it",
        [
            lambda s: setattr(s, "failing", True),
            lambda s: setattr(s.driver, "failing", "cuMemAlloc_v2"),
        ],
    )
    def test_a_failed_run_is_one_error_and_the_next_works(
        self,
        trt: State,
        backend: TensorRTBackend,
        tmp_path: Path,
        break_it: Callable[[State], None],
    ) -> None:
        executable = backend.load(opened(tmp_path), OPEN)
        x = np.ones((2, 3), np.float32)
        break_it(trt)
        with pytest.raises(RunError, match=r"a kernel failed|reserve 24 bytes"):
            executable.run({"x": x})
        trt.failing, trt.driver.failing = False, ""
        np.testing.assert_array_equal(executable.run({"x": x})["y"], -x)

    def test_closing_gives_the_memory_back(
        self, trt: State, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        executable = backend.load(fixed(tmp_path), GPU)
        x = np.ones((2, 3), np.float32)
        bound = executable.bind({"x": x}, {"y": x.copy()})
        executable.run({"x": x})
        assert len(trt.driver.memory) == 4
        executable.close()
        executable.close()
        assert trt.driver.memory == {}
        for call in (bound, lambda: executable.run({"x": x}), lambda: executable.bind({}, {})):
            with pytest.raises(ClosedError):
                call()

    def test_threads_take_turns(self, trt: State, backend: TensorRTBackend, tmp_path: Path) -> None:
        executable = backend.load(opened(tmp_path), OPEN)
        wrong: list[int] = []

        def work(rows: int) -> None:
            x = np.full((rows, 3), rows, np.float32)
            found = [executable.run({"x": x})["y"] for _ in range(20)]
            wrong.extend(rows for y in found if not np.array_equal(y, -x))

        threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 3, 4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestProbe:
    def test_it_says_what_is_missing(
        self, trt: State, backend: TensorRTBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert (backend.probe().version, backend.probe().devices[0].name) == ("10.3.0", "Orin")
        monkeypatch.setattr(module, "cuda_devices", lambda: ())
        assert backend.probe().reason == "no NVIDIA device or driver is here"
        made = tensorrt_module(State("8.6.1", trt.driver))
        made.__version__ = "8.4.1"
        monkeypatch.setattr(module, "import_tensorrt", lambda: made)
        assert backend.probe().reason == "TensorRT 8.4.1 is too old: 8.6 or newer"

        def broken() -> None:
            raise ImportError("libnvinfer.so.10: cannot open shared object file")

        monkeypatch.setattr(module, "import_tensorrt", broken)
        assert "cannot be imported: libnvinfer.so.10" in backend.probe().reason

    def test_without_the_package_loading_says_so(
        self, backend: TensorRTBackend, tmp_path: Path
    ) -> None:
        if backend.probe().version is not None:
            pytest.skip("TensorRT is here")
        with pytest.raises(NotAvailableError, match="tensorrt not installed; JetPack brings it"):
            backend.load(fixed(tmp_path), GPU)
