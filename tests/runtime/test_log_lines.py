"""Text from outside cannot forge a line of the log."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
from tests.conditions import until

from millstream.runtime import Grain, GrainError, Silo, connect, grain, one_way
from millstream.runtime.log_lines import LineGuard, Lines, guard_lines

FORGED = "no\n2026-01-01 millstream.silo ERROR silo x was evicted\r\x1b[2K\u2028\u202e"
log = logging.getLogger("millstream.test_log_lines")


class Forged:
    def __repr__(self) -> str:
        return FORGED


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """The output of the program's log handler."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logging.root.addHandler(handler)
    yield stream
    logging.root.removeHandler(handler)


def lines_of(stream: io.StringIO) -> list[str]:
    """Split the output as a terminal and the strictest line readers do."""
    text = stream.getvalue()
    assert text.replace("\n", "").isprintable()
    return text.splitlines()


@pytest.mark.parametrize(
    "value",
    [FORGED, ValueError(FORGED), [Forged()], Forged()],
    ids=["text", "error", "list", "object"],
)
@pytest.mark.parametrize("form", ["%s", "%r"])
def test_an_argument_stays_in_its_line(written: io.StringIO, form: str, value: object) -> None:
    log.error(f"failed: {form}, %d times, %g", value, 3, 0.5)
    (line,) = lines_of(written)
    assert line.startswith("millstream.test_log_lines ERROR failed: ")
    assert "no\\n2026" in line.replace("\\\\", "\\") and line.endswith(", 3 times, 0.5")


def test_a_traceback_is_indented_whatever_the_error_says(written: io.StringIO) -> None:
    try:
        try:
            raise KeyError(FORGED)
        except KeyError:
            raise ValueError(FORGED) from None
    except ValueError as raised:
        log.exception("failed")
        log.error("failed again", exc_info=raised)
    lines = lines_of(written)
    # the head of each of the two tracebacks
    assert len([line for line in lines if not line.startswith("  ")]) == 4
    assert lines[1] == "Traceback (most recent call last):"
    assert any("2026-01-01 millstream.silo" in line for line in lines)


def test_text_of_several_lines_of_the_program_itself_is_left_so(written: io.StringIO) -> None:
    log.warning("%s\n%s", "head", Lines("one\n  two\x1b"))
    assert lines_of(written) == ["millstream.test_log_lines WARNING head", "one", "  two\\x1b"]


def test_the_guard_is_there_once_and_warnings_without_a_handler_are_still_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard_lines()
    guards = [one for one in logging.getLogger("millstream").handlers if isinstance(one, LineGuard)]
    assert len(guards) == 1
    monkeypatch.setattr(logging.root, "handlers", [])
    log.warning("told: %s", FORGED)
    log.info("not told")
    assert capsys.readouterr().err == f"told: {ascii(FORGED)[1:-1]}\n".replace("\\u2028", "\\u2028")


@grain(name="ForgedDesk")
class Desk(Grain):
    async def fail(self) -> None:
        raise ValueError(FORGED)

    @one_way
    async def note(self) -> None:
        raise ValueError(FORGED)

    async def on_activate(self) -> None:
        if self.key == "bad":
            raise GrainError("Odd", FORGED)


async def test_neither_a_grain_nor_its_key_writes_lines_of_its_own(written: io.StringIO) -> None:
    async with Silo(grains=[Desk]) as silo, connect(silo.gateway) as client:
        with pytest.raises(GrainError):
            await silo.grain(Desk, "bad").fail()
        await client.grain(Desk, f"a{FORGED}").note()
        await until(lambda: "failed" in written.getvalue())
    heads = [line for line in lines_of(written) if not line.startswith(("  ", "Traceback"))]
    assert all(line.startswith("millstream.") for line in heads)
    (line,) = [line for line in heads if "one-way" in line]
    assert "one-way call ForgedDesk/ano\\n2026" in line and line.endswith(".note failed")
