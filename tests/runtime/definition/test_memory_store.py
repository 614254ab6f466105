"""The store in memory: a scan returns the same as sorting all rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import MemoryStateStore

KEYS = st.text(alphabet="ab/\U0010ffff", max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "again"]), KEYS), max_size=30)


@given(STEPS, KEYS, KEYS, st.integers(0, 5))
def test_a_scan_gives_the_rows_of_a_prefix_behind_a_key_in_order(
    steps: list[tuple[str, str]], prefix: str, after: str, limit: int
) -> None:
    store, etags = MemoryStateStore(), dict[str, str]()
    for step, key in steps:
        if step == "remove" and key in etags:
            store.remove(key, etags.pop(key), 1)
        elif step != "remove":
            etags[key] = store.put(key, step.encode(), etags.get(key), 1)
    expected = [key for key in sorted(etags) if key.startswith(prefix) and key > after]
    found = store.range(prefix, after, limit)
    assert [(key, row.etag) for key, row in found] == [
        (key, etags[key]) for key in expected[:limit]
    ]


def test_the_first_row_of_all_may_have_an_empty_key() -> None:
    store = MemoryStateStore()
    store.put("", b"", None, 1)
    assert store.range("", "", 10) == []  # a scan begins after its start in every store
