"""Sessions in a world of forks, signals, kills and memory that runs out: right, or an error."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import edgeinfer
from edgeinfer.errors import ClosedError
from edgeinfer.types import Array
from tests.e2e.hostile import SIZE, inputs, right, weights
from tests.forked import in_fork

ROOT = Path(__file__).parents[2]
EXAMPLES = inputs()

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", SIZE]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights(), "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
    targets = ("cpu", "rpi4", "ios")
    edgeinfer.export(folder / "model.onnx", folder / "model.edge", targets=targets)
    return folder / "model.edge"


@pytest.fixture(params=["onnxruntime", "openvino", "litert", "coreml-reference"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _same(found: Array, y: Array) -> bool:
    return found.shape == y.shape and bool(np.allclose(found, y, atol=1e-4))


WAYS: dict[str, Callable[[Path, str], Callable[[Array], Array]]] = {}


def _way(make: Callable[[Path, str], Callable[[Array], Array]]) -> None:
    WAYS[make.__name__] = make


@_way
def run(bundle: Path, backend: str) -> Callable[[Array], Array]:
    session = edgeinfer.load(bundle, backend=backend, measure=False)
    return lambda x: session.run({"x": x})["y"]


@_way
def bind(bundle: Path, backend: str) -> Callable[[Array], Array]:
    session = edgeinfer.load(bundle, backend=backend, measure=False)
    bounds = {n: session.bind({"x": np.zeros((n, SIZE), np.float32)}) for n in (1, 2, 3, 5)}

    def call(x: Array) -> Array:
        bound = bounds[len(x)]
        bound.inputs["x"][...] = x
        return bound()["y"].copy()

    return call


@_way
def run_async(bundle: Path, backend: str) -> Callable[[Array], Array]:
    session = edgeinfer.load(bundle, backend=backend, measure=False)
    return lambda x: session.run_async({"x": x}).result(60)["y"]


@_way
def isolated(bundle: Path, backend: str) -> Callable[[Array], Array]:
    session = edgeinfer.load(
        bundle, backend=backend, measure=False, isolate=True, on_crash="next", stats=True
    )
    return lambda x: session.run({"x": x})["y"]


@_way
def fleet(bundle: Path, backend: str) -> Callable[[Array], Array]:
    model = edgeinfer.Runtime(threads=1).add(
        *(bundle,), backend=backend, measure=False, batching=edgeinfer.Batching(size=4)
    )
    return lambda x: model.run({"x": x})["y"]


@_way
def fleet_submit(bundle: Path, backend: str) -> Callable[[Array], Array]:
    model = edgeinfer.Runtime(threads=1).add(bundle, backend=backend, measure=False)
    return lambda x: model.submit({"x": x}).result(60)["y"]


@pytest.mark.sample(each=("backend", "way"))
@pytest.mark.parametrize("way", WAYS)
def test_a_forked_process_has_its_own_answers(bundle: Path, backend: str, way: str) -> None:
    call = WAYS[way](bundle, backend)
    assert all(_same(call(x), y) for x, y in EXAMPLES)

    def forked() -> list[bool]:
        return [_same(call(x), y) for x, y in EXAMPLES for _ in range(2)]

    assert all(in_fork(forked))
    assert all(_same(call(x), y) for x, y in EXAMPLES)


def test_the_report_of_a_forked_process_says_where_the_engine_runs(bundle: Path) -> None:
    session = edgeinfer.load(bundle, backend="openvino", measure=False)
    report = in_fork(session.report)
    assert report.isolated
    assert not session.report().isolated
    expected = "openvino was used before this process was forked: it runs in one of its own here"
    assert expected in report.notes


def test_a_session_is_closed_in_each_process_by_itself(bundle: Path, backend: str) -> None:
    session = edgeinfer.load(bundle, backend=backend, measure=False)
    x, y = EXAMPLES[0]

    def closed() -> str:
        session.close()
        try:
            session.run({"x": x})
        except ClosedError as error:
            return type(error).__name__
        return ""

    assert in_fork(closed) == "ClosedError"
    assert _same(session.run({"x": x})["y"], y)


def test_a_bundle_without_a_cache_is_unpacked_by_each_process(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EDGEINFER_CACHE", str(tmp_path / "file"))
    session = edgeinfer.load(bundle, backend="onnxruntime", measure=False)
    x, y = EXAMPLES[0]
    assert _same(session.run({"x": x})["y"], y)

    def late() -> bool:
        return _same(session.run({"x": x})["y"], y)

    assert in_fork(late)
    assert _same(session.run({"x": x})["y"], y)


def _in_pool(number: int) -> bool:
    x, y = EXAMPLES[number % len(EXAMPLES)]
    return _same(_POOLED["session"].run({"x": x})["y"], y)


_POOLED: dict[str, edgeinfer.Session] = {}


def test_a_pool_of_forked_workers_is_right(bundle: Path, backend: str) -> None:
    _POOLED["session"] = edgeinfer.load(bundle, backend=backend, measure=False)
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert all(pool.map_async(_in_pool, range(20), chunksize=1).get(120))


def test_a_session_cannot_be_sent_to_a_spawned_process(bundle: Path) -> None:
    session = edgeinfer.load(bundle, backend="onnxruntime", measure=False)
    spawned = multiprocessing.get_context("spawn").Process(target=print, args=(session,))
    with pytest.raises(TypeError, match="belongs to the process that loaded it: load it there"):
        spawned.start()


OPTIONS = [
    {"backend": "onnxruntime", "isolate": True, "threads": 1},
    {"backend": "openvino", "threads": 1},
    {"backend": "litert", "threads": 2},
]


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: o["backend"])
def test_workers_of_gunicorn_answer_what_they_were_asked(
    bundle: Path, options: dict[str, object]
) -> None:
    pytest.importorskip("gunicorn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "--timeout", "100"]
    command += ["-b", f"127.0.0.1:{port}", "tests.e2e.worker:app"]
    told = {"BUNDLE": str(bundle), "OPTIONS": json.dumps({"measure": False, **options})}
    server = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **told},
        stderr=subprocess.PIPE,
        process_group=0,
    )
    try:
        wrong, workers = _ask(f"http://127.0.0.1:{port}/", server)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.communicate()
    assert wrong == []
    assert workers


def _ask(url: str, server: subprocess.Popen[bytes]) -> tuple[list[int], set[int]]:
    """Ask from several threads; return the seeds of wrong answers, and who answered."""
    until = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(url + "?0", timeout=120).read()
            break
        except urllib.error.URLError:
            assert server.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
    wrong: list[int] = []
    workers: set[int] = set()

    def client(first: int) -> None:
        for seed in range(first, first + 15):
            answer = urllib.request.urlopen(f"{url}?{seed}", timeout=120).read()
            number, found = json.loads(answer)
            x = np.random.default_rng(seed).standard_normal((1, SIZE)).astype(np.float32)
            workers.add(number)
            if not _same(np.asarray([found]), right(x)):
                wrong.append(seed)

    clients = [threading.Thread(target=client, args=(100 * k,)) for k in range(3)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    return wrong, workers


SHORT = """
import resource, sys
import numpy as np
import edgeinfer
from edgeinfer.errors import RunError
from tests.e2e.hostile import SIZE, inputs

session = edgeinfer.load(sys.argv[1], backend=sys.argv[2], threads=1, measure=False)
x, y = inputs()[0]
assert np.allclose(session.run({"x": x})["y"], y, atol=1e-4)
large = np.zeros((400_000, SIZE), np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
failed = 0
for _ in range(2):
    try:
        session.run({"x": large})
    except RunError:
        failed += 1
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
right = True
for x, y in inputs():
    answer = session.run({"x": x})["y"]
    right &= answer.shape == y.shape and np.allclose(answer, y, atol=1e-4)
print(failed, right, session.verify().passed)
"""


@pytest.mark.sample(2)
def test_answers_are_right_after_runs_for_which_memory_was_short(
    bundle: Path, backend: str
) -> None:
    command = [sys.executable, "-c", SHORT, str(bundle), backend]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["2", "True", "True"], done.stderr[-2000:]


KILLED = """
import sys, time
import edgeinfer
session = edgeinfer.load(sys.argv[1], backend="onnxruntime", measure=False, isolate=True)
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_process_leaves_goes_with_the_next_load(
    bundle: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "file").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    told = {"TMPDIR": str(temporary), "EDGEINFER_CACHE": str(tmp_path / "file")}
    command = [sys.executable, "-c", KILLED, str(bundle)]
    environment = {**os.environ, **told}
    with subprocess.Popen(
        [*command, "600"], cwd=ROOT, env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(60) == -number
    assert [*temporary.iterdir()]
    # Its engine's process ends by itself when nobody is there, and holds the folder until then.
    for _ in range(200):
        if not [*temporary.iterdir()]:
            return
        subprocess.run([*command, "0"], cwd=ROOT, env=environment, check=True, capture_output=True)
    pytest.fail(f"left: {[*temporary.iterdir()]}")


@pytest.fixture
def hostile(bundle: Path, tmp_path: Path) -> Callable[[int], None]:
    def live(events: int) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "tests.e2e.hostile", str(bundle), str(events), "1"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        faults = [line for line in done.stdout.splitlines() if line.startswith("fault")]
        assert faults == [], done.stderr[-2000:]
        told = json.loads(done.stdout.splitlines()[-1])
        assert told["events"] == events

    return live


def test_a_few_forks_signals_and_kills(hostile: Callable[[int], None]) -> None:
    hostile(12)


@pytest.mark.slow
@pytest.mark.timeout(0)  # what hangs is found by its own time: tests/patience.py
def test_a_thousand_forks_signals_and_kills(hostile: Callable[[int], None]) -> None:
    events = int(os.environ.get("EDGEINFER_TEST_EVENTS", "1000"))
    hostile(events)
