"""The list of checks, and the two ways to run it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from edgeinfer.backends.base import Backend
from edgeinfer.backends.testing import binding, loading, running
from edgeinfer.backends.testing.models import CASES
from edgeinfer.backends.testing.subject import MakeArtifact, Subject, onnx_artifact
from edgeinfer.records import dataclass

if TYPE_CHECKING:
    import pytest

Check = Callable[[Subject, Path], None]
"""Takes the subject and an empty folder; raises when the subject fails."""

_WITHOUT_ENGINE = ("check_probe_is_consistent", "check_name_and_capabilities")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check found.

    Attributes:
        check: its name.
        status: ``known`` is a failure with a reason on file, ``fixed`` one that no longer fails.
        message: the fault, or the reason.
    """

    check: str
    status: Literal["passed", "failed", "known", "fixed", "skipped"]
    message: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing needs attention."""
        return self.status not in ("failed", "fixed")


def checks() -> dict[str, Check]:
    """Return every check by its name."""
    found: dict[str, Check] = {}
    for module in (loading, running, binding):
        found |= _checks_of(module)
    return found | {f"check_numbers_of_{name}": running.numbers_check(name) for name in CASES}


def run_checks(
    backend: Backend,
    make_artifact: MakeArtifact = onnx_artifact,
    known_failures: Mapping[str, str] | None = None,
) -> tuple[Outcome, ...]:
    """Run every check; without the engine, those that need none.

    Raises:
        ValueError: a known failure names no check, or gives no reason.
    """
    subject = Subject(backend, make_artifact, known_failures or {})
    _check_reasons(subject)
    absent = _absence(subject)
    return tuple(_outcome(subject, name, check, absent) for name, check in checks().items())


def conformance(subjects: Sequence[Subject]) -> pytest.MarkDecorator:
    """Parametrize a test over subjects and checks, as arguments ``subject`` and ``check``.

    Raises:
        ValueError: a known failure names no check, or gives no reason.
    """
    import pytest

    params = []
    for subject in subjects:
        _check_reasons(subject)
        absent = _absence(subject)
        for name, check in checks().items():
            marks = []
            if absent and name not in _WITHOUT_ENGINE:
                marks.append(pytest.mark.skip(reason=absent))
            elif name in subject.known_failures:
                marks.append(pytest.mark.xfail(strict=True, reason=subject.known_failures[name]))
            params.append(pytest.param(subject, check, marks=marks, id=f"{subject}-{name}"))
    return pytest.mark.parametrize(("subject", "check"), params)


def _checks_of(module: ModuleType) -> dict[str, Check]:
    return {name: value for name, value in vars(module).items() if name.startswith("check_")}


def _check_reasons(subject: Subject) -> None:
    if unknown := sorted(set(subject.known_failures) - set(checks())):
        raise ValueError(f"{subject}: known failures name no check: {', '.join(unknown)}")
    if mute := sorted(name for name, why in subject.known_failures.items() if not why.strip()):
        raise ValueError(f"{subject}: known failures without a reason: {', '.join(mute)}")


def _absence(subject: Subject) -> str:
    """Return why the engine cannot run here; empty when it can, or when its probe is at fault."""
    try:
        probe: Any = subject.backend.probe()
        return "" if probe.available else str(probe.reason)
    except Exception:  # check_probe_is_consistent reports it
        return ""


def _outcome(subject: Subject, name: str, check: Check, absent: str) -> Outcome:
    if absent and name not in _WITHOUT_ENGINE:
        return Outcome(name, "skipped", absent)
    known = subject.known_failures.get(name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(subject, Path(folder))
        except Exception as error:  # whatever a stranger's backend raises is a finding
            if known is not None:
                return Outcome(name, "known", known)
            return Outcome(name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(name, "passed") if known is None else Outcome(name, "fixed", known)
