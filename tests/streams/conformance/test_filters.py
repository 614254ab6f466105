"""Filters and predicates (rows 47, 57 to 60, 70)."""

from __future__ import annotations

from tests.streams.conformance.actors import LINES, Living, ears, hear
from tests.streams.conformance.adapters import NUMBERS, PUBLISHES, Feed
from tests.streams.conformance.place import Place, conforms

from millstream.streams import Event, dead_letters, subscribe


class Sifting(Living):
    async def listen(self, key: str, names: list[str]) -> None:
        filters = {
            "even": self._is_even,
            "threes": self._is_of_three,
            "sevens": self._is_of_seven,
            "raises": self._fails_at_two,
            "last": self._is_last,
        }
        for name in names:
            await self.stream(LINES, key).subscribe(self._on_line, name=name, where=filters[name])

    async def _on_line(self, event: Event[int]) -> None:
        names = [
            one.name
            for one in await self.stream(LINES, event.key).subscriptions(self)
            if one.id == event.subscription
        ]
        await hear(names[0], event)

    @staticmethod
    def _is_even(event: Event[int]) -> bool:
        return event.item % 2 == 0

    @staticmethod
    def _is_of_three(event: Event[int]) -> bool:
        return event.item % 3 == 0

    @staticmethod
    def _is_of_seven(event: Event[int]) -> bool:
        return event.item % 7 == 0

    @staticmethod
    def _fails_at_two(event: Event[int]) -> bool:
        if event.item == 2:
            raise ValueError("two")
        return True

    @staticmethod
    def _is_last(event: Event[int]) -> bool:
        return event.item >= 998


class Chosen(Living):
    @subscribe(NUMBERS, key="*", where=lambda event: event.item % 5 == 0)
    async def on_number(self, event: Event[int]) -> None:
        await hear(f"fives/{self.key}", event)

    @subscribe(NUMBERS, key="[!a-z]*")
    async def on_other(self, event: Event[int]) -> None:
        await hear("other keys", event)


@conforms(47, grains=[Chosen], feed=Feed(count=20))
async def test_a_mark_hears_the_keys_that_fit_its_pattern(place: Place) -> None:
    await place.fed(NUMBERS)
    for key in place.setting.feed.keys:
        await place.until_heard(
            f"fives/{key}", [one for one in place.setting.feed.items if one % 5 == 0]
        )
    assert not ears.items("other keys") or not all(
        key[0].islower() for key in place.setting.feed.keys
    )


@conforms(57, 60, grains=[Sifting], needs=[PUBLISHES])
async def test_an_event_at_which_the_filter_raises_is_given_up_and_the_others_are_heard(
    place: Place,
) -> None:
    await place.grain(Sifting, "a").listen("s", ["raises"])
    await place.publish(LINES, "s", *range(6))
    await place.until_heard("raises", [0, 1, 3, 4, 5])
    await place.until(lambda: sum(one.given_up for one in place.stats()) == 1)
    (letter,) = await dead_letters(place.silo()).list()
    assert LINES.codec.decode(letter.failure.body) == 2


@conforms(58, 60, grains=[Sifting], needs=[PUBLISHES])
async def test_only_events_that_fit_are_heard_in_order(place: Place) -> None:
    await place.grain(Sifting, "a").listen("s", ["even"])
    await place.publish(LINES, "s", *range(50))
    await place.until_heard("even", range(0, 50, 2))


@conforms(59, 60, grains=[Sifting], needs=[PUBLISHES])
async def test_two_subscriptions_have_the_events_of_their_own_filters(place: Place) -> None:
    await place.grain(Sifting, "a").listen("s", ["threes", "sevens"])
    await place.publish(LINES, "s", *range(50))
    await place.until_heard("threes", range(0, 50, 3))
    await place.until_heard("sevens", range(0, 50, 7))


@conforms(70, grains=[Sifting], needs=[PUBLISHES])
async def test_events_that_are_filtered_out_cost_none_that_fits(place: Place) -> None:
    await place.grain(Sifting, "a").listen("s", ["last"])
    await place.publish(LINES, "s", 998, *range(300), 999)
    await place.until_heard("last", [998, 999])
