"""The handshake: two processes learn each other's identity. Pure, messages in and messages out.

`Handshake` decides which identity this process accepts, and proves its own. The secrets come from
`secret`; `connection` limits the time of a handshake.

Order of the messages: both processes send `Hello`. Between two silos, or between an operator and a
silo, the process that opened the connection then sends its `Proof`. The other process answers with
its own `Proof` if the first one is correct.

Invariants:

- Only handshake messages are accepted before the handshake is done.
- A silo has proved that it knows the cluster's secret, and an operator that it knows the operator's
  secret. The proof covers the nonces of both sides and both `Hello` messages.
- The process that was called reveals nothing about the secret to a process that does not know it.
- Two processes that each know a membership table talk only if the table is the same.
- If the link has certificates, the certificate of the other process is of its cluster and its role.
- The address is checked before cluster and table. A new silo at the address of a former silo says
  nothing about the former one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import NamedTuple

from millstream.runtime.env import Env
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.role import Role
from millstream.runtime.text import show_text

from .address import endpoint_of, generation_of
from .certified_name import CertifiedName
from .framing import FrameError
from .message import WIRE_VERSION, Goodbye, Hello, Message, Proof, encode_messages
from .secret import Secrets

__all__ = [
    "GREETING_BYTES_MAX",
    "NONCE_BYTES",
    "REASON_CHARS_MAX",
    "Handshake",
    "HandshakeError",
    "Identity",
    "OtherTable",
    "SiloReplaced",
    "hello_of",
    "role_in",
]

GREETING_BYTES_MAX = 64 * 1024
"""Size of the largest frame that is accepted before the handshake is done."""
NONCE_BYTES = 32
NAME_LETTERS_MAX = 200
REASON_CHARS_MAX = 500
SILO_NAME = re.compile(r"[^\s@]+:\d{1,5}@\d{1,19}")
OPENER, ACCEPTER = b"opener", b"accepter"


class Identity(NamedTuple):
    """The identity that a process claims: a silo's address or a client's id.

    `table_id` names the membership table that a silo follows, or in which a client looks for
    gateways. It is empty for a client that knows no table.
    """

    cluster: str
    address: str
    is_silo: bool
    table_id: str = ""
    is_operator: bool = False


def hello_of(identity: Identity, options: RuntimeOptions, env: Env) -> Hello:
    """Create the first message of this process on a new connection."""
    proves = identity.is_silo or identity.is_operator
    return Hello(
        version=WIRE_VERSION,
        cluster=identity.cluster,
        sender=identity.address,
        is_silo=identity.is_silo,
        frame_bytes_max=options.frame_bytes_max,
        batch_messages_max=options.batch_messages_max,
        nonce=env.random_bytes(NONCE_BYTES) if proves else b"",
        table_id=identity.table_id,
        is_operator=identity.is_operator,
    )


def role_in(hello: Hello) -> Role:
    """Return the role that the sender claims. The claim is proved once the handshake is done."""
    if hello.is_silo:
        return Role.SILO
    return Role.OPERATOR if hello.is_operator else Role.CLIENT


class HandshakeError(FrameError):
    """The other process is not one that this process accepts."""


class OtherTable(HandshakeError):
    """The other process follows another membership table."""


class SiloReplaced(HandshakeError):
    """A newer silo has the address of the expected one. This is normal after a restart."""


class Handshake:
    """This process's part of one handshake.

    Args:
        own: the `Hello` of this process.
        secrets: the secrets that this process knows.
        is_opener: True if this process opened the connection. The other process must then be a
            silo.
        expected: the expected silo. `host:port` without a generation accepts any silo there.

    Attributes:
        certified: the name in the certificate of the other process. None: the link has no
            certificates.
        other: the valid `Hello` of the other process, once it has arrived.
        is_done: True once the handshake has succeeded.
        refusal: the reason why the two processes can never talk, if there is one: another cluster,
            membership table or secret.
    """

    __slots__ = (
        "_expected",
        "_is_opener",
        "_secrets",
        "certified",
        "is_done",
        "other",
        "own",
        "refusal",
    )

    def __init__(
        self, own: Hello, secrets: Secrets, *, is_opener: bool, expected: str = ""
    ) -> None:
        self.own = own
        self._secrets = secrets
        self._is_opener = is_opener
        self._expected = expected
        self.certified: CertifiedName | None = None
        self.other: Hello | None = None
        self.is_done = False
        self.refusal: HandshakeError | None = None

    def take(self, messages: list[Message]) -> list[Message]:
        """Process a frame of the other process, and return the answers.

        Raises HandshakeError if this process does not accept the other one.
        """
        assert not self.is_done, "the handshake is already done"
        if len(messages) != 1:
            raise HandshakeError("a frame of the handshake must hold one message, first a Hello")
        message = messages[0]
        if isinstance(message, Goodbye):
            raise self._read_refusal(message.reason)
        if self.other is None:
            return self._take_hello(message)
        return self._take_proof(message)

    def _read_refusal(self, reason: str) -> HandshakeError:
        """Read the reason of a refusal. A refusal after a valid `Hello` is final."""
        error = HandshakeError(f"the peer refused: {show_text(reason, REASON_CHARS_MAX)}")
        if self.other is not None:
            self.refusal = error
        return error

    def _take_hello(self, message: Message) -> list[Message]:
        self.other = self._check(message)
        if self._least_role() is Role.CLIENT:
            self.is_done = True  # a client proves nothing, and no proof is sent to it
            return []
        return [self._proof(OPENER)] if self._is_opener else []

    def _take_proof(self, message: Message) -> list[Message]:
        theirs, ours = (ACCEPTER, OPENER) if self._is_opener else (OPENER, ACCEPTER)
        if not isinstance(message, Proof):
            raise HandshakeError(f"expected a Proof, received a {type(message).__name__}")
        if not hmac.compare_digest(self._proof(theirs).digest, message.digest):
            raise HandshakeError(self._unknown_secret())
        self.is_done = True
        return [] if self._is_opener else [self._proof(ours)]

    def _unknown_secret(self) -> str:
        cluster = repr(self.own.cluster)
        if self._least_role() is Role.OPERATOR:
            return (
                f"{self._name()} does not know the operator's secret of cluster {cluster}: use "
                "MILLSTREAM_OPERATOR_SECRET of the silos or, if they do not set it, the file "
                "millstream.operator in their membership directory"
            )
        return (
            f"{self._name()} does not know the secret of cluster {cluster}: set MILLSTREAM_SECRET "
            "to the same text at all of its silos; or, if they share a membership directory, at "
            "none, because the directory has a secret (millstream.secret)"
        )

    def _proof(self, side: bytes) -> Proof:
        """Compute the proof of one side.

        It requires the secret, and is valid on this connection only.
        """
        assert self.other is not None
        secrets = self._secrets
        secret = secrets.cluster if self._least_role() is Role.SILO else secrets.operator
        if not secret:
            raise HandshakeError("this process has no secret to prove")
        said = [self.own, self.other] if self._is_opener else [self.other, self.own]
        return Proof(hmac.digest(secret, side + encode_messages(said), hashlib.sha256))

    def _least_role(self) -> Role:
        """Return the lower role of both sides, which selects the secret.

        Silos prove the cluster's secret to each other. An operator and a silo prove the operator's
        secret.
        """
        assert self.other is not None
        return min(role_in(self.own), role_in(self.other))

    def _name(self) -> str:
        assert self.other is not None
        return show_text(self.other.sender)

    def _check(self, hello: Message) -> Hello:
        own = self.own
        if not isinstance(hello, Hello):
            raise HandshakeError(f"the first message is {type(hello).__name__}, not Hello")
        if hello.version != own.version:
            raise HandshakeError(
                f"the peer uses wire version {hello.version}, this process uses {WIRE_VERSION}"
            )
        if self._is_opener and not hello.is_silo:
            raise HandshakeError(f"expected a silo, found the client {show_text(hello.sender)}")
        check_form(hello)
        if "@" in self._expected and self._expected != hello.sender:
            raise another(self._expected, hello.sender)
        self.refusal = why_apart(own, hello) or why_uncertified(hello, self.certified)
        if self.refusal is not None:
            raise self.refusal
        proves = min(role_in(hello), role_in(own)) > Role.CLIENT
        if proves and len(hello.nonce) != NONCE_BYTES:
            raise HandshakeError(
                f"the nonce of a proof must have {NONCE_BYTES} random bytes, not {len(hello.nonce)}"
            )
        return hello


def why_apart(own: Hello, other: Hello) -> HandshakeError | None:
    """Return the reason why two processes can never talk: another cluster or membership table.
    None: they can."""
    if other.cluster != own.cluster:
        advice = "" if own.is_silo else ": pass the name of that cluster, or another gateway"
        text = f"{show_text(other.sender)} is in cluster {show_text(other.cluster)!r}, not "
        return HandshakeError(f"{text}{own.cluster!r}{advice}")
    has_table = own.table_id and other.table_id
    if ((own.is_silo and other.is_silo) or has_table) and other.table_id != own.table_id:
        advice = "" if own.is_silo else ": pass the table of that silo as connect(membership=...)"
        text = (
            f"{show_text(other.sender)} follows membership table {show_text(other.table_id)}, not "
        )
        return OtherTable(f"{text}{own.table_id}{advice}")
    return None


def why_uncertified(hello: Hello, certified: CertifiedName | None) -> HandshakeError | None:
    """Return the reason why a certificate does not permit the claims of a process. None: it does,
    or there is no certificate."""
    if certified is None:
        return None
    if certified.cluster != hello.cluster:
        return HandshakeError(
            f"{show_text(hello.sender)} is in cluster {show_text(hello.cluster)!r}, and has a "
            f"certificate of cluster {show_text(certified.cluster)!r}: give it one of its cluster"
        )
    is_silo = certified.role is Role.SILO
    if is_silo is not hello.is_silo:
        has, needs = ("silo", "client") if is_silo else ("client", "silo")
        return HandshakeError(
            f"{show_text(hello.sender)} is a {needs} and has the certificate of a {has}: give it "
            f"one of a {needs} (millstream certs issue)"
        )
    return None


def another(expected: str, found: str) -> HandshakeError:
    """Return the error for a silo that is not the expected one."""
    is_same_place = endpoint_of(found) == endpoint_of(expected)
    if is_same_place and generation_of(found) > generation_of(expected):
        return SiloReplaced(f"{expected} is gone: {found} was started in its place")
    return HandshakeError(f"expected {expected}, found {show_text(found)}")


def check_form(hello: Hello) -> None:
    """Raise HandshakeError for names and numbers that no valid process sends."""
    name = hello.sender
    if not name or len(name) > NAME_LETTERS_MAX or not name.isprintable():
        raise HandshakeError(
            f"{show_text(name)!r} is not a name of 1 to {NAME_LETTERS_MAX} printable characters"
        )
    if hello.is_silo and not SILO_NAME.fullmatch(name):
        raise HandshakeError(f"{show_text(name)!r} is not the name of a silo, host:port@generation")
    if hello.frame_bytes_max < 1 or hello.batch_messages_max < 1:
        raise HandshakeError(
            "the peer allows no frames: frame_bytes_max or batch_messages_max is 0"
        )
