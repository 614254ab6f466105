"""Errors across the wire."""

from __future__ import annotations

import asyncio
import builtins
import datetime as dt
import enum
import errno
import gc
import importlib
import os
import sys
import weakref
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import CallCycle, CallTimeout, GrainError, NotRemote, Overloaded
from millstream.runtime.codec import failures
from millstream.runtime.codec.failure_values import pack, unpack
from millstream.runtime.codec.failures import (
    KnownErrors,
    WireError,
    describe,
    isolate_error,
    rebuild,
    source_name,
)

msgpack: Any = importlib.import_module("msgpack")  # has no type information

PLACE = "Airport/BOS.add"


class NotFound(Exception):
    pass


class Reshaped(ValueError):
    def __init__(self, *, code: int) -> None:
        self.code = code
        super().__init__(f"code {code}")
        made.append(code)


class DiskFull(OSError):
    def __init__(self, volume: str) -> None:
        super().__init__(errno.ENOSPC, "no space", volume)
        self.volume = volume


@dataclass(frozen=True)
class FrozenError(Exception):
    code: int


class Picky(Exception):
    def __new__(cls, *args: object) -> Picky:
        if not args or args[0] != "secret":
            raise RuntimeError("not like this")
        return super().__new__(cls, *args)


class Loud(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Weird(Exception):
    def __reduce__(self) -> Any:
        raise RuntimeError("no pickle")


class Batch(ExceptionGroup[Exception]):
    shard = 0


class Shop:
    class Closed(Exception):
        pass


class Color(enum.Enum):
    RED = "red"


made: list[int] = []

HERE = KnownErrors([sys.modules[__name__]])
NOWHERE = KnownErrors([])


def caught(error: Exception) -> Exception:
    """Raise the error in a function of this file, and return it."""
    try:
        raise error
    except Exception as raised:
        return raised


KNOWN: list[Exception] = [
    ValueError("bad", 3),
    KeyError(("a", 1)),
    FileNotFoundError(2, "No such file", "x.txt"),
    OSError(1, "two files", "a", None, "b"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ImportError("no module", name="m", path="p"),
    StopAsyncIteration(5),
    TimeoutError(),
    NotFound("id", UUID(int=3), Decimal("1.5"), dt.datetime(2026, 1, 1), {1, 2}, (1, [2])),
    NotFound(2**70, b"x", None, {"k": (1,)}),
    Shop.Closed("sunday"),
    FrozenError(4),
    Weird("w"),
    CallCycle("A", "B", "A"),
    CallTimeout("after 5 s"),
    GrainError("app.Lost", "gone"),
    NotRemote("no"),
    Overloaded("Airport/BOS", "mailbox_max", 10),
]


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_known_error_is_rebuilt_with_arguments_and_attributes(error: Exception) -> None:
    back = isolate_error(caught(error), HERE, PLACE)
    assert back is not error
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    theirs = {name: value for name, value in vars(back).items() if name != "__notes__"}
    assert theirs == vars(error)
    for name in ("errno", "filename", "filename2", "object", "reason", "name", "path", "value"):
        assert getattr(back, name, None) == getattr(error, name, None), name


def test_error_is_rebuilt_without_running_its_init() -> None:
    error = Reshaped(code=4)
    made.clear()
    back = isolate_error(error, HERE, PLACE)
    assert made == []
    assert isinstance(back, Reshaped)
    assert (back.code, back.args) == (4, ("code 4",))


def test_subclass_of_os_error_keeps_errno_and_filename() -> None:
    back = isolate_error(DiskFull("/data"), HERE, PLACE)
    assert isinstance(back, DiskFull)
    assert (back.errno, back.filename, back.volume) == (errno.ENOSPC, "/data", "/data")


def test_unknown_type_arrives_as_grain_error_with_name_and_message() -> None:
    back = isolate_error(NotFound("id 3"), NOWHERE, PLACE)
    assert type(back) is GrainError
    assert back.type_name == f"{__name__}.NotFound"
    assert back.message == "id 3"


@pytest.mark.parametrize(
    "error", [NotFound(object()), Picky("secret", {1: object()}), NotFound([Color.RED, dataclass])]
)
def test_arguments_that_cannot_be_sent_make_a_grain_error(error: Exception) -> None:
    assert type(isolate_error(error, HERE, PLACE)) is GrainError


def test_type_that_refuses_to_be_made_makes_a_grain_error() -> None:
    error = Picky("secret")
    error.args = ("other",)
    assert type(isolate_error(error, HERE, PLACE)) is GrainError


def test_attribute_that_cannot_be_sent_is_left_out_with_a_note() -> None:
    error = NotFound("x")
    error.lock, error.code = asyncio.Lock(), 5  # type: ignore[attr-defined]
    back = isolate_error(error, HERE, PLACE)
    assert back.code == 5  # type: ignore[attr-defined]
    assert not hasattr(back, "lock")
    assert "attribute `lock` of type `Lock` was not sent" in back.__notes__


def test_message_that_raises_does_not_hide_the_error() -> None:
    assert type(isolate_error(caught(Loud("x")), HERE, PLACE)) is Loud
    back = isolate_error(caught(Loud("x")), NOWHERE, PLACE)
    assert isinstance(back, GrainError)
    assert back.message == "<the text of the error raised RuntimeError>"


def test_notes_travel_and_the_traceback_is_the_last_note() -> None:
    error = caught(ValueError("bad"))
    error.add_note("while adding")
    back = isolate_error(error, HERE, PLACE)
    assert back.__notes__[0] == "while adding"
    assert back.__notes__[-1].startswith(f"raised in {PLACE}:\nTraceback")
    assert "in caught" in back.__notes__[-1]
    assert back.__notes__[-1].count("while adding") == 0
    assert back.__traceback__ is None
    assert back.__cause__ is None


def test_traceback_leaves_out_the_frames_of_the_runtime() -> None:
    def raising() -> None:
        raise ValueError("theirs")

    def through(path: str) -> Exception:
        code = compile("def call(fn):\n    fn()\n", path, "exec")
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        try:
            namespace["call"](raising)
        except ValueError as error:
            return error
        raise AssertionError

    assert "in call" in isolate_error(through("/app/x.py"), HERE, PLACE).__notes__[-1]
    note = isolate_error(through(failures.__file__), HERE, PLACE).__notes__[-1]
    assert "in call" not in note
    assert "in raising" in note


def test_cause_is_told_in_the_traceback() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        note = isolate_error(error, HERE, PLACE).__notes__[-1]
    assert "KeyError: 'inner'" in note
    assert "direct cause" in note


def test_second_hop_keeps_the_first_traceback() -> None:
    first = isolate_error(caught(NotFound("x")), HERE, "Airport/BOS.add")
    second = isolate_error(caught(first), HERE, "Hub/EU.add")
    headings = [note.splitlines()[0] for note in second.__notes__]
    assert headings == ["raised in Airport/BOS.add:", "raised in Hub/EU.add:"]


def test_text_is_bounded_and_without_lone_surrogates() -> None:
    wire = msgspec.msgpack.decode(
        describe(ValueError("\ud800" + "x" * 100_000), PLACE), type=WireError
    )
    assert len(wire.message) <= failures.TEXT_CHARS_MAX + 3
    assert rebuild(describe(NotFound("a\ud800"), PLACE), NOWHERE).args[0].endswith("a\\ud800")


def test_a_long_message_keeps_its_type_and_its_end() -> None:
    long = "x" * 5_000_000 + "the end"
    data = describe(caught(NotFound(long)), PLACE)
    assert len(data) < 200_000
    back = rebuild(data, HERE)
    assert type(back) is NotFound
    assert back.args == ("..." + long[-failures.TEXT_CHARS_MAX :],)
    just = "y" * failures.TEXT_CHARS_MAX
    assert isolate_error(NotFound(just), HERE, PLACE).args == (just,)


def test_long_values_in_an_error_are_cut_and_large_ones_left_out() -> None:
    error: Any = NotFound("x", [b"b" * 100_000], {"k": "t" * 100_000})
    error.text = "a" * 100_000
    error.table = list(range(100_000))
    error.kept = 5
    back: Any = isolate_error(error, HERE, PLACE)
    assert type(back) is NotFound
    assert back.args[1] == [b"..." + b"b" * failures.TEXT_CHARS_MAX]
    assert back.args[2] == {"k": "..." + "t" * failures.TEXT_CHARS_MAX}
    found = {name: value for name, value in vars(back).items() if name != "__notes__"}
    assert found == {"text": "..." + "a" * failures.TEXT_CHARS_MAX, "kept": 5}
    assert any("attribute `table` of type `list`" in note for note in back.__notes__)


def test_an_error_of_many_values_is_bounded_as_a_whole() -> None:
    error = NotFound("the message")
    for number in range(100):
        setattr(error, f"text{number}", "a" * failures.TEXT_CHARS_MAX)
    data = describe(caught(error), PLACE)
    assert len(data) < failures.ERROR_BYTES_MAX
    back = rebuild(data, HERE)
    assert type(back) is NotFound and back.args == ("the message",)
    assert any("ERROR_BYTES_MAX" in note for note in back.__notes__)
    assert "raised in" in back.__notes__[-1] and len(vars(back)) == 1
    group = ExceptionGroup("all", [NotFound("m" * 20_000) for _ in range(64)])
    assert len(describe(caught(group), PLACE)) <= failures.ERROR_BYTES_MAX


def test_the_place_of_an_error_is_shown_in_one_line() -> None:
    note = isolate_error(NotFound("x"), HERE, "Airport/a\nb" + "c" * 10_000).__notes__[-1]
    assert note.startswith("raised in Airport/a\\nbccc")
    assert len(note) < 1000


# --- groups --------------------------------------------------------------------------------------


def test_group_is_rebuilt_member_by_member() -> None:
    group = ExceptionGroup("several", [NotFound("a"), ExceptionGroup("in", [KeyError("k")])])
    back = isolate_error(caught(group), HERE, PLACE)
    assert type(back) is ExceptionGroup
    assert back.message == "several"
    first, second = back.exceptions
    assert (type(first), first.args) == (NotFound, ("a",))
    assert isinstance(second, ExceptionGroup)
    assert second.exceptions[0].args == ("k",)
    assert back.__notes__[-1].startswith("raised in")


def test_group_of_ones_own_keeps_type_and_attributes() -> None:
    batch = Batch("b", [ValueError("v")])
    batch.shard = 3
    back = isolate_error(batch, HERE, PLACE)
    assert isinstance(back, Batch)
    assert back.shard == 3
    unknown = isolate_error(batch, NOWHERE, PLACE)
    assert type(unknown) is ExceptionGroup
    assert f"the group was a `{__name__}.Batch`" in unknown.__notes__


def test_group_member_that_is_never_a_reply_arrives_as_grain_error() -> None:
    group = BaseExceptionGroup("b", [ValueError("v"), asyncio.CancelledError()])
    back = rebuild(describe(group, PLACE), HERE)
    assert type(back) is ExceptionGroup
    assert [type(one) for one in back.exceptions] == [ValueError, GrainError]


def test_group_is_bounded_in_width_and_depth() -> None:
    wide = isolate_error(ExceptionGroup("w", [ValueError(n) for n in range(100)]), HERE, PLACE)
    assert isinstance(wide, ExceptionGroup)
    assert len(wide.exceptions) == failures.MEMBERS_MAX
    assert "36 more exceptions were not sent" in wide.__notes__
    deep: Any = ValueError("bottom")
    for _ in range(50):
        deep = ExceptionGroup("d", [deep])
    back, depth = isolate_error(deep, HERE, PLACE), 0
    while isinstance(back, ExceptionGroup):
        back, depth = back.exceptions[0], depth + 1
    assert depth == failures.NESTING_MAX
    assert type(back) is GrainError


# --- wire form and limits ------------------------------------------------------------------------


def test_wire_form_is_the_golden_one() -> None:
    plain = msgpack.unpackb(describe(NotFound("x", (1,)), PLACE))
    assert plain[:2] == [f"{__name__}.NotFound", "('x', (1,))"]
    assert plain[2] == msgpack.ExtType(
        1, b"\x92\xa5tuple\x92\xa1x\xc7\x09\x01\x92\xa5tuple\x91\x01"
    )
    assert plain[3:5] == [{}, []]
    assert plain[5].startswith(f"raised in {PLACE}:")
    assert plain[6] == []


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x91\x01", msgpack.packb(["x"])])
def test_unreadable_error_is_a_grain_error(data: bytes) -> None:
    back = rebuild(data, HERE)
    assert isinstance(back, GrainError)
    assert "cannot be read" in back.message


def test_error_with_unknown_extension_is_a_grain_error() -> None:
    wire = ["builtins.ValueError", "m", msgpack.ExtType(9, b""), {}, [], "", []]
    back = rebuild(msgpack.packb(wire), HERE)
    assert isinstance(back, GrainError)
    assert back.message == "m"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), asyncio.CancelledError()]
)
def test_some_exceptions_are_never_replies(error: BaseException) -> None:
    with pytest.raises(AssertionError, match="is not a reply"):
        describe(error, PLACE)


def test_nothing_keeps_the_error_alive() -> None:
    def run() -> weakref.ref[Exception]:
        error = caught(NotFound("x"))
        error.lock = asyncio.Lock()  # type: ignore[attr-defined]
        isolate_error(error, HERE, PLACE)
        isolate_error(error, NOWHERE, PLACE)
        error.__traceback__ = None
        return weakref.ref(error)

    run()
    while gc.collect():  # a finaliser of earlier garbage may leave garbage of its own
        pass
    gc.disable()
    try:
        assert run()() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.binary(max_size=9)
    | st.text(st.characters(codec=None)) | st.uuids() | st.decimals(allow_nan=False) | st.dates()
    | st.datetimes(timezones=st.none() | st.just(dt.UTC)).map(lambda at: at.replace(fold=0))
    | st.times().map(lambda at: at.replace(fold=0)) | st.timedeltas(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_packed_values_come_back_as_they_were(value: Any) -> None:
    assert repr(unpack(pack(value))) == repr(value)


@given(st.sets(st.integers() | st.text()))
def test_packed_sets_come_back_as_they_were(value: set[Any]) -> None:
    assert unpack(pack(value)) == value
    assert unpack(pack(frozenset(value))) == frozenset(value)


# --- known errors --------------------------------------------------------------------------------


def test_known_errors_are_builtins_and_what_the_modules_define_or_import() -> None:
    module = ModuleType("app.grains")
    lib = ModuleType("app.lib")
    imported = type("Lost", (Exception,), {"__module__": "app.errors"})
    in_lib = type("Broken", (Exception,), {"__module__": "app.lib"})
    module.__dict__.update(Lost=imported, lib=lib, Shop=Shop, number=3, Exit=SystemExit)
    lib.__dict__.update(Broken=in_lib)
    known = KnownErrors([module])
    known.check()
    assert known.find("app.errors.Lost") is imported
    assert known.find("app.lib.Broken") is in_lib
    assert known.find(f"{__name__}.Shop.Closed") is Shop.Closed
    assert known.find("builtins.ZeroDivisionError") is ZeroDivisionError
    assert known.find("millstream.Overloaded") is Overloaded
    assert known.find("builtins.SystemExit") is None
    assert known.find("builtins.BaseException") is None
    assert known.find(f"{__name__}.NotFound") is None


def test_every_builtin_exception_can_be_known() -> None:
    names = {
        name
        for name, cls in vars(builtins).items()
        if isinstance(cls, type) and issubclass(cls, Exception) and cls.__name__ == name
    }
    assert names == {name for name in names if NOWHERE.find(f"builtins.{name}") is not None}
    assert len(NOWHERE) > len(names)


def test_a_traceback_names_files_as_they_are_imported_and_not_where_they_lie() -> None:
    def fail() -> None:
        raise KeyError("inner")

    try:
        try:
            fail()
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        sent = describe(error, PLACE).decode("utf-8", "replace")
    assert sent.count('File "tests/runtime/codec/test_failures.py", line ') == 3
    assert os.path.dirname(__file__) not in sent


def test_a_file_that_nothing_imports_is_named_without_its_folders() -> None:
    assert source_name("/nowhere/at/all/job.py") == "job.py"
    assert source_name("<string>") == "<string>"
    assert source_name(os.__file__) == "os.py"
