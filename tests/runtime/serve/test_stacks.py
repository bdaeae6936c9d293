"""Requests that come together over connections whose heads are known: each gets its own numbers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from benchmarks.serving_path import Wire
from edgeinfer.runtime.batches import MOST_JOINED_BYTES
from edgeinfer.runtime.serve import lanes, stacks
from edgeinfer.runtime.serve.app import App
from edgeinfer.runtime.serve.inflight import LARGE_BYTES
from edgeinfer.runtime.serve.lanes import Lane
from edgeinfer.runtime.serve.options import RequestLimits
from edgeinfer.runtime.serve.protocol import protocol
from edgeinfer.runtime.serve.reading import feed
from edgeinfer.runtime.serve.stacks import Stack
from edgeinfer.types import Feeds
from tests.runtime.conftest import Fakes
from tests.runtime.serve.conftest import KEY, Server, Start

BOTH = {"binary_data_output": True}
ONE: Feeds = {"x": np.zeros((1, 3), np.float32), "k": np.zeros(1, np.int64)}


def text(value: float, rows: int = 1, key: str = "", name: str = "", **more: Any) -> bytes:
    """A request as a client sends it."""
    x, k = np.full((rows, 3), value, np.float32), np.full(rows, int(value))
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in (("x", "FP32", x), ("k", "INT64", k))
    ]
    said = json.dumps({"inputs": items, **({"parameters": BOTH} | more)}).encode()
    body = said + x.tobytes() + k.tobytes()
    lines = f"x-api-key: {key}\r\n" if key else ""
    lines += f"x-request-id: {name}\r\n" if name else ""
    return (
        f"POST /v2/models/double/infer HTTP/1.1\r\nhost: localhost\r\n{lines}"
        f"inference-header-content-length: {len(said)}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


class Line(Wire):
    """A connection that may end."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True


class Lines:
    """Connections to a server without sockets; what is fed in one turn of the loop comes together.

    Args:
        app: answers.
        count: Number of connections.
    """

    def __init__(self, app: App, count: int) -> None:
        config = uvicorn.Config(app, lifespan="off", ws="none", log_config=None)
        config.load()
        state, kind = ServerState(), protocol(10.0, app.fast)
        state.default_headers = [(b"date", b"now")]
        self.all: list[tuple[Any, Line]] = []
        for _ in range(count):
            made: Any = kind(config=config, server_state=state, app_state={})
            self.all.append((made, Line()))
            made.connection_made(self.all[-1][1])

    async def ask(self, texts: Sequence[bytes], left: Callable[[], None] | None = None) -> None:
        """Send one over each connection at once, and wait for the answers."""
        wanted = [wire.count + 1 for _, wire in self.all]
        for (made, _), each in zip(self.all, texts, strict=True):
            feed(made, each)
        if left is not None:
            left()
        for _ in range(2000):
            here = zip(self.all, wanted, strict=True)
            if all(wire.count >= n for (_, wire), n in here if not wire.is_closing()):
                return
            await asyncio.sleep(0.001)
        raise AssertionError("no answer")

    def answers(self) -> list[tuple[int, Any, bytes]]:
        """Status, JSON and raw bytes of the last answer of each."""
        found = []
        for _, wire in self.all:
            head, _, body = wire.last.partition(b"\r\n\r\n")
            size = re.search(rb"inference-header-content-length: (\d+)", head)
            end = int(size[1]) if size else len(body)
            found.append((int(head.split()[1]), json.loads(body[:end]), body[end:]))
        return found


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches that were made in one pass."""
    found: list[int] = []
    made = Stack._made

    def watched(self: Stack, bodies: Any, default: Any) -> Any:
        found.append(len(bodies))
        return made(self, bodies, default)

    monkeypatch.setattr(Stack, "_made", watched)
    return found


@pytest.fixture(autouse=True)
def no_run_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else this machine does."""
    monkeypatch.setattr(lanes, "LATE", 1 << 30)


def brief(server: Server, most: int = 4, largest: int = 99) -> App:
    """Let runs of the model go on the loop, whatever this machine takes for them."""
    model = server.hub.models["double"]
    assert model.tensors is not None
    measured = {**ONE, "more": np.zeros(largest)}
    model.lane = Lane(model.tensors, dict.fromkeys((1, most), 1e-5), measured)
    return server.app


def numbers(found: tuple[int, Any, bytes]) -> tuple[list[float], list[int]]:
    status, said, raw = found
    assert status == 200, said
    sizes = [o["parameters"]["binary_data_size"] for o in said["outputs"]]
    double, k = raw[: sizes[0]], raw[sizes[0] :]
    return np.frombuffer(double, np.float32).tolist(), np.frombuffer(k, np.int64).tolist()


@pytest.mark.parametrize("rows", [1, 2])
def test_each_gets_its_own_numbers(start: Start, stacked: list[int], rows: int) -> None:
    app = brief(start())

    async def ask() -> None:
        lines = Lines(app, 10)
        first = []
        for turn in range(4):
            values = [10.0 * turn + n for n in range(10)]
            await lines.ask([text(v, rows) for v in values])
            found = lines.answers()
            assert [numbers(f) for f in found] == [
                ([2 * v] * 3 * rows, [int(v)] * rows) for v in values
            ]
            first.append([wire.last for _, wire in lines.all])
        # Ids are each request's own; all else is said as it is of one request alone.
        ids = re.findall(rb"x-request-id: (\S+)", b"".join(b"".join(f) for f in first))
        assert len(set(ids)) == len(ids) == 40
        plain = [re.sub(rb"x-request-id: \S+", b"", f[0])[: -20 * rows] for f in first]
        assert plain == [plain[0]] * 4

    asyncio.run(ask())
    # The first two turns make the heads known.
    assert set(stacked) <= {4, 2}
    assert sum(stacked) in (20, 30)


@pytest.mark.parametrize(("most", "joined"), [(MOST_JOINED_BYTES, True), (1 << 17, False)])
def test_large_bodies_are_joined_unless_all_are_very_large(
    start: Start, stacked: list[int], monkeypatch: pytest.MonkeyPatch, most: int, joined: bool
) -> None:
    monkeypatch.setattr(stacks, "MOST_JOINED_BYTES", most)
    app, rows = brief(start(), largest=1 << 20), 3_270
    assert len(text(1.0, rows)) > LARGE_BYTES > 20 * rows

    async def ask() -> None:
        lines = Lines(app, 4)
        for turn in range(3):
            await lines.ask([text(float(turn + n), rows) for n in range(4)])
            found = [numbers(each) for each in lines.answers()]
            assert [(x[0], x[-1], len(k), k[-1]) for x, k in found] == [
                (2.0 * (turn + n), 2.0 * (turn + n), rows, turn + n) for n in range(4)
            ]

    asyncio.run(ask())
    assert bool(stacked) is joined


def test_the_only_client_is_answered_at_once(start: Start, stacked: list[int]) -> None:
    server = start()
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, 1)
        ((made, wire),) = lines.all
        said = []
        for turn in range(5):
            # No turn of the loop is needed.
            feed(made, text(float(turn)))
            assert wire.count == turn + 1
            assert numbers(lines.answers()[0]) == ([2.0 * turn] * 3, [turn])
            said.append(re.sub(rb"x-request-id: \S+", b"", wire.last)[:-20])
        # The way of the first one, which makes the head known, says the same.
        assert said == [said[0]] * 5
        # Two that come together are answered one after the other.
        feed(made, text(5.0) + text(6.0))
        assert wire.count == 7
        assert numbers(lines.answers()[0]) == ([12.0] * 3, [6])
        await lines.ask([text(9.0, rows=2)])
        assert numbers(lines.answers()[0]) == ([18.0] * 6, [9, 9])

    asyncio.run(ask())
    assert stacked == [1] * 6
    counters = server.hub.models["double"].metrics
    assert counters.statuses == {200: 8}
    assert server.hub.models["double"].waiting == server.hub.memory.used == 0


def test_requests_that_say_something_else_go_their_own_way(
    start: Start, stacked: list[int]
) -> None:
    app = brief(start())

    async def ask() -> None:
        lines = Lines(app, 6)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(6)])
        # The same head of HTTP and another JSON of the same length.
        one, other = text(3.0), text(3.0).replace(b'"x"', b'"z"')
        assert len(one) == len(other)
        texts = [one, other, text(4.0, 2), text(5.0, name="mine"), one, one]
        await lines.ask(texts)
        found = lines.answers()
        assert [f[0] for f in found] == [200, 400, 200, 200, 200, 200]
        assert numbers(found[2]) == ([8.0] * 6, [4, 4])
        assert numbers(found[3]) == ([10.0] * 3, [5])
        assert b"x-request-id: mine" in lines.all[3][1].last

    asyncio.run(ask())
    assert stacked


def test_one_bad_request_does_not_spoil_the_others(
    start: Start, fakes: Fakes, stacked: list[int]
) -> None:
    server = start()
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(4)])
        fakes["fake"].poison = 2.0
        await lines.ask([text(float(n)) for n in range(4)])
        found = lines.answers()
        assert [f[0] for f in found] == [200, 200, 500, 200]
        assert numbers(found[3]) == ([6.0] * 3, [3])

    asyncio.run(ask())
    metrics = server.hub.metrics.of("double")
    assert metrics.statuses == {200: 15, 500: 1}
    assert server.hub.models["double"].waiting == server.hub.memory.used == 0


def test_who_leaves_is_not_run(start: Start, stacked: list[int]) -> None:
    server = start()
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(4)])
        del stacked[:]
        count = lines.all[1][1].count

        def leave() -> None:
            lines.all[1][1].is_over = True
            lines.all[1][0].connection_lost(None)

        await lines.ask([text(float(n)) for n in range(4)], leave)
        assert lines.all[1][1].count == count

    asyncio.run(ask())
    assert stacked == [3]
    assert server.hub.metrics.of("double").statuses == {200: 15, 499: 1}


def test_a_model_that_goes_answers_nobody_twice(start: Start, stacked: list[int]) -> None:
    server = start()
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(4)])
        model = server.hub.models["double"]
        await lines.ask([text(1.0)] * 4, lambda: server.hub.loader.unload(model))
        assert [f[0] for f in lines.answers()] == [503] * 4
        await lines.ask([text(1.0)] * 4)
        assert [f[0] for f in lines.answers()] == [503] * 4
        server.hub.loader.load(model)
        brief(server)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(4)])
        assert [numbers(f)[1] for f in lines.answers()] == [[0], [1], [2], [3]]

    asyncio.run(ask())
    assert server.hub.models["double"].waiting == server.hub.memory.used == 0


@pytest.mark.parametrize("clients", [1, 4])
def test_an_engine_that_is_busy_is_waited_for(
    start: Start, stacked: list[int], monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    server = start()
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, clients)
        for _ in range(3):
            await lines.ask([text(float(n)) for n in range(clients)])
        monkeypatch.setattr(server.hub._runtime._scheduler, "_entered", lambda _: False)
        await lines.ask([text(float(n)) for n in range(clients)])
        assert [numbers(f)[1] for f in lines.answers()] == [[n] for n in range(clients)]

    asyncio.run(ask())
    assert server.hub.models["double"].waiting == server.hub.memory.used == 0


@pytest.mark.parametrize("clients", [1, 4])
def test_a_key_pays_for_each(start: Start, stacked: list[int], clients: int) -> None:
    server = start(keys=(f"{KEY} requests=14/h",))
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, clients)
        codes = []
        for _ in range(16 // clients):
            await lines.ask([text(1.0, key=KEY)] * clients)
            codes += [f[0] for f in lines.answers()]
        assert codes == [200] * 14 + [429] * 2

    asyncio.run(ask())
    assert (sum(stacked) >= 2) is (clients > 1)


def test_several_keys_have_turns_and_are_not_stacked(start: Start, stacked: list[int]) -> None:
    app = brief(start(keys=(KEY, "another-key-of-enough-letters")))

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(4):
            await lines.ask([text(1.0, key=KEY)] * 4)
        assert [f[0] for f in lines.answers()] == [200] * 4

    asyncio.run(ask())
    assert stacked == []


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": {"priority": 2, **BOTH}},
        {"parameters": {"timeout": 1e9, **BOTH}},
        {"outputs": [{"name": "double", "parameters": {"binary_data": False}}]},
        {"id": "seven"},
    ],
)
def test_what_is_not_plain_is_not_stacked(
    start: Start, stacked: list[int], more: dict[str, Any]
) -> None:
    app = brief(start())

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(4):
            await lines.ask([text(1.0, **more)] * 4)
        assert [f[0] for f in lines.answers()] == [200] * 4

    asyncio.run(ask())
    assert stacked == []


def test_outputs_that_are_named_come_alone(start: Start, stacked: list[int]) -> None:
    app = brief(start())
    wanted: dict[str, Any] = {"outputs": [{"name": "k'", "parameters": {"binary_data": True}}]}

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(4):
            await lines.ask([text(float(n), **wanted) for n in range(4)])
        found = lines.answers()
        assert [[o["name"] for o in said["outputs"]] for _, said, _ in found] == [["k'"]] * 4
        assert [np.frombuffer(raw, np.int64).tolist() for *_, raw in found] == [
            [0],
            [1],
            [2],
            [3],
        ]

    asyncio.run(ask())
    assert stacked


@pytest.mark.parametrize("limits", [{"queue": 2}, {"memory_bytes": 600}])
def test_no_more_wait_than_may(start: Start, stacked: list[int], limits: dict[str, int]) -> None:
    """Those that are too many take the way of all others, where who came before has ended."""
    server = start(limits=RequestLimits(**limits))
    app = brief(server)

    async def ask() -> None:
        lines = Lines(app, 4)
        for _ in range(3):
            await lines.ask([text(1.0)] * 4)
            codes = [f[0] for f in lines.answers()]
            # Whether the others find a place is a matter of time.
            assert codes.count(200) >= 2
            assert set(codes) <= {200, 429, 503}

    asyncio.run(ask())
    assert max(stacked) <= 2
    assert server.hub.models["double"].waiting == server.hub.memory.used == 0
