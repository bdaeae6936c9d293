"""The conformance kit: the same checks for every backend, ours and anybody's.

In a test module of the package that brings the backend::

    from edgeinfer.backends.testing import Subject, conformance

    @conformance([Subject(AcmeBackend(), known_failures={"check_numbers_of_lstm": "no LSTM"})])
    def test_conformance(subject, check, tmp_path):
        check(subject, tmp_path)

Known failures are data: each becomes a strict xfail, so one that starts to pass fails the test run,
and a reason for a check that does not exist is an error. ``run_checks`` does the same without
pytest. The kit needs ``onnx``, which writes its models; docs/backends.md shows a whole plugin.
"""

from edgeinfer.backends.testing.kit import Check, Outcome, checks, conformance, run_checks
from edgeinfer.backends.testing.subject import Subject, describe, onnx_artifact

__all__ = [
    "Check",
    "Outcome",
    "Subject",
    "checks",
    "conformance",
    "describe",
    "onnx_artifact",
    "run_checks",
]
