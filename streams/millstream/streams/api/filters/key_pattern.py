"""The keys of an implicit subscription: patterns with wildcards.

Owns: the form of patterns, and matching. Pure. Invariants: a pattern is text that every silo can
use, whichever grains it hosts. Matching takes bounded time for every key.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

__all__ = ["PATTERN_CHARS_MAX", "matches", "wrong_pattern"]

PATTERN_CHARS_MAX = 200
COMPILED_MAX = 1_000


def wrong_pattern(pattern: object) -> str:
    """The reason why a pattern is not valid, or "" if it is valid."""
    if not isinstance(pattern, str):
        return f"key is {pattern!r}: write a pattern, such as `key='eu-*'`"
    if not 1 <= len(pattern) <= PATTERN_CHARS_MAX:
        return f"key has {len(pattern)} characters; it must have 1 to {PATTERN_CHARS_MAX}"
    return ""


def matches(pattern: str, key: str) -> bool:
    """Whether the pattern matches the key. An empty pattern matches every key.

    `*` stands for any characters and `?` for one. `[ab]` stands for one of these characters, and
    `[!ab]` for any other one. Case matters.
    """
    return not pattern or _compile(pattern).match(key) is not None


@lru_cache(maxsize=COMPILED_MAX)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
