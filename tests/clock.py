"""A time that tests pass by themselves, so that what else the machine does plays no part."""

import time as real


class Clock:
    """Stands for the module ``time`` where code measures: only sleeping and working pass it.

    Looking at it takes a little time as well, so that nothing takes none.
    """

    TICK_S = 1e-7

    def __init__(self) -> None:
        self.now = self.busy = 0.0

    def perf_counter(self) -> float:
        self.now += self.TICK_S
        return self.now

    monotonic = perf_counter

    def process_time(self) -> float:
        return self.busy

    def time(self) -> float:
        return real.time()

    def sleep(self, seconds: float) -> None:
        """Pass time in which the processor rests."""
        self.now += seconds

    def work(self, seconds: float) -> None:
        """Pass time in which the processor works."""
        self.now += seconds
        self.busy += seconds


MEASURING = ("edgeinfer.runtime.bench.time", "edgeinfer.runtime.choice.time")
"""Where the product looks at a clock to compare engines."""
