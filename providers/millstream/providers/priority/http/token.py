"""The token that every request must carry.

Owns the sources of the token and its check.

Invariants: the token is never logged, shown or part of an error. The comparison takes the same time
for every input. Only its user may read a file with the token.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from millstream.runtime import ConfigError
from millstream.runtime.extending import show_text

__all__ = ["TOKEN_VARIABLE", "Token", "token_of"]

TOKEN_VARIABLE = "MILLSTREAM_PQ_TOKEN"
"""The environment variable from which `PriorityApi` reads its token by default."""
LETTERS_MIN = 16
LETTERS_MAX = 1_024
SCHEME = "bearer "


class Token:
    """The token that requests must carry, as a digest."""

    __slots__ = ("_digest",)

    def __init__(self, text: str, where: str) -> None:
        size = len(text)
        is_plain = text.isascii() and text.isprintable() and " " not in text
        if not is_plain or not LETTERS_MIN <= size <= LETTERS_MAX:
            raise ConfigError(
                f"the token of {where} has {size} characters; it must have {LETTERS_MIN} to "
                f"{LETTERS_MAX} ASCII letters, digits or signs, without spaces"
            )
        self._digest = sha256(text.encode()).digest()

    def __repr__(self) -> str:
        return "<token>"

    def is_in(self, headers: Sequence[str]) -> bool:
        """Whether the `Authorization` headers of a request contain the token and nothing else."""
        if len(headers) != 1 or headers[0][: len(SCHEME)].lower() != SCHEME:
            return False
        given = headers[0][len(SCHEME) :].strip().encode(errors="surrogateescape")
        return hmac.compare_digest(sha256(given).digest(), self._digest)


def token_of(given: str | Path | None, environ: Mapping[str, str]) -> Token:
    """The token from the argument, from a file, or from the environment.

    Raises:
        ConfigError: There is no token, it is not valid, or other users may read its file.
    """
    if isinstance(given, Path):
        return Token(in_file(given), show_text(repr(str(given))))
    if given is not None:
        return Token(given, "PriorityApi(token=...)")
    if text := environ.get(TOKEN_VARIABLE, ""):
        return Token(text, TOKEN_VARIABLE)
    raise ConfigError(
        f"the HTTP API needs a token: set {TOKEN_VARIABLE}, or give the path of a file that has it"
    )


def in_file(path: Path) -> str:
    """The content of a file that only its user may read."""
    try:
        found = path.stat()
        text = path.read_bytes()[: LETTERS_MAX + 2].decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file cannot be read: {error}") from error
    mode = stat.S_IMODE(found.st_mode)
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"{path} has a token, and other users have access (mode {mode:04o}): chmod 600"
        )
    return text.strip()
