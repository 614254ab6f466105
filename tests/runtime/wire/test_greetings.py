"""Silos prove a shared secret to each other. With any other first message, they greet nobody."""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.runtime.wire.pair import SECRET, FakeLink, Office, call, end_of, raw, visitor

from millstream.runtime import CertifiedName, Env, Role, RuntimeOptions
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.framing import FrameError, frame
from millstream.runtime.wire.handshake import (
    GREETING_BYTES_MAX,
    NONCE_BYTES,
    Handshake,
    HandshakeError,
    Identity,
    OtherTable,
    SiloReplaced,
    hello_of,
    role_in,
)
from millstream.runtime.wire.message import Goodbye, Hello, Proof
from millstream.runtime.wire.secret import NO_SECRETS, Secrets

OPTIONS = RuntimeOptions()


def hello(
    name: str = "a:1@1", is_silo: bool = True, cluster: str = "dev", table_id: str = ""
) -> Hello:
    return hello_of(Identity(cluster, name, is_silo, table_id), OPTIONS, Env())


def both(first: Secrets = SECRET, second: Secrets = SECRET) -> tuple[Handshake, Handshake]:
    opener = Handshake(hello("a:1@1"), first, is_opener=True, expected="b:2@2")
    return opener, Handshake(hello("b:2@2"), second, is_opener=False)


# -- certificates


SILO, CLIENT = (CertifiedName("dev", role, "x") for role in (Role.SILO, Role.CLIENT))


@pytest.mark.parametrize(
    ("certified", "is_silo", "refusal"),
    [
        (None, True, ""),
        (None, False, ""),
        (SILO, True, ""),
        (CLIENT, False, ""),
        (SILO, False, "a:1@1 is a client and has the certificate of a silo"),
        (CLIENT, True, "a:1@1 is a silo and has the certificate of a client"),
        (SILO._replace(cluster="shop"), True, "cluster 'dev', and has a certificate of .*'shop'"),
        (CLIENT._replace(cluster="shop"), False, "cluster 'dev', and has a certificate of"),
    ],
)
def test_a_certificate_permits_one_cluster_and_one_role(
    certified: CertifiedName | None, is_silo: bool, refusal: str
) -> None:
    accepter = Handshake(hello("b:2@2"), SECRET, is_opener=False)
    accepter.certified = certified
    if not refusal:
        accepter.take([hello(is_silo=is_silo)])
        assert accepter.refusal is None
        return
    with pytest.raises(HandshakeError, match=refusal):
        accepter.take([hello(is_silo=is_silo)])
    assert accepter.refusal is not None and not accepter.is_done


def test_the_opener_checks_the_certificate_of_the_silo_that_it_has_reached() -> None:
    opener, accepter = both()
    opener.certified = CLIENT
    with pytest.raises(HandshakeError, match="b:2@2 is a silo and has the certificate of a client"):
        opener.take([accepter.own])


def greet(opener: Handshake, accepter: Handshake) -> None:
    proof = opener.take([accepter.own])
    assert accepter.take([opener.own]) == []
    opener.take(accepter.take(proof))


def test_two_silos_that_know_the_secret_greet() -> None:
    opener, accepter = both()
    greet(opener, accepter)
    assert opener.is_done and accepter.is_done


def test_the_one_that_was_called_shows_nothing_to_one_that_does_not_know_the_secret() -> None:
    opener, accepter = both(first=Secrets(b"guess", SECRET.operator))
    with pytest.raises(HandshakeError, match=r"a:1@1 does not know the secret of cluster 'dev'"):
        greet(opener, accepter)
    assert not accepter.is_done and not opener.is_done


def test_the_one_that_called_does_not_believe_a_stranger() -> None:
    opener, accepter = both()
    opener.take([accepter.own])
    with pytest.raises(HandshakeError, match="does not know the secret"):
        opener.take([Proof(bytes(32))])
    assert not opener.is_done


def test_a_proof_is_good_for_one_connection_and_one_side() -> None:
    opener, accepter = both()
    (proof,) = opener.take([accepter.own])
    accepter.take([opener.own])
    (answer,) = accepter.take([proof])
    _, again = both()
    again.take([opener.own])  # the same greeting on another connection
    with pytest.raises(HandshakeError):
        again.take([proof])
    mirrored = Handshake(hello("b:2@2"), SECRET, is_opener=False)
    mirrored.take([opener.own])
    with pytest.raises(HandshakeError):
        mirrored.take([answer])  # the proof of the other side is no proof of this side


def test_a_proof_that_is_sent_back_proves_nothing() -> None:
    opener, accepter = both()
    (proof,) = opener.take([accepter.own])
    with pytest.raises(HandshakeError, match="does not know the secret"):
        opener.take([proof])


def test_a_later_silo_at_the_same_address_is_no_fault() -> None:
    opener, _ = both()
    with pytest.raises(SiloReplaced, match="b:2@2 is gone: b:2@3 was started in its place"):
        opener.take([hello("b:2@3")])


def test_another_silo_than_the_one_that_is_looked_for_is_refused() -> None:
    opener, _ = both()
    with pytest.raises(HandshakeError, match="expected b:2@2, found c:3@3"):
        opener.take([hello("c:3@3")])
    opener, _ = both()
    with pytest.raises(HandshakeError, match="expected b:2@2, found b:2@1"):  # an earlier start
        opener.take([hello("b:2@1")])
    anyone = Handshake(hello("client-1", is_silo=False), NO_SECRETS, is_opener=True, expected="b:2")
    anyone.take([hello("c:3@3")])
    assert anyone.is_done


def operator(secrets: Secrets = SECRET) -> Handshake:
    own = hello_of(Identity("dev", "client-1", False, is_operator=True), OPTIONS, Env())
    return Handshake(own, Secrets(operator=secrets.operator), is_opener=True)


def accepting(secrets: Secrets = SECRET) -> Handshake:
    return Handshake(hello("b:2@2"), secrets, is_opener=False)


def test_an_operator_and_a_silo_prove_the_operators_secret_to_each_other() -> None:
    client, accepter = operator(), accepting()
    (proof,) = client.take([accepter.own])
    assert accepter.take([client.own]) == [] and not accepter.is_done
    client.take(accepter.take([proof]))
    assert client.is_done and accepter.is_done
    assert accepter.other is not None and role_in(accepter.other) is Role.OPERATOR


def test_a_client_that_guesses_the_operators_secret_is_shown_nothing() -> None:
    client, accepter = operator(Secrets(operator=b"guess")), accepting()
    (proof,) = client.take([accepter.own])
    accepter.take([client.own])
    with pytest.raises(HandshakeError, match="client-1 does not know the operator's secret"):
        accepter.take([proof])
    assert not accepter.is_done


def test_the_secret_of_the_silos_is_no_operators_secret_and_an_operators_none_of_silos() -> None:
    client, accepter = operator(Secrets(operator=SECRET.cluster)), accepting()
    proofs = client.take([accepter.own])
    accepter.take([client.own])
    with pytest.raises(HandshakeError, match="does not know the operator's secret"):
        accepter.take(proofs)
    opener, other = both(first=Secrets(SECRET.operator, SECRET.operator))
    with pytest.raises(HandshakeError, match="does not know the secret of cluster"):
        greet(opener, other)


def test_an_operator_does_not_believe_a_silo_that_does_not_know_its_secret() -> None:
    client, accepter = operator(), accepting()
    client.take([accepter.own])
    with pytest.raises(HandshakeError, match="b:2@2 does not know the operator's secret"):
        client.take([Proof(bytes(32))])
    assert not client.is_done


def test_nobody_is_an_operator_where_no_secret_is_known() -> None:
    client, accepter = operator(Secrets(operator=b"\0")), accepting(Secrets(SECRET.cluster))
    client.take([accepter.own])
    accepter.take([client.own])
    with pytest.raises(HandshakeError, match="has no secret to prove"):
        accepter.take([Proof(hmac.digest(b"", b"opener", "sha256"))])


def test_an_operator_that_says_no_nonce_is_refused() -> None:
    own = msgspec.structs.replace(operator().own, nonce=b"")
    with pytest.raises(HandshakeError, match="must have 32 random bytes, not 0"):
        accepting().take([own])


@pytest.mark.parametrize("cluster", ["dev", "prod"])
@pytest.mark.parametrize("table_id", ["", "one", "two"])
def test_a_later_silo_of_any_cluster_and_table_says_nothing_about_the_former_one(
    cluster: str, table_id: str
) -> None:
    opener = Handshake(hello(table_id="one"), SECRET, is_opener=True, expected="b:2@2")
    with pytest.raises(SiloReplaced):
        opener.take([hello("b:2@3", cluster=cluster, table_id=table_id)])
    assert opener.refusal is None


def test_silos_of_two_membership_tables_refuse_each_other_by_name() -> None:
    opener = Handshake(hello(table_id="one"), SECRET, is_opener=True, expected="b:2@2")
    accepter = Handshake(hello("b:2@2", table_id="two"), SECRET, is_opener=False)
    with pytest.raises(OtherTable, match="b:2@2 follows membership table two, not one"):
        opener.take([accepter.own])
    with pytest.raises(OtherTable, match="a:1@1 follows membership table one, not two"):
        accepter.take([opener.own])
    assert isinstance(opener.refusal, OtherTable) and not opener.is_done and not accepter.is_done


@pytest.mark.parametrize("theirs", ["two", ""])
def test_a_client_that_has_a_membership_table_talks_to_silos_of_no_other_one(theirs: str) -> None:
    own = hello("client-1", is_silo=False, table_id="one")
    client = Handshake(own, NO_SECRETS, is_opener=True, expected="b:2")
    silo = Handshake(hello("b:2@2", table_id=theirs), SECRET, is_opener=False)
    if not theirs:  # a silo that does not tell its table
        assert client.take([silo.own]) == [] and silo.take([own]) == []
        return
    text = r"b:2@2 follows membership table two, not one: pass .* connect\(membership=\.\.\.\)"
    with pytest.raises(OtherTable, match=text):
        client.take([silo.own])
    with pytest.raises(OtherTable, match="client-1 follows membership table one, not two$"):
        silo.take([own])
    assert isinstance(client.refusal, OtherTable)


def test_a_client_may_talk_to_silos_of_any_membership_table() -> None:
    client = Handshake(hello("client-1", is_silo=False), NO_SECRETS, is_opener=True)
    silo = Handshake(hello("b:2@2", table_id="two"), SECRET, is_opener=False)
    assert client.take([silo.own]) == [] and silo.take([client.own]) == []


@pytest.mark.parametrize("changed", ["frame_bytes_max", "batch_messages_max"])
def test_a_greeting_that_was_changed_on_its_way_is_refused(changed: str) -> None:
    opener, accepter = both()
    (proof,) = opener.take([accepter.own])
    accepter.take([msgspec.structs.replace(opener.own, **{changed: 5})])
    with pytest.raises(HandshakeError, match="does not know"):
        accepter.take([proof])


def test_a_client_proves_nothing_and_is_shown_nothing() -> None:
    client = Handshake(hello("client-1", is_silo=False), NO_SECRETS, is_opener=True)
    silo = Handshake(hello("b:2@2"), SECRET, is_opener=False)
    assert client.take([silo.own]) == [] and silo.take([client.own]) == []
    assert client.is_done and silo.is_done


def test_a_connection_that_we_opened_leads_to_a_silo() -> None:
    opener, _ = both()
    with pytest.raises(HandshakeError, match="expected a silo, found the client x"):
        opener.take([hello("x", is_silo=False)])


WRONG: dict[str, tuple[Any, str]] = {
    "a call": (call(1), "first message is Call"),
    "a refusal": (Goodbye("no\nplace"), r"the peer refused: no\\nplace"),
    "another cluster": (hello(cluster="prod"), "in cluster 'prod', not 'dev'"),
    "no name": (hello(""), "is not a name"),
    "a long name": (hello("x" * 300), "is not a name"),
    "a name of two lines": (hello("a:1@1\nforged", is_silo=False), "forged.* is not a name"),
    "a silo without generation": (hello("a:1"), "is not the name of a silo"),
    "a silo without a nonce": (
        msgspec.structs.replace(hello(), nonce=b"x"),
        "must have 32 random bytes, not 1",
    ),
    "another table": (hello(table_id="else"), "a:1@1 follows membership table else, not "),
    "no frames": (msgspec.structs.replace(hello(), frame_bytes_max=0), "allows no frames"),
    "no messages": (msgspec.structs.replace(hello(), batch_messages_max=0), "allows no frames"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_greeting_is_refused_with_a_reason_in_one_line(what: str) -> None:
    message, reason = WRONG[what]
    accepter = Handshake(hello("b:2@2"), SECRET, is_opener=False)
    with pytest.raises(HandshakeError, match=reason) as caught:
        accepter.take([message])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_a_name_of_the_largest_length_is_taken() -> None:
    accepter = Handshake(hello("b:2@2"), SECRET, is_opener=False)
    accepter.take([hello("x" * 200, is_silo=False)])
    assert accepter.is_done


STEPS = st.lists(st.sampled_from(["hello", "proof", "hello again", "call", "goodbye", "guess"]))


@settings(max_examples=examples(300))
@given(STEPS)
def test_whatever_order_comes_only_the_right_one_greets(steps: list[str]) -> None:
    opener, accepter = both()
    (proof,) = opener.take([accepter.own])
    sends: dict[str, Any] = {
        "hello": opener.own,
        "proof": proof,
        "hello again": hello(),
        "call": call(1),
        "goodbye": Goodbye("x"),
        "guess": Proof(bytes(32)),
    }
    taken: list[str] = []
    for step in steps:
        try:
            accepter.take([sends[step]])
        except HandshakeError:
            break
        taken.append(step)
        if accepter.is_done:
            break
    assert not accepter.is_done or taken == ["hello", "proof"]


@settings(max_examples=examples(200))
@given(st.binary(max_size=300), st.integers(0, 400), st.integers(1, 3))
def test_garbage_truncated_and_repeated_greetings_reach_nobody(
    garbage: bytes, cut_at: int, times: int
) -> None:
    async def meet() -> None:
        for data in (garbage, raw(hello())[:cut_at] + garbage, raw(hello()) * times + raw(call(1))):
            office = Office()
            peer, link = Peer(end_of(office), "", lambda peer: None), FakeLink()
            peer.attach(link)
            peer.on_received(data)
            await asyncio.sleep(0)
            assert office.calls == [] and office.greeted_by == [] and not peer.writer.is_ready
            peer.close("the test ends")

    asyncio.run(meet())


async def test_a_link_that_takes_more_is_ready_for_no_call_before_the_greeting() -> None:
    peer, link = Peer(end_of(Office()), "there:1@1", lambda peer: None), FakeLink()
    peer.attach(link)
    peer.writable(True)
    assert not peer.writer.is_ready
    peer.close("the test ends")


async def test_one_that_is_refused_is_told_why_before_the_connection_closes() -> None:
    peer, link = Peer(end_of(Office()), "", lambda peer: None), FakeLink()
    peer.attach(link)
    peer.on_received(raw(hello(cluster="prod")))
    (goodbye,) = link.of(Goodbye)
    assert "in cluster 'prod', not 'dev'" in goodbye.reason
    assert link.ended == "closed" and str(peer.refusal) == "a:1@1 is in cluster 'prod', not 'dev'"


async def test_a_silo_that_was_restarted_at_its_address_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    peer, link = Peer(end_of(Office()), "b:2@2", lambda peer: None), FakeLink()
    peer.attach(link)
    with caplog.at_level(logging.INFO, "millstream.connection"):
        peer.on_received(raw(hello("b:2@3")))
    assert link.ended == "closed"
    (said,) = caplog.records
    assert said.levelno == logging.INFO
    assert said.getMessage() == "b:2@2 is gone: b:2@3 was started in its place"


async def test_before_the_greeting_a_frame_is_at_most_64_KiB() -> None:
    assert GREETING_BYTES_MAX == 64 * 1024 and NONCE_BYTES == 32
    peer, link = Peer(end_of(Office()), "", lambda peer: None), FakeLink()
    peer.attach(link)
    peer.on_received((GREETING_BYTES_MAX + 1).to_bytes(4, "little"))
    assert link.ended == "aborted"


async def test_a_large_frame_in_the_read_of_the_greeting_is_taken() -> None:
    office = Office()
    peer, link = Peer(end_of(office), "", lambda peer: None), FakeLink()
    peer.attach(link)
    large = call(1, key="k" * 200_000)
    peer.on_received(raw(hello("client-1", is_silo=False)) + raw(large) + raw(call(2)))
    for _ in range(4):
        await asyncio.sleep(0)
    assert [one.id for one in office.calls] == [1, 2] and not link.ended


def test_bytes_before_a_frame_that_is_too_large_are_not_lost() -> None:
    from millstream.runtime.wire.framing import FrameReader

    reader = FrameReader(10)
    assert reader.feed(frame(b"small") + frame(bytes(11))) == [b"small"]
    reader.limit_bytes = 11
    assert reader.feed(b"") == [bytes(11)]
    assert reader.feed(frame(b"x") + frame(bytes(12))) == [b"x"]
    with pytest.raises(FrameError, match="12 bytes"):
        reader.feed(b"")


async def test_a_hello_after_the_greeting_ends_the_connection() -> None:
    peer, link = visitor(Office())
    peer.on_received(raw(hello()))
    assert link.ended == "aborted"
