import random

from edgeinfer.runtime.llm.cost import StepCost


def learned(true: dict[int, float], slope: float = 0.0, rounds: int = 60) -> StepCost:
    rng = random.Random(0)
    cost = StepCost()
    for _ in range(rounds):
        for tokens, seconds in true.items():
            reach = rng.randrange(1, 2000) * tokens if slope else 0
            noise = rng.uniform(0.95, 1.05)
            cost.measured(tokens, reach, (seconds + slope * reach) * noise)
    return cost


def test_nothing_is_known_at_first() -> None:
    assert StepCost().seconds(5) == 0
    assert not StepCost().knows(1)


def test_measured_counts_are_known_and_others_lie_between() -> None:
    cost = learned({1: 1.0, 2: 1.1, 8: 2.4, 64: 10.0})
    assert abs(cost.seconds(2) - 1.1) < 0.1
    assert 1.1 < cost.seconds(5) < 2.4
    assert 2.4 < cost.seconds(30) < 10
    # Beyond what was measured it is not said to be cheap.
    assert abs(cost.seconds(128) - 20) < 1.5
    assert cost.knows(8)
    assert not cost.knows(9)


def test_first_step_of_a_size_makes_things_ready() -> None:
    cost = StepCost()
    cost.measured(2, 0, 30.0)
    assert not cost.knows(2)
    cost.measured(2, 0, 1.0)
    assert cost.knows(2)
    assert cost.seconds(2) == 1.0


def test_one_interrupted_step_changes_little_and_a_new_pace_is_learned() -> None:
    cost = learned({1: 1.0})
    cost.measured(1, 0, 100.0)
    assert cost.seconds(1) < 1.1
    for _ in range(40):
        cost.measured(1, 0, 5.0)
    assert abs(cost.seconds(1) - 5) < 0.5


def test_long_contexts_cost_more() -> None:
    cost = learned({1: 1.0, 8: 2.0}, slope=1e-3, rounds=2000)
    assert abs(cost.seconds(1, 1500) - 2.5) < 0.5
    assert cost.seconds(8, 12_000) > 2 * cost.seconds(8, 100)


def test_chunk_fits_the_limit() -> None:
    cost = learned({n: 1.0 + 0.1 * n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256)})
    most = cost.most(2, 0, 500, 3.0, 0)
    assert cost.seconds(2 + most) <= 3.0 < cost.seconds(2 + most + 17)
    assert cost.most(2, 0, 3, 100.0, 0) == 3
    assert cost.most(2, 0, 500, 0.1, 0) == 0
