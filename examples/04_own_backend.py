"""An engine of your own: a backend that counts its runs, held to the same checks as ours.

A package offers it to every bundle with one entry point::

    [project.entry-points."edgeinfer.backends"]
    counting = "my_package:CountingBackend"
"""

from collections import Counter
from typing import ClassVar

from edgeinfer.backends.base import Artifact, Bound, Capabilities, Executable, LoadOptions, Probe
from edgeinfer.backends.onnxruntime import OnnxRuntimeBackend
from edgeinfer.backends.testing import run_checks
from edgeinfer.types import Array, Feeds


class CountingExecutable:
    """A loaded artifact: everything but the count is the inner engine's."""

    def __init__(self, inner: Executable, counts: Counter[str]) -> None:
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self._inner, self._counts = inner, counts

    def run(self, feeds: Feeds) -> dict[str, Array]:
        results = self._inner.run(feeds)
        self._counts["run"] += 1
        return results

    def bind(self, inputs: Feeds, outputs: Feeds) -> Bound:
        return self._inner.bind(inputs, outputs)

    def close(self) -> None:
        self._inner.close()


class CountingBackend:
    """The three questions that a backend answers."""

    name: ClassVar[str] = "counting"

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._inner = OnnxRuntimeBackend()

    def probe(self) -> Probe:
        """Is the engine here? Never raises; an absent engine says why and how to get it."""
        found = self._inner.probe()
        return Probe(self.name, found.version, found.devices, found.reason)

    def capabilities(self) -> Capabilities:
        """What can it do, on any machine?"""
        return self._inner.capabilities()

    def load(self, artifact: Artifact, options: LoadOptions) -> CountingExecutable:
        """Open an artifact, or raise LoadError or NotAvailableError."""
        return CountingExecutable(self._inner.load(artifact, options), self.counts)


def main() -> None:
    backend = CountingBackend()
    outcomes = run_checks(backend)
    for outcome in outcomes:
        if not outcome.ok:
            print(f"{outcome.check}: {outcome.status}: {outcome.message}")
    statuses = Counter(outcome.status for outcome in outcomes)
    print("conformance:", ", ".join(f"{count} {status}" for status, count in statuses.items()))
    print("runs were counted:", backend.counts["run"] > 100)


if __name__ == "__main__":
    main()
