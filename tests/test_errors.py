"""What errors say where several things are wrong."""

import pickle

from edgeinfer.errors import Problem, UnsupportedError

DET = Problem("d", "Det", "unsupported_op", "no such operator")
PACKED = Problem("d", "edgeinfer.nhwc::Det", "unsupported_op", "takes none of it")


def test_each_node_is_told_with_the_target_that_refuses_it() -> None:
    error = UnsupportedError("ios, rpi5", [DET, PACKED], ["ios", "rpi5"])
    assert str(error).splitlines() == [
        "ios, rpi5 cannot express 1 node:",
        f"  ios: {DET}",
        f"  rpi5: {PACKED}",
    ]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.problems) == (str(error), [DET, PACKED])


def test_one_target_is_named_once() -> None:
    error = UnsupportedError("ios", [DET], ["ios"])
    assert str(error).splitlines() == ["target 'ios' cannot express 1 node:", f"  {DET}"]
