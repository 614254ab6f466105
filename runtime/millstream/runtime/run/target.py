"""The function that makes a program's silo: found by name, called, and looked at.

Owns: `load_target`, `make_silo`. Invariant: whatever is wrong with what a person wrote is told in
one line that names it; an error inside of the person's own code keeps its traceback.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from millstream.runtime.errors import ConfigError
from millstream.runtime.silo.silo import Silo

from .import_check import importing

__all__ = ["load_target", "make_silo"]

Factory = Callable[..., Any]


def load_target(text: str) -> Factory:
    """The function that `package.module:function` names; the module is imported.

    Raises ConfigError (not of this form, no such module or name, not a function), and what the
    module itself raises.
    """
    module_name, colon, name = text.partition(":")
    if not (colon and name and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"{text!r} names no function: write package.module:function")
    found: Any = _import(module_name, text)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{text!r}: module {module_name!r} has no {name!r}{_offer(found)}")
        found = getattr(found, part)
    if isinstance(found, Silo):
        raise ConfigError(f"{text!r} is a Silo: name a function that makes one")
    if not callable(found):
        raise ConfigError(f"{text!r} is {type(found).__name__}, not a function that makes a Silo")
    factory: Factory = found
    return factory


def _import(name: str, text: str) -> Any:
    with importing(text):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # One that it imports in turn is the module's own error.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"{text!r}: no module {error.name!r} in {os.getcwd()}"
                " or on PYTHONPATH: start in its directory, or set PYTHONPATH"
            ) from None


def _offer(module: Any) -> str:
    """The functions of a module that somebody may have meant."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return f"; its functions: {', '.join(sorted(names)[:10])}" if names else ""


def make_silo(text: str, factory: Factory, options: Mapping[str, Any]) -> Silo:
    """Call the function with the options as keyword arguments; it returns a Silo.

    Raises ConfigError (it does not take one of them, or returns something else), and what it
    raises itself.
    """
    _check_options(text, factory, options)
    made = factory(**options)
    if inspect.iscoroutine(made):
        made.close()
        raise ConfigError(f"{text!r} is async: name a plain function that returns a Silo")
    if not isinstance(made, Silo):
        raise ConfigError(f"{text!r} returned {type(made).__name__}, not a Silo")
    return made


def _check_options(text: str, factory: Factory, options: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        return  # nothing to compare with: the call itself tells
    try:
        signature.bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "nothing"
        raise ConfigError(f"{text!r} takes {signature}, and was given {given}: {error}") from None
