"""Texts that other programs chose, such as names and keys: checks, sizes, and how they are shown.

A text that passed `check_text` can be sent and stored as UTF-8. The result of `show_text` is one
line of bounded length, so no key can forge or flood a log.
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
"""Characters of a name or key in a message or log line. The end of a longer one is cut."""


def check_text(what: str, text: object) -> None:
    """Check that a value is a `str` that can be sent and stored as UTF-8.

    A `str` that is ASCII or printable always passes. Fast code need not call the function for it.

    Args:
        what: The name of the value in the error, such as `the key of a grain`.
        text: The value.

    Raises:
        TypeError: The value is no `str`, or has a lone surrogate.
    """
    if type(text) is not str:
        raise TypeError(
            f"{what} must be a str, not {show_value(text)}: convert it, for example by str(...)"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"{what}, {show_text(repr(text))}, has a lone surrogate at position {error.start}, "
            "which UTF-8 cannot encode: remove it, or decode the text again with errors='replace'"
        ) from None


def is_text(value: str) -> bool:
    """Return whether a text can be sent and stored as UTF-8: it has no lone surrogate."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_bytes(texts: Iterable[str]) -> int:
    """Return the total size of texts in UTF-8, in bytes.

    Never raises: a lone surrogate counts as three bytes.

    Args:
        texts: The texts.
    """
    text = "".join(texts)
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def show_text(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Return a text as one line of bounded length, for messages and log lines.

    Control characters are escaped. A text that is cut ends with its length.

    Args:
        text: The text, such as a name or key that another program chose.
        chars_max: Characters that are shown, before escaping.
    """
    if len(text) > chars_max:
        text = f"{text[:chars_max]}... ({len(text)} characters)"
    return escape_text(text)


def escape_text(text: str, keep: str = "") -> str:
    """Return the text with its control characters escaped, except for the characters in `keep`."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )


def show_value(value: object, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Return the `repr` of any value as one line of bounded length. Never raises.

    A value whose `repr` fails is shown by its type; an integer with too many digits is shown by its
    number of bits.

    Args:
        value: The value, such as an argument that another program gave.
        chars_max: Characters that are shown, before escaping.
    """
    try:
        return show_text(repr(value), chars_max)
    except Exception:  # an int of thousands of digits, or a repr that fails
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a value that cannot be shown ({type(value).__name__})"
