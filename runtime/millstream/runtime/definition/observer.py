"""The base class of observers: objects of a client that grains call.

This module owns `Observer`. The analysis of its classes is that of grains (`grain_type`). The
package `client` keeps the objects, and `cluster/clients.py` the way to their client.
"""

from __future__ import annotations

from typing import ClassVar

from .grain import Contract

__all__ = ["Observer"]


class Observer(Contract):
    """The base class of observers: objects of a client that grains call.

    Public `async def` methods can be called. Their parameters and results need annotations, and the
    marks of methods such as `one_way`, `timeout` and `always_interleave` work as in grains. All
    other attributes are local to the client.

    ```python
    class Viewer(Observer):
        async def goal(self, scorer: str) -> None:
            print(scorer)

    async with client.observe(Viewer()) as viewer:
        await client.grain(Match, "final").watch(viewer)
    ```

    `viewer` is a reference. It may be an argument of calls, may be kept in an attribute or a state
    of a grain, and may be sent on. An observer handles one call at a time. Methods with the mark
    `always_interleave` may start at any time.

    A class of observers has no states, timers or handlers. A grain can be an observer, too: its
    class derives from Grain and from the class of observers, and it passes `self`.

    Raises:
        DefinitionError: The subclass cannot be an observer as it is written. Raised when the class
            is defined, with file and line.
    """

    __millstream_observer__: ClassVar[bool] = True
    __millstream_root__ = True
