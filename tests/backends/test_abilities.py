"""Optional abilities are found through what wraps an executable, on every Python."""

from typing import Any

from edgeinfer.backends.base import Apart, Hosted, Noting, Timed, able
from edgeinfer.runtime.states import Keeping


class Inner:
    notes = ("slow",)
    kept = ("h",)
    last_run_s = 0.5

    def make_state(self) -> None: ...

    def load_state(self, state: object, feeds: object) -> None: ...

    def run(self, feeds: object) -> None: ...


class Wrapping:
    """Hands on what it does not know, as the guard does."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Inner(), name)


def test_what_is_wrapped_counts() -> None:
    for thing in (Inner(), Wrapping()):
        assert able(thing, Noting)
        assert thing.notes == ("slow",)
        assert able(thing, Timed)
        assert thing.last_run_s == 0.5
        assert able(thing, Keeping)


def test_what_nobody_has_does_not() -> None:
    for thing in (Inner(), Wrapping(), object()):
        assert not able(thing, Hosted)
        assert not able(thing, Apart)
    assert not able(object(), Keeping)
