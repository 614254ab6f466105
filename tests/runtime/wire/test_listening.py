"""A peer that connects while a listener closes is answered or turned away, and never forgotten."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import socket
from contextlib import closing

import pytest

from millstream.runtime import Address, Link, TcpTransport
from millstream.runtime.wire import transport
from millstream.runtime.wire.transport import TcpListener, links_closed

HERE = Address("127.0.0.1", 0)


@pytest.mark.parametrize("iterations", range(8))
async def test_who_connects_as_a_listener_closes_is_not_forgotten(iterations: int) -> None:
    """The peer gets the end of its connection at once, from the listener or from the system."""
    links: list[Link] = []
    listener = await TcpTransport().listen(HERE, links.append)
    with socket.create_connection(listener.address) as peer:
        for _ in range(iterations):
            await asyncio.sleep(0)
        listener.close()
        await links_closed()
        for link in links:
            link.abort()
        await links_closed()
        peer.settimeout(5.0)
        try:
            assert peer.recv(1) == b""
        except ConnectionResetError:
            pass
    gc.collect()  # an unclosed transport would warn here


class Without(socket.socket):
    """A listening socket in a process that has no free descriptors for a while."""

    times = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.times:
            self.times -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


async def test_a_process_without_descriptors_accepts_again_when_it_has_some(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "REST_S", 0.01)
    sock = Without(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(HERE)
    sock.listen()
    sock.setblocking(False)
    links: list[Link] = []
    with closing(TcpListener([sock], links.append)) as listener:
        with caplog.at_level(logging.WARNING), socket.create_connection(listener.address):
            while not links:
                await asyncio.sleep(0)
        links[0].abort()
    assert caplog.text.count("accepts no connections") == 2
    assert "Too many open files" in caplog.text
    await links_closed()


async def test_a_listener_that_closed_without_descriptors_stays_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "REST_S", 0.0)
    sock = Without(socket.AF_INET, socket.SOCK_STREAM)
    sock.times = 1
    sock.bind(HERE)
    sock.listen()
    sock.setblocking(False)
    listener = TcpListener([sock], lambda link: pytest.fail("a link of a closed listener"))
    with socket.create_connection(listener.address):
        while sock.times:
            await asyncio.sleep(0)
        listener.close()
        await links_closed()


async def test_a_name_is_listened_at_where_all_its_addresses_are() -> None:
    links: list[Link] = []
    with closing(await TcpTransport().listen(Address("localhost", 0), links.append)) as listener:
        link = await TcpTransport().connect(listener.address)
        while not links:
            await asyncio.sleep(0)
        links[0].abort()
        link.abort()
    await links_closed()


async def test_a_family_that_the_machine_does_not_speak_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for a name with an IPv6 address on a machine without IPv6."""
    create = socket.create_server

    def create_server(name: tuple[str, int], *, family: int, backlog: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return create(name, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "create_server", create_server)
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    (found,) = transport.bound([six, four, four])
    found.close()
    with pytest.raises(OSError, match="not supported"):
        transport.bound([six])
