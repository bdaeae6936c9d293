import pytest

from edgeinfer.convert.lower.onnxruntime.probe import OnnxRuntimeProbe, lacking, problems
from tests.convert.lower.running import model


@pytest.fixture(scope="module")
def probe() -> OnnxRuntimeProbe:
    return OnnxRuntimeProbe()


def test_all_nodes_without_kernel_are_listed_with_the_reason(probe: OnnxRuntimeProbe) -> None:
    whole = model("""g (float[2] x, double[2,1,4,4] d, float[2] w) =>
        (float[2] y, double[A,B,C,D] e, float[2] z) {
        [foo] a = com.acme.Foo(x)
        [relu] b = Relu(x)
        [pool] e = LpPool<kernel_shape = [2, 2]>(d)
        [typo] z = NoSuchOperator(w)
        [add] y = Add(b, x)
    }""")
    found = {p.node: p for p in problems(whole, probe)}
    assert found.keys() == {"foo", "pool", "typo"}
    assert (found["foo"].op, found["foo"].reason) == ("com.acme::Foo", "unsupported_op")
    assert "'com.acme' is a custom one" in found["foo"].detail
    assert found["pool"].reason == "unsupported_dtype"
    assert "has no CPU kernel for (double)" in found["pool"].detail
    assert found["typo"].reason == "unsupported_op"


def test_nodes_in_branches_are_asked_about(probe: OnnxRuntimeProbe) -> None:
    whole = model("""g (float[2] x, bool c) => (float[2] y) { y = If(c) <
        then_branch = t () => (float[2] u) { [inner] u = NoSuchOperator(x) },
        else_branch = e () => (float[2] v) { v = Identity(x) }> }""")
    assert [n.name for n in lacking(whole, probe)] == ["inner"]


def test_equal_nodes_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # What earlier tests of this process asked is known.
    monkeypatch.setattr("edgeinfer.convert.lower.onnxruntime.probe._KNOWN", {})
    own = OnnxRuntimeProbe()
    asked: list[bytes] = []
    own._ask = lambda data: asked.append(data) or ""  # type: ignore[func-returns-value,method-assign]
    whole = model("g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) y = Relu(b) }")
    assert problems(whole, own) == []
    assert len(asked) == 1


def test_a_bug_of_ours_is_not_taken_for_an_answer() -> None:
    own = OnnxRuntimeProbe()
    with pytest.raises(TypeError):
        own._ask(12)  # type: ignore[arg-type]
