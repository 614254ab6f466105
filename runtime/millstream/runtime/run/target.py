"""The function that makes a program's silo: it is found by name, called, and its result is checked.

This module owns `load_target` and `make_silo`. A mistake in the user's text or factory gives an
error of one line that names it. An error inside of the user's code keeps its traceback.
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
    """Return the function that `package.module:function` names, after importing the module.

    Raises ConfigError (wrong form, no such module or name, not a function), and errors of the
    module.
    """
    module_name, colon, name = text.partition(":")
    if not (colon and name and all(part.isidentifier() for part in module_name.split("."))):
        raise ConfigError(f"{text!r} is not the name of a function: write package.module:function")
    found: Any = _import(module_name, text)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{text!r}: module {module_name!r} has no {name!r}{_offer(found)}")
        found = getattr(found, part)
    if isinstance(found, Silo):
        raise ConfigError(f"{text!r} is a Silo: name a function that returns a Silo")
    if not callable(found):
        raise ConfigError(f"{text!r} is {type(found).__name__}, not a function that returns a Silo")
    factory: Factory = found
    return factory


def _import(name: str, text: str) -> Any:
    with importing(text):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A missing import inside of the module is the module's own error.
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(
                f"{text!r}: no module {error.name!r} in {os.getcwd()}"
                " or on PYTHONPATH: run the command in the module's directory, or set PYTHONPATH"
            ) from None


def _offer(module: Any) -> str:
    """Return the functions of a module, as candidates for a wrong name."""
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    return f"; its functions: {', '.join(sorted(names)[:10])}" if names else ""


def make_silo(text: str, factory: Factory, options: Mapping[str, Any]) -> Silo:
    """Call the function with the options as keyword arguments. It returns a Silo.

    Raises ConfigError (it does not take an option, or returns something else), and its own errors.
    """
    _check_options(text, factory, options)
    try:
        made = factory(**options)
    except TypeError as error:
        twice = [name for name in options if str(error).endswith(f"keyword argument {name!r}")]
        if not twice or "multiple values" not in str(error):
            raise
        raise ConfigError(
            f"{text!r} sets {twice[0]!r} itself, and passes on the option as well ({error}): write "
            f"Silo(**{{{twice[0]!r}: ..., **options}}), so that the option wins"
        ) from None
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
        return  # no signature to compare with: the call itself raises
    try:
        signature.bind(**options)
    except TypeError as error:
        given = ", ".join(options) or "nothing"
        raise ConfigError(f"{text!r} takes {signature}, and was given {given}: {error}") from None
