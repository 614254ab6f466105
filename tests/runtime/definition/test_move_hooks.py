"""The hooks of a move: what a class may write, and what is refused with a remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from millstream.runtime import Contract, DefinitionError, Grain


def only_one() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> int:
            return 1

    return Bad


def only_the_other() -> object:
    class Bad(Grain):
        def on_rehydrate(self, value: int) -> None: ...

    return Bad


def with_async() -> object:
    class Bad(Grain):
        async def on_dehydrate(self) -> int:
            return 1

        def on_rehydrate(self, value: int) -> None: ...

    return Bad


def with_async_rehydrate() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> int:
            return 1

        async def on_rehydrate(self, value: int) -> None: ...

    return Bad


def with_yield() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> Iterator[int]:
            yield 1

        def on_rehydrate(self, value: Iterator[int]) -> None: ...

    return Bad


def with_an_argument() -> object:
    class Bad(Grain):
        def on_dehydrate(self, writer: object) -> int:
            return 1

        def on_rehydrate(self, value: int) -> None: ...

    return Bad


def without_the_argument() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> int:
            return 1

        def on_rehydrate(self) -> None: ...

    return Bad


def with_two_types() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> int:
            return 1

        def on_rehydrate(self, value: str) -> None: ...

    return Bad


def without_annotation() -> object:
    class Bad(Grain):
        def on_dehydrate(self):  # type: ignore[no-untyped-def]
            return 1

        def on_rehydrate(self, value: int) -> None: ...

    return Bad


def with_an_unknown_type() -> object:
    class Bad(Grain):
        def on_dehydrate(self) -> object:
            return 1

        def on_rehydrate(self, value: object) -> None: ...

    return Bad


def with_a_value() -> object:
    class Bad(Grain):
        on_dehydrate = 1

        def on_rehydrate(self, value: int) -> None: ...

    return Bad


DEHYDRATE = r"on_dehydrate: .*: write `def on_dehydrate\(self\) -> T`"
REHYDRATE = r"on_rehydrate: .*: write `def on_rehydrate\(self, value: T\) -> None`"
REFUSED: list[tuple[Callable[[], object], str]] = [
    (only_one, REHYDRATE),
    (only_the_other, DEHYDRATE),
    (with_async, DEHYDRATE),
    (with_async_rehydrate, REHYDRATE),
    (with_yield, DEHYDRATE),
    (with_an_argument, DEHYDRATE),
    (without_the_argument, REHYDRATE),
    (with_two_types, "takes `str`, and on_dehydrate returns `int`: annotate both with the same"),
    (without_annotation, "on_dehydrate: the value needs an annotation"),
    (with_an_unknown_type, "on_dehydrate: value"),
    (with_a_value, DEHYDRATE),
]


@pytest.mark.parametrize(("define", "text"), REFUSED, ids=[fn.__name__ for fn, _ in REFUSED])
def test_hooks_that_do_not_fit_are_refused(define: Callable[[], object], text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        define()
    assert "test_move_hooks.py:" in str(caught.value)


def test_hooks_cannot_be_called_through_a_reference_and_are_inherited() -> None:
    class Base(Grain):
        def on_dehydrate(self) -> int:
            return 1

        def on_rehydrate(self, value: int) -> None: ...

    class Heir(Base):
        def on_dehydrate(self) -> int:
            return 2

    for cls in (Base, Heir):
        grain_type = cls.__millstream_type__
        assert grain_type.move_hooks is not None
        assert not grain_type.specs


def test_a_contract_has_no_hooks() -> None:
    class Calls(Contract):
        def on_dehydrate(self) -> int:
            return 1

    assert Calls.__millstream_type__.move_hooks is None


class Board(Grain):
    def on_dehydrate(self) -> Luggage:
        return Luggage()

    def on_rehydrate(self, value: Luggage) -> None: ...


@dataclass
class Luggage:
    x: int = 0


def test_a_name_that_is_defined_later_in_the_module_is_found_when_a_silo_hosts_the_class() -> None:
    Board.__millstream_type__.resolve()
    hooks = Board.__millstream_type__.move_hooks
    assert hooks is not None
    hooks.rehydrate(Board(), hooks.dehydrate(Board()), None)
