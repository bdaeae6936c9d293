"""Pages in browsers: this server's own may ask, those of others may not, under no name."""

from __future__ import annotations

import pytest

from tests.runtime.serve.conftest import KEY, Server, Start
from tests.runtime.serve.test_v2 import URL, body


def test_pages_of_others_ask_nothing_unless_allowed(start: Start) -> None:
    origin = {"origin": "https://page.example"}
    closed = start()
    refused = closed.client.post(URL, json=body(), headers=origin)
    assert refused.status_code == 403
    assert "pages of https://page.example may not ask" in refused.json()["error"]
    assert "access-control-allow-origin" not in refused.headers
    # What was refused was not run.
    assert closed.hub.models["double"].metrics.statuses == {}
    for mine in (closed.url, closed.url.replace("http:", "https:")):
        assert closed.client.post(URL, json=body(), headers={"origin": mine}).status_code == 200
    opened = start(cors=("https://page.example",))
    found = opened.client.post(URL, json=body(), headers=origin)
    assert found.status_code == 200
    assert found.headers["access-control-allow-origin"] == "https://page.example"
    for other in ("https://other.example", "null"):
        refused = opened.client.get("/v2", headers={"origin": other})
        assert refused.status_code == 403
        assert "access-control-allow-origin" not in refused.headers
    assert opened.client.options(URL, headers=origin).status_code == 204


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:9", "127.9.9.9", "[::1]:9", "LOCALHOST:9"]
)
def test_names_of_this_machine(server: Server, host: str) -> None:
    assert server.client.get("/v2", headers={"host": host}).status_code == 200


@pytest.mark.sample(1)
@pytest.mark.parametrize("host", ["page.example", "page.example:80", "127.0.0.1.page.example"])
def test_names_that_somebody_points_here_are_refused(start: Start, host: str) -> None:
    server = start()
    refused = server.client.get("/v2", headers={"host": host})
    assert refused.status_code == 403
    assert "give --keys, or --insecure" in refused.json()["error"]
    # Probes may come by any name.
    assert server.client.get("/v2/health/ready", headers={"host": host}).status_code == 200
    # Whoever shows a key is no page of somebody's.
    keyed = start(keys=(KEY,))
    given = {"host": host, "x-api-key": KEY}
    assert keyed.client.get("/v2", headers=given).status_code == 200
    assert start(insecure=True).client.get("/v2", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_images_of_other_pages_run_nothing(server: Server, site: str) -> None:
    """Browsers send no origin with what a page shows, and a GET made the server run its models."""
    sent = {"sec-fetch-site": site, "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    for path in ("/health/run", "/v2", "/"):
        assert server.client.get(path, headers=sent).status_code == 403
    followed = {**sent, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert server.client.get("/health/run", headers=followed).status_code == 403
    assert server.client.get("/", headers=followed).status_code == 200
    own = {**sent, "sec-fetch-site": "same-origin"}
    assert server.client.get("/v2", headers=own).status_code == 200
    typed = {**followed, "sec-fetch-site": "none"}
    assert server.client.get("/health/run", headers=typed).status_code == 200
