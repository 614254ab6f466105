"""The directory of a silo's bookie, and the values of options that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.providers.ledger import LedgerOptions, LedgerQueues, LedgerTopicSettings, Quorum
from millstream.providers.ledger.queues.directories import EMBEDDED, REPLICATED, Directories
from millstream.runtime import ConfigError, LocalCluster, MemoryMembershipTable, Silo
from millstream.streams import PersistentStreams

SILO = "127.0.0.1:7000@1"


def test_each_silo_has_a_directory_of_its_own_if_the_path_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    directories = Directories("data/{silo}/ledger")
    monkeypatch.chdir("/")
    one, other = directories.home(SILO, "a"), directories.home(SILO, "b c.d")
    assert one.path == str(tmp_path / "data/a/ledger")
    assert other.path == str(tmp_path / "data/b c.d/ledger")
    assert one.place == other.place == "data/{silo}/ledger"
    assert (one.owner, other.owner) == ("a", "b c.d")
    assert directories.quorum == REPLICATED == (3, 3, 2)


def test_without_it_all_have_one(tmp_path: Path) -> None:
    directories = Directories(tmp_path / "ledger")
    home = directories.home(SILO, SILO)
    assert home == directories.home("other", "name")
    assert home == (str(tmp_path / "ledger"), str(tmp_path / "ledger"), "")
    assert directories.quorum == EMBEDDED == (1, 1, 1)


@pytest.mark.parametrize("path", ["{silo}/{silo}", "{silo}{", "}/x", "{Silo}", "{}", "{silo!r}"])
def test_other_braces_are_refused(path: str) -> None:
    with pytest.raises(
        ConfigError, match="braces may only hold {silo}, the silo's name, and only once"
    ):
        LedgerQueues(path)


@pytest.mark.parametrize("name", ["a/b", "..", ".", "a\nb", "\x00", "x" * 256, "ä" * 128])
def test_a_name_that_is_no_part_of_a_path_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="the silo's name, .* cannot be part of a path"):
        Directories("data/{silo}").home(SILO, name)


async def test_a_silo_needs_a_name_that_it_keeps(tmp_path: Path) -> None:
    streams = PersistentStreams(LedgerQueues(tmp_path / "{silo}"), balancer="deployment")
    silo = Silo(grains=[], membership=MemoryMembershipTable(), streams={"default": streams})
    with pytest.raises(ConfigError, match=r"this silo has no name: .* Silo\(name=\.\.\.\)"):
        async with silo:
            pass


def test_several_copies_in_one_directory_are_refused() -> None:
    options = LedgerOptions(settings=LedgerTopicSettings(quorum=Quorum(3, 3, 2)))
    with pytest.raises(ConfigError, match=r"quorum is \(3, 3, 2\).*one bookie.*data/\{silo\}"):
        LedgerQueues("data", options)
    LedgerQueues("data/{silo}", options)


@pytest.mark.parametrize("quorum", [(2, 3, 2), (3, 2, 3), (3, 3, 0)])
def test_quorums_that_do_not_go_together_are_refused_with_their_values(
    quorum: tuple[int, int, int],
) -> None:
    text = "ensemble={}, write_quorum={}, ack_quorum={}: need ensemble".format(*quorum)
    with pytest.raises(ConfigError, match=text):
        LedgerTopicSettings(quorum=Quorum(*quorum))


def test_one_acknowledgement_of_several_copies_is_refused() -> None:
    text = "ensemble=3, write_quorum=3, ack_quorum=1: with .* set ack_quorum=2, or write_quorum=1"
    with pytest.raises(ConfigError, match=text):
        LedgerTopicSettings(quorum=Quorum(3, 3, 1))
    with pytest.raises(ConfigError, match="a Quorum or None"):
        LedgerTopicSettings(quorum=(3, 3, 2))  # type: ignore[arg-type]


async def test_silos_that_differ_in_where_they_keep_entries_are_no_cluster(tmp_path: Path) -> None:
    paths = iter([tmp_path / "{silo}", tmp_path / "all"])

    def make() -> PersistentStreams:
        return PersistentStreams(LedgerQueues(next(paths)), balancer="deployment")

    with pytest.raises(ConfigError, match="directory of 'default' is 'one for all.*{silo}"):
        async with LocalCluster(grains=[], silos=2, streams={"default": make}):
            pass
