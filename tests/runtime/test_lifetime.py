from edgeinfer.runtime.lifetime import Lifetime


def test_freed_at_once_and_once_when_nothing_runs() -> None:
    freed: list[int] = []
    life = Lifetime(lambda: freed.append(1))
    life.close()
    life.close()
    life.release()
    assert life.closed
    assert freed == [1]


def test_freed_by_the_last_run_that_leaves() -> None:
    freed: list[int] = []
    life = Lifetime(lambda: freed.append(1))
    life.running.append(None)
    life.running.append(None)
    life.close()
    life.running.pop()
    life.release()
    assert freed == []
    life.running.pop()
    life.release()
    assert freed == [1]
