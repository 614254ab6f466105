"""Which keys an implicit subscription has: patterns with wildcards.

Owns: their form, and matching them. Pure. Invariant: a pattern is text that every silo can go by,
whichever grains it hosts, and that is matched in bounded time, whatever the key.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

__all__ = ["PATTERN_CHARS_MAX", "matches", "wrong_pattern"]

PATTERN_CHARS_MAX = 200
COMPILED_MAX = 1_000


def wrong_pattern(pattern: object) -> str:
    """What is wrong with a pattern; empty: nothing."""
    if not isinstance(pattern, str):
        return f"key is {pattern!r}: write a pattern, such as `key='eu-*'`"
    if not 1 <= len(pattern) <= PATTERN_CHARS_MAX:
        return f"key has {len(pattern)} characters, not 1 to {PATTERN_CHARS_MAX}"
    return ""


def matches(pattern: str, key: str) -> bool:
    """Is it the key of such a stream? `*`: any characters, `?`: one, `[ab]`, `[!ab]`: one of these,
    none of these; letters as they are written. Empty: every key."""
    return not pattern or _compile(pattern).match(key) is not None


@lru_cache(maxsize=COMPILED_MAX)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))
