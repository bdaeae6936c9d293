"""TLS: both ports take the certificate, and nobody speaks to them without it."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve.options import ServeOptions
from tests.runtime.serve.conftest import KEY, Start
from tests.runtime.serve.test_inflight import read_late
from tests.runtime.serve.test_v2 import URL, body

pytest.importorskip("cryptography")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Write a certificate for this machine, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, private = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate, private


def test_http(start: Start, pair: tuple[Path, Path]) -> None:
    import ssl

    server = start(certificate=pair[0], private_key=pair[1], keys=(KEY,))
    assert server.url.startswith("https://")
    with httpx.Client(base_url=server.url, verify=ssl.create_default_context(cafile=pair[0])) as us:
        assert us.post(URL, json=body(), headers={"x-api-key": KEY}).status_code == 200
        assert us.post(URL, json=body()).status_code == 401
    with httpx.Client(base_url=server.url) as stranger, pytest.raises(httpx.ConnectError):
        stranger.get("/v2")
    with socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1]))) as plain:
        plain.settimeout(30)
        plain.sendall(b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")


@pytest.mark.parametrize("rows", [1_500, 10_000, 60_000])
def test_bodies_that_come_in_pieces(start: Start, pair: tuple[Path, Path], rows: int) -> None:
    import ssl

    server = start(certificate=pair[0], private_key=pair[1])
    x, k = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3), np.arange(rows)
    tensors: list[tuple[str, str, Any]] = [("x", "FP32", x), ("k", "INT64", k)]
    items = [
        {"name": n, "datatype": d, "shape": a.shape, "parameters": {"binary_data_size": a.nbytes}}
        for n, d, a in tensors
    ]
    told = json.dumps({"inputs": items, "parameters": {"binary_data_output": True}}).encode()
    whole = told + b"".join(a.tobytes() for _, _, a in tensors)
    size = "inference-header-content-length"
    headers = f"content-length: {len(whole)}\r\n{size}: {len(told)}\r\n"
    text = f"POST {URL} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n".encode() + whole
    context = ssl.create_default_context(cafile=pair[0])
    port = int(server.url.rsplit(":", 1)[1])
    with (
        socket.create_connection(("localhost", port), 30) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
        line.makefile("rb") as answers,
    ):
        for cuts in ((), (100,), (9_000, 20_000)):
            for start_, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
                line.sendall(text[start_:end])
                time.sleep(0.01)
            assert b" 200 " in answers.readline()
            lines = dict(line.rstrip().split(b": ", 1) for line in iter(answers.readline, b"\r\n"))
            body = answers.read(int(lines[b"content-length"]))[int(lines[size.encode()]) :]
            assert body == (2 * x).tobytes() + k.tobytes()


def test_grpc(start: Start, pair: tuple[Path, Path]) -> None:
    client = pytest.importorskip("tritonclient.grpc", reason="pip install 'tritonclient[grpc]'")
    from tests.runtime.serve.test_rpc import X, inputs

    server = start(certificate=pair[0], private_key=pair[1], keys=(KEY,), grpc_port=0)
    assert server.app.rpc is not None
    address = f"localhost:{server.app.rpc.port}"
    given = {"ssl": True, "root_certificates": str(pair[0])}
    with client.InferenceServerClient(address, **given) as us:
        found = us.infer("double", inputs(), headers={"x-api-key": KEY})
        assert found.as_numpy("double").tolist() == (X * 2).tolist()
        with pytest.raises(client.InferenceServerException, match="UNAUTHENTICATED"):
            us.infer("double", inputs())
    refused = pytest.raises(client.InferenceServerException, match="UNAVAILABLE")
    with client.InferenceServerClient(address) as plain, refused:
        plain.infer("double", inputs(), headers={"x-api-key": KEY})


def test_a_certificate_needs_its_key(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="TLS needs both"):
        ServeOptions(certificate=pair[0])


def test_what_waits_below_tls_counts(start: Start, pair: tuple[Path, Path]) -> None:
    """TLS takes all of an answer and hands it on: what the client left unread was nowhere."""
    import ssl

    server = start(certificate=pair[0], private_key=pair[1])
    rows, memory = 1 << 19, server.hub.memory
    size = 20 * rows
    items = [
        {"name": n, "datatype": d, "shape": shape, "parameters": {"binary_data_size": own}}
        for n, d, shape, own in (
            ("x", "FP32", [rows, 3], 12 * rows),
            ("k", "INT64", [rows], 8 * rows),
        )
    ]
    text = json.dumps({"inputs": items, "parameters": {"binary_data_output": True}}).encode()
    head = (
        f"POST {URL} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(text) + size}\r\n"
        f"inference-header-content-length: {len(text)}\r\n\r\n"
    ).encode()
    port, context = int(server.url.rsplit(":", 1)[1]), ssl.create_default_context(cafile=pair[0])
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost") as client:
        client.settimeout(60)
        client.sendall(head + text + bytes(size))
        read_late(client, memory, size)
