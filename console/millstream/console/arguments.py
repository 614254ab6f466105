"""The types of arguments: each function parses one type, and names the fault in an error."""

from __future__ import annotations

import argparse
import math

from millstream.runtime import Address
from millstream.runtime.extending import show_value

__all__ = ["address", "part_name", "port", "positive", "seconds", "some_seconds", "utf8", "whole"]

PORT_MAX = 65_535


def address(given: str) -> str:
    """Parse `host:port`."""
    try:
        Address.parse(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return given


def utf8(given: str) -> str:
    """Parse text that UTF-8 can encode."""
    try:
        given.encode()
    except UnicodeEncodeError:
        what = f"{show_value(given)} cannot be encoded as UTF-8"
        raise argparse.ArgumentTypeError(what) from None
    return given


def part_name(given: str) -> str:
    """Parse the name of a namespace, a stream provider or another part."""
    if not given or "/" in given:
        raise argparse.ArgumentTypeError(
            f"{show_value(given)}: a name must not be empty or contain /"
        )
    return utf8(given)


def positive(given: str) -> int:
    """Parse a whole number above 0."""
    value = int(given)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} must be above 0")
    return value


def whole(given: str) -> int:
    """Parse a whole number, 0 or more."""
    value = int(given)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} must be 0 or more")
    return value


def port(given: str) -> int:
    """Parse a port to listen on; 0 selects a free one."""
    value = whole(given)
    if value > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{value} must be at most {PORT_MAX}")
    return value


def seconds(given: str) -> float:
    """Parse a time in seconds, 0 or more."""
    value = float(given)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{given} must be 0 seconds or more, and finite")
    return value


def some_seconds(given: str) -> float:
    """Parse a time in seconds above 0."""
    value = seconds(given)
    if not value:
        raise argparse.ArgumentTypeError("the time must be above 0 seconds")
    return value
