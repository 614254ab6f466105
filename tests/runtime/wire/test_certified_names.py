"""The names in certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from millstream.runtime import CertifiedName, Role, Tls
from millstream.runtime.extending import uri_of
from millstream.runtime.wire.certified_name import name_in

TEXTS = st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable())
ROLES = st.sampled_from([Role.SILO, Role.CLIENT])


def certificate(*uris: str) -> dict[str, Any]:
    """A certificate as `getpeercert` returns it."""
    names = [("DNS", "host"), *(("URI", uri) for uri in uris), ("IP Address", "10.0.0.5")]
    return {"subject": ((("commonName", "x"),),), "subjectAltName": tuple(names)}


@given(TEXTS, ROLES, TEXTS)
@settings(max_examples=examples(100))
def test_a_name_is_read_as_it_was_written(cluster: str, role: Role, name: str) -> None:
    written = CertifiedName(cluster, role, name)
    assert uri_of(written).isascii()
    assert name_in(certificate(uri_of(written))) == written
    assert name_in(certificate("spiffe://other/x", uri_of(written))) == written


def test_the_form_of_names_is_fixed() -> None:
    assert uri_of(CertifiedName("dev", Role.SILO, "a")) == "millstream://dev/silo/a"
    name = CertifiedName("my shop", Role.CLIENT, "a/b?")
    assert uri_of(name) == "millstream://my%20shop/client/a%2Fb%3F"


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("millstream://dev/silo",),
        ("millstream://dev/silo/",),
        ("millstream:///silo/a",),
        ("millstream://dev/operator/a",),
        ("millstream://dev/silo/a/b",),
        ("millstream://dev/silo/a?x=1",),
        ("xmillstream://dev/silo/a",),
        ("https://dev/silo/a",),
        ("millstream://dev/silo/a", "millstream://dev/client/a"),
        ("millstream://dev/silo/a", "millstream://shop/silo/a"),
        ("spiffe://x",) * 20 + ("millstream://dev/silo/a",),  # more names than anybody needs
    ],
)
def test_no_name_or_several_are_none(uris: tuple[str, ...]) -> None:
    assert name_in(certificate(*uris)) is None


def test_a_process_without_a_certificate_has_no_name() -> None:
    assert name_in(None) is None
    assert name_in({}) is None


def test_a_directory_has_the_file_names_of_kubernetes() -> None:
    files = Tls("/etc/shop/tls.crt", "/etc/shop/tls.key", "/etc/shop/ca.crt")
    assert Tls.in_directory("/etc/shop") == Tls.in_directory(Path("/etc/shop")) == files
