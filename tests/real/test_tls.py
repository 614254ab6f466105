"""Silos and clients with TLS, over sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from tests.conditions import until

from millstream.console.main import main
from millstream.runtime import (
    Client,
    ConfigError,
    Grain,
    MembershipOptions,
    MemoryMembershipTable,
    RuntimeOptions,
    Silo,
    SiloUnavailable,
    TcpTransport,
    Tls,
    connect,
    with_options,
)

pytestmark = pytest.mark.real
QUICK = MembershipOptions(refresh_s=0.2)
BRIEF = RuntimeOptions(call_timeout_s=1.0, connect_retry_s=0.05)


class Place(Grain):
    async def silo(self) -> str:
        return self.context.silo

    async def echo(self, data: bytes) -> bytes:
        return data

    async def client(self) -> str:
        return self.context.client

    async def trace(self) -> str:
        return self.context.headers["trace"]

    async def client_of(self, key: str) -> str:
        """Return the name that another grain sees."""
        return await self.grain(Place, key).client()

    async def relay(self, key: str) -> str:
        return await self.grain(Place, key).silo()


class Authority:
    """An authority in a directory, and certificates that it signs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        assert main(["certs", "init", str(directory)]) == 0

    def tls(self, role: str, name: str) -> Tls:
        """Make or renew the certificate of a silo or a client."""
        into = self.directory / f"{role}-{name}"
        words = ["certs", "issue", str(self.directory), f"--{role}", name, "--into", str(into)]
        assert main(words) == 0
        return Tls.in_directory(into)

    def tls_of_days(self, name: str, first: int, last: int) -> Tls:
        """Make a silo's certificate that is valid between two days from now."""
        made = self.tls("silo", name)
        key = load_pem_private_key((self.directory / "ca.key").read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        old = x509.load_pem_x509_certificate(Path(made.certificate).read_bytes())
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(
            issuer_name=old.issuer,
            subject_name=old.subject,
            public_key=old.public_key(),
            serial_number=old.serial_number,
            not_valid_before=now + timedelta(days=first),
            not_valid_after=now + timedelta(days=last),
            extensions=list(old.extensions),
        )
        changed = builder.sign(key, SHA256()).public_bytes(Encoding.PEM)
        Path(made.certificate).write_bytes(changed)
        return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def silo_tls(authority: Authority) -> Tls:
    return authority.tls("silo", "a")


@pytest.fixture
def client_tls(authority: Authority) -> Tls:
    return authority.tls("client", "web")


def make_silo(tls: Tls | None, table: MemoryMembershipTable | None = None) -> Silo:
    return Silo(
        grains=[Place],
        membership=table,
        membership_options=None if table is None else QUICK,
        tls=tls,
    )


@asynccontextmanager
async def connected(silo: Silo, tls: Tls | None) -> AsyncIterator[Client]:
    async with connect(silo.gateway, tls=tls, options=BRIEF) as client:
        yield client


async def test_silos_and_clients_with_certificates_call_each_other(
    authority: Authority, client_tls: Tls
) -> None:
    table = MemoryMembershipTable()
    first = make_silo(authority.tls("silo", "a"), table)
    second = make_silo(authority.tls("silo", "b"), table)
    async with first, second, connected(first, client_tls) as client:
        await until(lambda: len(first.members()) == 2)
        places = [client.grain(Place, f"P{number}") for number in range(20)]
        assert {await place.silo() for place in places} == {first.address, second.address}
        relayed = [await place.relay(f"Q{number}") for number, place in enumerate(places)]
        assert set(relayed) == {first.address, second.address}
        large = os.urandom(3_000_000)
        assert await asyncio.gather(*(place.echo(large) for place in places[:4])) == [large] * 4


async def test_nothing_that_is_sent_can_be_read_on_the_wire(silo_tls: Tls, client_tls: Tls) -> None:
    seen = bytearray()
    async with make_silo(silo_tls) as silo:
        port = int(silo.gateway.rpartition(":")[2])

        async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                seen.extend(data)
                writer.write(data)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(copy(reader, back), copy(there, writer))

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, connect(address, tls=client_tls) as client:
            secret = b"a secret of the program" * 10
            assert await client.grain(Place, "P").echo(secret) == secret
        assert len(seen) > 500
        assert secret[:20] not in seen and b"Place" not in seen


async def check_refused(silo: Silo, tls: Tls | None, text: str) -> None:
    with pytest.raises((SiloUnavailable, ConfigError), match=text):
        async with connected(silo, tls) as client:
            await client.grain(Place, "P").silo()


async def test_strangers_are_refused(
    authority: Authority, silo_tls: Tls, client_tls: Tls, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    async with make_silo(silo_tls) as silo:
        await check_refused(silo, None, r"closed by peer; if it uses TLS, pass tls=")
        stranger = other.tls("client", "web")
        await check_refused(silo, stranger, "is not of this authority")
        mixed = Tls(stranger.certificate, stranger.key, stranger.authority)
        shutil.copy(client_tls.authority, mixed.authority)  # accepts the silo, but is a stranger
        with pytest.raises(ConfigError, match=r"connect\(tls=...\): .*by the authority"):
            connect(silo.gateway, tls=mixed)
        async with connected(silo, client_tls) as client:  # the silo still serves others
            assert await client.grain(Place, "P").silo() == silo.address


async def test_a_stranger_that_trusts_the_silo_is_refused_by_the_silo(
    silo_tls: Tls, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "other").tls("client", "web")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(silo_tls.authority)
    context.load_cert_chain(stranger.certificate, stranger.key)
    async with make_silo(silo_tls) as silo:
        port = int(silo.gateway.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        with caplog.at_level(logging.WARNING):
            assert await reader.read(1) == b""
        writer.close()
        assert "is refused: the certificate of the other process is not of this authority" in (
            caplog.text
        )


async def test_a_client_with_tls_refuses_a_silo_without(client_tls: Tls) -> None:
    async with make_silo(None) as silo:
        await check_refused(silo, client_tls, "TLS")


async def test_the_certificate_of_a_client_makes_no_silo(
    authority: Authority, silo_tls: Tls, client_tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="millstream://dev/client/web, and must be of .*/silo/"):
        make_silo(client_tls)
    table = MemoryMembershipTable()
    async with make_silo(silo_tls, table) as silo:
        pretender = Silo(
            grains=[Place],
            membership=table,
            membership_options=QUICK,
            transport=TcpTransport(tls=client_tls),
        )
        with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="certificate of a"):
            await pretender.start()
        assert silo.members()[0].address == silo.address
    with pytest.raises(ConfigError, match="/silo/a, and must be of .*/client/NAME"):
        connect("127.0.0.1:1", tls=silo_tls)
    async with make_silo(silo_tls) as silo:
        client = Client([silo.gateway], transport=TcpTransport(tls=silo_tls), options=BRIEF)
        with caplog.at_level(logging.WARNING), pytest.raises(SiloUnavailable):
            await client.__aenter__()
        assert "is a client and has the certificate of a silo" in caplog.text


async def test_certificates_of_another_cluster_are_refused(
    authority: Authority, silo_tls: Tls
) -> None:
    with pytest.raises(ConfigError, match="must be of millstream://shop/silo/NAME"):
        Silo(grains=[Place], cluster="shop", tls=silo_tls)


# -- files that cannot be used


async def test_files_that_do_not_fit_are_refused_before_a_port_is_opened(
    authority: Authority, silo_tls: Tls, tmp_path: Path
) -> None:
    client = authority.tls("client", "web")
    garbage = tmp_path / "garbage"
    garbage.write_text("no PEM")
    other = Authority(tmp_path / "other")
    certificate, key, ca = silo_tls.certificate, silo_tls.key, silo_tls.authority
    for tls, text in (
        (Tls(str(tmp_path / "none"), key, ca), "none cannot be read: No such file"),
        (Tls(str(garbage), key, ca), "not a certificate and its key"),
        (Tls(certificate, client.key, ca), "the key is not that of the certificate"),
        (Tls(certificate, key, str(garbage)), "garbage is not a PEM file with a certificate"),
        (Tls(certificate, key, str(other.directory / "ca.crt")), "by the authority .*other"),
        (
            authority.tls_of_days("old", -3, -2),
            "certificate has expired",
        ),
        (
            authority.tls_of_days("new", 3, 5),
            "certificate is not yet valid",
        ),
        (Tls(str(authority.directory / "ca.crt"), str(authority.directory / "ca.key"), ca), "name"),
    ):
        with pytest.raises(ConfigError, match=rf"Silo\(tls=...\): .*{text}"):
            make_silo(tls)
    with pytest.raises(ConfigError, match="pass either tls or transport"):
        Silo(grains=[Place], tls=silo_tls, transport=TcpTransport())
    with pytest.raises(ConfigError, match=r"Silo\(tls=...\) .*must be a Tls"):
        Silo(grains=[Place], tls="/etc/shop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Tls\(key=''\)"):
        Tls(certificate, "", ca)


async def test_tls_permits_an_address_that_other_machines_reach(
    silo_tls: Tls, client_tls: Tls
) -> None:
    silo = Silo(grains=[Place], address="0.0.0.0:0", advertise="127.0.0.1:0", tls=silo_tls)
    async with silo, connected(silo, client_tls) as client:
        assert await client.grain(Place, "P").silo() == silo.address
    with pytest.raises(ConfigError, match=r"not encrypted: pass tls=Tls\(\.\.\.\)"):
        Silo(grains=[Place], address="0.0.0.0:0")


# -- renewal


async def test_new_connections_use_renewed_files_and_open_ones_stay(
    authority: Authority, silo_tls: Tls, client_tls: Tls
) -> None:
    async with make_silo(silo_tls) as silo, connected(silo, client_tls) as client:
        assert await client.grain(Place, "P").silo() == silo.address
        before = await asyncio.to_thread(served_by, silo, client_tls)
        authority.tls("silo", "a")
        assert await asyncio.to_thread(served_by, silo, client_tls) != before
        assert await client.grain(Place, "P").silo() == silo.address
        async with connected(silo, client_tls) as other:
            assert await other.grain(Place, "P").silo() == silo.address


def served_by(silo: Silo, tls: Tls) -> bytes:
    """Return the certificate that a silo shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)
    host, _, port = silo.gateway.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as plain:
        with context.wrap_socket(plain) as encrypted:
            found = encrypted.getpeercert(binary_form=True)
    assert found is not None
    return found


async def test_files_that_do_not_fit_together_do_not_replace_those_in_use(
    authority: Authority, silo_tls: Tls, client_tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_silo(silo_tls) as silo:
        before = await asyncio.to_thread(served_by, silo, client_tls)
        with caplog.at_level(logging.WARNING):
            Path(silo_tls.key).write_text("half of a k")
            assert await asyncio.to_thread(served_by, silo, client_tls) == before
            assert "the changed files of TLS are not used" in caplog.text
            authority.tls_of_days("a", -3, -2)
            assert await asyncio.to_thread(served_by, silo, client_tls) == before
            assert "certificate has expired" in caplog.text
            shutil.copytree(
                Path(client_tls.key).parent, Path(silo_tls.key).parent, dirs_exist_ok=True
            )
            assert await asyncio.to_thread(served_by, silo, client_tls) == before
            assert "a certificate of the same cluster and role" in caplog.text
        authority.tls("silo", "a")
        assert await asyncio.to_thread(served_by, silo, client_tls) != before


async def test_an_authority_is_replaced_while_silos_run(
    authority: Authority, silo_tls: Tls, client_tls: Tls, tmp_path: Path
) -> None:
    new = Authority(tmp_path / "new")
    async with make_silo(silo_tls) as silo:
        await check_refused(silo, new.tls("client", "web"), "TLS|authority|certificate")
        both = Path(silo_tls.authority).read_bytes() + (new.directory / "ca.crt").read_bytes()
        Path(silo_tls.authority).write_bytes(both)
        renewed = new.tls("client", "web")
        Path(renewed.authority).write_bytes(both)
        for tls in (client_tls, renewed):
            async with connected(silo, tls) as client:
                assert await client.grain(Place, "P").silo() == silo.address
        new.tls("silo", "a")
        for name in ("tls.key", "tls.crt"):
            made = new.directory / "silo-a" / name
            shutil.copy(made, Path(silo_tls.key).parent / name)
        async with connected(silo, renewed) as client:
            assert await client.grain(Place, "P").silo() == silo.address
        await check_refused(silo, client_tls, "is not of this authority")


# -- strangers


async def test_silent_strangers_keep_no_client_out(silo_tls: Tls, client_tls: Tls) -> None:
    async with make_silo(silo_tls) as silo:
        host, _, port = silo.gateway.rpartition(":")
        silent = []
        try:
            for _ in range(400):
                silent.append(socket.create_connection((host, int(port)), 5))
                await asyncio.sleep(0)
            async with connected(silo, client_tls) as client:
                assert await client.grain(Place, "P").silo() == silo.address
            for one in silent[:10]:
                one.settimeout(5)
                assert await asyncio.to_thread(one.recv, 1) == b""
        finally:
            for one in silent:
                one.close()


async def test_garbage_in_place_of_a_handshake_ends_one_connection(
    silo_tls: Tls, client_tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    async with make_silo(silo_tls) as silo, connected(silo, client_tls) as client:
        host, _, port = silo.gateway.rpartition(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(70_000), b"\x16\x03\x01\xff\xff"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(garbage)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()  # the end, perhaps after an alert
            writer.close()
        assert await client.grain(Place, "P").silo() == silo.address
    lines = [line for line in caplog.messages if "is refused" in line]
    assert 0 < len(lines) < 3, "a flood writes few lines"


# -- the name of the client


async def test_grains_know_the_client_that_began_their_chain_of_calls(authority: Authority) -> None:
    table = MemoryMembershipTable()
    first = make_silo(authority.tls("silo", "a"), table)
    second = make_silo(authority.tls("silo", "b"), table)
    web, batch = authority.tls("client", "web"), authority.tls("client", "batch job")
    async with first, second, connected(first, web) as one, connected(second, batch) as other:
        await until(lambda: len(first.members()) == 2)
        for number in range(20):
            key = f"P{number}"
            assert await one.grain(Place, key).client() == "web"
            assert await other.grain(Place, key).client() == "batch job"
            assert await one.grain(Place, key).client_of(f"Q{number}") == "web"
            assert await other.grain(Place, key).client_of(f"Q{number}") == "batch job"
            assert await first.grain(Place, key).client() == ""
            with pytest.raises(ConfigError, match="reserved"):
                with_options(one.grain(Place, key), flowing_headers={"millstream.client": "root"})


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_no_client_chooses_the_name_that_grains_see(
    authority: Authority, is_encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo_tls = authority.tls("silo", "a") if is_encrypted else None
    client_tls = authority.tls("client", "web") if is_encrypted else None
    async with make_silo(silo_tls) as silo, connected(silo, client_tls) as client:
        monkeypatch.setattr("millstream.runtime.definition.headers.RESERVED", "another name.")
        forged = with_options(
            client.grain(Place, "P"),
            flowing_headers={"millstream.client": "root", "trace": "1"},
            headers={"millstream.client": "root"},
        )
        monkeypatch.undo()
        assert await forged.client() == ("web" if is_encrypted else "")
        assert await forged.client_of("Q") == ("web" if is_encrypted else "")
        assert await forged.trace() == "1"
