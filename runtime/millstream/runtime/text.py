"""Text that others chose, such as names and keys: can it be sent, how large is it, how is it shown.

Invariants: what passed `check_text` can be sent and stored as UTF-8; what `show_text` returns is
one line of a bounded length, so no key forges or floods a log.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "SHOWN_CHARS_MAX",
    "check_text",
    "escape_text",
    "is_text",
    "show_text",
    "show_value",
    "text_bytes",
]

SHOWN_CHARS_MAX = 200
"""Characters of a name or key in a message or log line; of a longer one the end is cut."""


def check_text(what: str, text: object) -> None:
    """Raise TypeError for what is no `str`, or cannot be sent and stored as UTF-8.

    A `str` that is ASCII or printable passes: no need to ask, where that counts.
    """
    if type(text) is not str:
        raise TypeError(
            f"{what} is a str, not {show_value(text)}: convert it, for example by str(...)"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"{what}, {show_text(repr(text))}, has a lone surrogate at position {error.start}, "
            "which UTF-8 cannot carry: decode it anew with errors='replace', or leave that out"
        ) from None


def is_text(value: str) -> bool:
    """Can it be sent and stored as UTF-8? Not with a lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_bytes(texts: Iterable[str]) -> int:
    """Bytes of all of them in UTF-8. Never raises, so that what cannot be sent has a size, too."""
    text = "".join(texts)
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def show_text(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """The text in one line: control characters escaped, and cut after `chars_max` characters."""
    if len(text) > chars_max:
        text = f"{text[:chars_max]}... ({len(text)} characters)"
    return escape_text(text)


def escape_text(text: str, keep: str = "") -> str:
    """The text with its control characters escaped, but for those to keep."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def show_value(value: object, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """A value that others gave, as `show_text` does it with a text; never raises."""
    try:
        return show_text(repr(value), chars_max)
    except Exception:  # thousands of digits, or a repr that fails
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"what cannot be shown ({type(value).__name__})"
