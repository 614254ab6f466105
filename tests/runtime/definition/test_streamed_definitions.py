"""Methods with streamed results: what a class may write, and what is refused with a remedy."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator

import pytest

from millstream.runtime import (
    Contract,
    DefinitionError,
    Grain,
    Observer,
    Role,
    always_interleave,
    one_way,
    open_to,
    read_only,
    shielded,
    timeout,
)


def plain() -> object:
    class Bad(Grain):
        def rows(self) -> AsyncGenerator[int, None]:
            raise NotImplementedError

    return Bad


def without_yield() -> object:
    class Bad(Grain):
        async def rows(self) -> AsyncGenerator[int, None]:
            raise NotImplementedError

    return Bad


def sync_generator() -> object:
    class Bad(Grain):
        def rows(self) -> Generator[int, None, None]:
            yield 1

    return Bad


def iterator() -> object:
    class Bad(Grain):
        async def rows(self) -> AsyncIterator[int]:
            yield 1

    return Bad


def without_annotation() -> object:
    class Bad(Grain):
        async def rows(self):  # type: ignore[no-untyped-def]
            yield 1

    return Bad


def with_sent_values() -> object:
    class Bad(Grain):
        async def rows(self) -> AsyncGenerator[int, str]:
            yield 1

    return Bad


def without_item_type() -> object:
    class Bad(Grain):
        async def rows(self) -> AsyncGenerator:  # type: ignore[type-arg]
            yield 1

    return Bad


def with_unknown_items() -> object:
    class Bad(Grain):
        async def rows(self) -> AsyncGenerator[object, None]:
            yield 1

    return Bad


def contract_with_async() -> object:
    class Bad(Contract):
        async def rows(self) -> AsyncGenerator[int, None]:
            raise NotImplementedError

    return Bad


def contract_without_generator() -> object:
    class Bad(Contract):
        def rows(self) -> int:
            raise NotImplementedError

    return Bad


def observer() -> object:
    class Bad(Observer):
        async def rows(self) -> AsyncGenerator[int, None]:
            yield 1

    return Bad


REFUSED: list[tuple[Callable[[], object], str]] = [
    (plain, r"write `async def rows\(self\) -> AsyncGenerator\[T, None\]: yield ...`"),
    (without_yield, r"write `async def rows\(self\) -> AsyncGenerator\[T, None\]: yield ...`"),
    (sync_generator, r"write `async def rows\(self\) -> AsyncGenerator\[T, None\]: yield ...`"),
    (iterator, r"AsyncIterator\[int\]: write `AsyncGenerator\[T, None\]`"),
    (without_annotation, "the result needs an annotation"),
    (with_sent_values, r"write `AsyncGenerator\[T, None\]`"),
    (without_item_type, r"write `AsyncGenerator\[T, None\]`"),
    (with_unknown_items, "Bad.rows: item"),
    (contract_with_async, r"write `def rows\(self\) -> AsyncGenerator\[T, None\]: ...`"),
    (contract_without_generator, "must be `async def`"),
    (observer, "call the observer once for each item"),
]


@pytest.mark.parametrize(("define", "text"), REFUSED, ids=[fn.__name__ for fn, _ in REFUSED])
def test_what_cannot_be_streamed_is_refused(define: Callable[[], object], text: str) -> None:
    with pytest.raises(DefinitionError, match=text) as caught:
        define()
    assert "test_streamed_definitions.py:" in str(caught.value)


@pytest.mark.parametrize("mark", [one_way, shielded, read_only, always_interleave])
def test_marks_of_turns_are_refused(mark: Callable[..., object]) -> None:
    def define() -> object:
        class Bad(Grain):
            @mark
            async def rows(self) -> AsyncGenerator[int, None]:
                yield 1

        return Bad

    with pytest.raises(DefinitionError, match=rf"cannot have `@{mark.__name__}`: .*remove the"):
        define()


def test_a_deadline_and_a_role_are_kept() -> None:
    class Sheet(Grain):
        @timeout(5.0)
        @open_to(Role.OPERATOR)
        async def rows(self) -> AsyncGenerator[int, None]:
            yield 1

    spec = Sheet.__millstream_type__.specs["rows"]
    assert spec.is_streamed
    assert spec.timeout_s == 5.0 and spec.open_to is Role.OPERATOR


def test_a_subclass_inherits_and_overrides_a_generator() -> None:
    class Base(Grain):
        async def rows(self) -> AsyncGenerator[int, None]:
            yield 1

    class Heir(Base):
        pass

    class Other(Base):
        async def rows(self) -> AsyncGenerator[int, None]:
            yield 2

    for cls in (Heir, Other):
        assert cls.__millstream_type__.specs["rows"].is_streamed


def test_a_grain_that_inherits_the_body_of_a_contract_is_refused() -> None:
    class SheetCalls(Contract):
        def rows(self) -> AsyncGenerator[int, None]:
            raise NotImplementedError

    with pytest.raises(DefinitionError, match="inherits `rows` from the contract SheetCalls"):

        class Sheet(SheetCalls, Grain):
            pass
