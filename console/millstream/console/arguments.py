"""The types of arguments: each function reads one, or says what is wrong with it."""

from __future__ import annotations

import argparse

from millstream.runtime import Address
from millstream.runtime.extending import shown_value

__all__ = ["address", "part_name", "positive", "utf8"]


def address(given: str) -> str:
    """`host:port`."""
    try:
        Address.parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return given


def utf8(given: str) -> str:
    """The messages that can be sent."""
    try:
        given.encode()
    except UnicodeEncodeError:
        what = f"{shown_value(given)} is no text that UTF-8 can say"
        raise argparse.ArgumentTypeError(what) from None
    return given


def part_name(given: str) -> str:
    """The name of a namespace, a stream provider or another part."""
    if not given or "/" in given:
        raise argparse.ArgumentTypeError(f"{shown_value(given)}: a name is not empty and has no /")
    return utf8(given)


def positive(given: str) -> int:
    """A whole number above 0."""
    value = int(given)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above 0")
    return value
