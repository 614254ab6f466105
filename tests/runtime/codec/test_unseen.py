"""Small faults in the codec that no other test would detect."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from types import ModuleType

from millstream.runtime.codec.codec import build_codec, codec_between
from millstream.runtime.codec.hooks import RuntimeDecoder, encode_any
from millstream.runtime.codec.known_errors import KnownErrors


@dataclass(frozen=True)
class Node:
    name: str
    next: Node | None = None


def test_a_frozen_class_that_contains_itself_is_copied_and_not_walked_for_ever() -> None:
    codec = build_codec(Node, "here")
    value = Node("a", Node("b"))
    assert codec.isolate(value) == value


def test_what_a_sender_may_pass_as_it_is_the_receiver_may_not() -> None:
    between = codec_between(build_codec(int, "here"), build_codec(float, "here"))
    assert between.fast_types == frozenset()
    assert type(between.isolate(5)) is float
    same = codec_between(build_codec(int, "here"), build_codec(int | None, "here"))
    assert same.fast_types == {int}


def test_a_decoder_keeps_no_runtime() -> None:
    class Host:
        pass

    runtime = Host()
    decoder, kept = RuntimeDecoder(int), weakref.ref(runtime)
    assert decoder.decode(encode_any(5), runtime) == 5
    del runtime
    gc.collect()
    assert kept() is None


def test_the_first_error_type_of_a_name_is_the_one_that_is_known() -> None:
    def module_with(cls: type[Exception]) -> ModuleType:
        module = ModuleType("made")
        vars(module)["Wrong"] = cls
        return module

    first, second = (type("Wrong", (Exception,), {"__module__": "made"}) for _ in range(2))
    known = KnownErrors([module_with(first), module_with(second)])
    known.add([module_with(second)])
    assert known.find("made.Wrong") is first
