"""TLS: both ports take the certificate, and nobody speaks to them without it."""

from __future__ import annotations

import datetime
import ipaddress
import socket
from pathlib import Path

import httpx
import pytest

from edgeinfer.errors import UsageError
from edgeinfer.runtime.serve.options import ServeOptions
from tests.runtime.serve.conftest import KEY, Start
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
