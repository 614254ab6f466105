"""The resources of this process, by files as Linux writes them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millstream.runtime import Env
from millstream.runtime.machine import Usage, find_usage

PAGE = 4_096
MACHINE = {
    "proc/meminfo": "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    600 kB\n",
    "proc/self/statm": "900 100 50 1 0 300 0\n",
}
MACHINE_USAGE = Usage(
    cpu_s=7.0, memory_used=100 * PAGE, memory_available=600 * 1_024, memory_total=1_000 * 1_024
)


def usage(files: Mapping[str, str]) -> Usage:
    return find_usage(lambda path: files.get(path.removeprefix("/"), ""), 7.0, PAGE)


def test_a_machine_without_containers_reports_its_memory() -> None:
    assert usage(MACHINE) == MACHINE_USAGE


def group(*, limit: str, current: str, cpu: str = "max 100000", cached: int = 0) -> dict[str, str]:
    folder = "sys/fs/cgroup/app.slice"
    return {
        "proc/self/cgroup": "0::/app.slice\n",
        f"{folder}/memory.max": limit,
        f"{folder}/memory.current": current,
        f"{folder}/memory.stat": f"anon 5\ninactive_file {cached}\n",
        f"{folder}/cpu.max": cpu,
    }


def test_the_limits_of_a_container_replace_those_of_the_machine() -> None:
    files = group(limit="500000\n", current="300000\n", cpu="50000 100000\n", cached=100_000)
    found = usage({**MACHINE, **files})
    assert (found.memory_total, found.memory_available, found.cores) == (500_000, 300_000, 0.5)


@pytest.mark.parametrize("limit", ["max\n", "2000000\n", "1024000\n"])
def test_a_container_without_a_lower_limit_changes_nothing(limit: str) -> None:
    files = group(limit=limit, current="900000\n")
    assert usage({**MACHINE, **files}) == MACHINE_USAGE


def test_the_machine_may_have_less_left_than_the_container_permits() -> None:
    files = group(limit="1000000", current="100")
    assert usage({**MACHINE, **files}).memory_available == 600 * 1_024


def test_a_container_that_uses_more_than_its_limit_has_nothing_left() -> None:
    files = group(limit="1000", current="2000")
    assert usage({**MACHINE, **files}).memory_available == 0


@pytest.mark.parametrize(
    ("stat", "available"), [("", 600), ("inactive_file 100", 700), ("inactive_file 500", 1_000)]
)
@pytest.mark.parametrize("line", ["", "0::/\n", "0::/../app.slice\n"])
def test_without_a_folder_of_its_own_the_process_is_in_the_first_group(
    line: str, stat: str, available: int
) -> None:
    found = usage(
        {
            "proc/self/cgroup": line,
            "sys/fs/cgroup/memory.max": "1000",
            "sys/fs/cgroup/memory.current": "400",
            "sys/fs/cgroup/memory.stat": stat,
        }
    )
    assert (found.memory_total, found.memory_available) == (1_000, available)


def test_groups_of_version_1_are_passed_over() -> None:
    files = group(limit="1000", current="400")
    groups = {"proc/self/cgroup": "1:memory:/other\n" + files["proc/self/cgroup"]}
    assert usage({**files, **groups}).memory_available == 600


def test_figures_have_at_most_19_digits() -> None:
    highest, higher = "9" * 19, "1" + "0" * 19
    assert usage({"proc/meminfo": f"MemTotal: {highest}"}).memory_total == int(highest)
    assert usage({"proc/meminfo": f"MemTotal: {higher}"}).memory_total is None


def test_no_files_give_no_figures() -> None:
    assert usage({}) == Usage(cpu_s=7.0)


@pytest.mark.parametrize(
    "text", ["", "\x00\xff", "1 ² 3", "MemTotal:", "MemTotal: -5 kB", "a b c", "9" * 40]
)
def test_files_with_other_content_give_no_figures(text: str) -> None:
    names = [*MACHINE, *group(limit="", current="")]
    assert usage(dict.fromkeys(names, text)) == Usage(cpu_s=7.0)


def test_this_process_has_used_processor_time() -> None:
    first = Env().measure()
    sum(range(100_000))
    assert 0 < (first.cpu_s or 0) <= (Env().measure().cpu_s or 0)
