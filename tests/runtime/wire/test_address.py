"""Addresses: reading and printing them, and the addresses of connecting peers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import Address, ConfigError
from millstream.runtime.wire.address import check_door, endpoint_of, generation_of

ADDRESSES = [
    ("127.0.0.1:7700", "127.0.0.1", 7700),
    ("[::1]:7700", "::1", 7700),
    ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
    ("a.host-name:0", "a.host-name", 0),
    ("x:65535", "x", 65535),
]


@pytest.mark.parametrize(("text", "host", "port"), ADDRESSES)
def test_what_an_address_prints_is_read(text: str, host: str, port: int) -> None:
    address = Address.parse(text)
    assert address == Address(host, port) and str(address) == text
    assert Address.parse(endpoint_of(f"{address}@17")) == address
    assert generation_of(f"{address}@17") == 17


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_is_read_as_it_is_printed(host: object, port: int) -> None:
    address = Address(str(host), port)
    assert Address.parse(str(address)) == address


BAD = [
    "h:000080",
    "",
    "x",
    ":1",
    "x:",
    "x:65536",
    "x:-1",
    "x:1a",
    "::1:7700",
    "[::1]",
    "[::1]:",
    "[x]:1",
]
BAD += ["x:000080", "x y:1", "a@b:1", "x\n:1", "x:\u0661", "[]:1", "[::1:1", "x:" + "1" * 5000]


@pytest.mark.parametrize("text", BAD, ids=lambda text: repr(text[:12]))
def test_what_is_no_address_is_named_in_one_line(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not an address: write host:port or \[IPv6\]:port"
    ) as e:
        Address.parse(text)
    assert "\n" not in str(e.value) and len(str(e.value)) < 400


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.8.7", "::1", "localhost", "LOCALHOST"])
def test_loopback_needs_no_word(host: str) -> None:
    assert Address(host, 1).is_loopback
    check_door(Address(host, 1), False, "here")


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "fe80::1", "127.host", "::ffff:10.0.0.1"]
)
def test_everything_else_is_refused_unless_that_was_said(host: str) -> None:
    with pytest.raises(ConfigError, match="here: .*insecure=True"):
        check_door(Address(host, 1), False, "here")
    check_door(Address(host, 1), True, "here")
