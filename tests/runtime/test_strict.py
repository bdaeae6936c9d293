"""An operator off the accelerator is an error that names it, or a warning where that is allowed."""

import json
from typing import Any

import pytest

import edgeinfer
from edgeinfer.backends.base import Device
from edgeinfer.backends.operators import Elsewhere, Operator, OperatorProfile, Placement
from edgeinfer.errors import LoadError, NotAvailableError

pytestmark = pytest.mark.usefixtures("clock")

GPU = (Device("gpu", "fake gpu"),)
LEFT = Placement(
    "the GPU",
    3,
    (Elsewhere("top", "TopK", "CPU", "the GPU has no kernel for it"),),
    "a fake list",
)
WHOLE = Placement("the GPU", 3, (), "a fake list")


def test_it_is_named_with_its_unit_and_the_reason(fakes: Any, make_bundle: Any) -> None:
    fakes.add("gpu", devices=GPU, placed=LEFT)
    cpu = fakes.add("cpu")
    path = make_bundle(("gpu", "cpu"))
    for _ in range(2):
        with pytest.raises(LoadError) as caught:
            edgeinfer.load(path)
        assert "1 of 3 operators do not run on the GPU" in str(caught.value)
        assert "TopK 'top' on CPU (the GPU has no kernel for it)" in str(caught.value)
        assert "allow_fallback=True" in str(caught.value)
    assert fakes["gpu"].open == cpu.open == []


def test_with_no_other_engine_it_is_named_too(fakes: Any, make_bundle: Any) -> None:
    fakes.add("gpu", devices=GPU, placed=LEFT)
    with pytest.raises(NotAvailableError, match=r"TopK 'top' on CPU \(the GPU has no kernel"):
        edgeinfer.load(make_bundle(("gpu",)))


@pytest.mark.parametrize("how", [{"allow_fallback": True}, {"strict": False}])
def test_allowed_it_is_a_warning(
    fakes: Any, make_bundle: Any, how: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = fakes.add("gpu", devices=GPU, placed=LEFT)
    fakes.add("cpu", delay_s=0.01)
    path = make_bundle(("gpu", "cpu"))
    with pytest.raises(LoadError):
        edgeinfer.load(path)
    for _ in range(2):
        caplog.clear()
        with edgeinfer.load(path, **how) as session:
            report = session.report()
            assert gpu.open[0].options.fallback is True
        assert report.device == "gpu"
        assert report.placement == LEFT
        assert any("TopK 'top' on CPU" in note for note in report.notes)
        assert any("TopK 'top' on CPU" in r.getMessage() for r in caplog.records)
    with pytest.raises(LoadError):
        edgeinfer.load(path)


def test_one_that_takes_all_is_loaded_in_silence(fakes: Any, make_bundle: Any) -> None:
    gpu = fakes.add("gpu", devices=GPU, placed=WHOLE)
    with edgeinfer.load(make_bundle(("gpu",))) as session:
        report = session.report()
        assert gpu.open[0].options.fallback is False
    assert report.notes == ()
    assert report.placement == WHOLE
    assert "all 3 operators run on the GPU, by a fake list" in str(report)
    assert json.loads(json.dumps(report.to_json()))["placement"]["unit"] == "the GPU"


def test_another_accelerator_that_takes_all_is_chosen(fakes: Any, make_bundle: Any) -> None:
    fakes.add("partly", devices=GPU, placed=LEFT)
    fakes.add("wholly", devices=GPU, placed=WHOLE, delay_s=0.005)
    with edgeinfer.load(make_bundle(("partly", "wholly"))) as session:
        report = session.report()
    assert report.backend == "wholly"
    assert any("TopK 'top'" in r.reason for r in report.rejected)


def test_on_the_cpu_there_is_nowhere_else(fakes: Any, make_bundle: Any) -> None:
    fakes.add("cpu", placed=LEFT)
    with edgeinfer.load(make_bundle(("cpu",))) as session:
        assert session.report().notes == ()


def test_many_operators_are_counted_and_a_few_named() -> None:
    left = tuple(Elsewhere("", "TopK", "CPU", "no kernel") for _ in range(9))
    text = str(Placement("CUDA", 20, left, "a list"))
    assert text.count("TopK on CPU") == 5
    assert text.endswith("and 4 more")


class TestOperators:
    PROFILE = OperatorProfile(
        "a fake clock",
        (
            Operator("conv", "Conv", "CPU", 60.0, "float32", "compute", ("conv", "relu")),
            Operator("move", "Reorder", "CPU", 20.0, "float32", "reorder"),
            Operator("turn", "Transpose", "CPU", 10.0, "float32", "transpose", ("turn",)),
        ),
        runs=20,
        whole_us=100.0,
        plain_us=95.0,
    )

    def test_are_in_the_report_where_asked_for(self, fakes: Any, make_bundle: Any) -> None:
        backend = fakes.add("cpu")
        asked: list[Any] = []

        def profile(artifact: Any, options: Any, feeds: Any, *, runs: int) -> OperatorProfile:
            asked.append((sorted(feeds), options.threads, runs))
            return self.PROFILE

        backend.profile = profile
        with edgeinfer.load(make_bundle(("cpu",)), threads=1) as session:
            assert session.report().operators is None
            report = session.report(ops=True)
        assert asked == [(["k", "x"], 1, 20)]
        assert report.operators == self.PROFILE
        lines = str(report).splitlines()
        assert any(
            "3 operators take 90.0 us of the 100.0 us (90%) of a run with a fake clock; 95.0 us "
            "without it; reorder 1 (20.0 us), transpose 1 (10.0 us)" in line
            for line in lines
        )
        assert any("60.0 us  66.7%  Conv on CPU float32: conv = relu" in line for line in lines)
        data = report.to_json()["operators"]["operators"]
        assert [op["us"] for op in data] == [60.0, 20.0, 10.0]

    def test_an_engine_that_cannot_say_says_so(self, fakes: Any, make_bundle: Any) -> None:
        fakes.add("cpu")
        with (
            edgeinfer.load(make_bundle(("cpu",))) as session,
            pytest.raises(NotAvailableError, match="'cpu' cannot say what operators cost"),
        ):
            session.report(ops=True)

    def test_that_overlap_are_told(self) -> None:
        from dataclasses import replace

        from edgeinfer.runtime.report import sum_line

        text = sum_line(replace(self.PROFILE, whole_us=50.0))
        assert "(180%)" in text
        assert "some ran side by side" in text
