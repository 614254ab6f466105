"""Generated stubs: one `async def` per method of a reference class, with the direct turn inline.

This module owns the source text of the stubs, also for methods of extensions, and the order of
steps of a direct turn.

Invariants:

- A direct turn requires an activation in this process that is valid and idle, with no waiting
  request (`is_gated` is False). If another turn runs there, the stub may wait for its own turn
  first.
- Only the method runs between entering and leaving the activation.
- Every generated name begins with `_ms`, which definitions refuse.
"""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Coroutine, Mapping
from functools import cache, partial
from textwrap import indent
from typing import Any

from millstream.runtime.codec.codec import Codec
from millstream.runtime.codec.hooks import encode_any
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.reference import OptionedReference, Reference
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.request import Request, current_request
from millstream.runtime.turns.run import Turns

from .caller import Caller
from .locator import Locator
from .result_reader import ResultReader

__all__ = ["ExtensionCall", "StubBuilder"]

ExtensionCall = Callable[..., Coroutine[Any, Any, Any]]
SHORTEST_S = 0.001  # least time for a call whose activation ended while the call waited
INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # the range of MessagePack
INT_QUICK = 2**30 - 1  # ints of one internal digit, which Python compares fast

SLOW = """\
async def {name}{signature}:
    return await _ms_call(
        _ms_kind, {key}, _ms_spec_{index}, ({arguments}){options})
"""

STREAMED = """\
def {name}{signature}:
    return _ms_read(
        _ms_kind, {key}, _ms_spec_{index}, ({arguments}){options})
"""

# The order of the steps matters. The tests of turns/ cover each step.
# 1. Find the calling turn: `_ms_up` is `live_request()`, written inline.
# 2. Decide whether the turn may be direct, and use `Caller.call` otherwise. If another turn runs
#    and no call waits for the grain's location, the stub waits for its turn by itself.
# 3. Create a request and watch its deadline. For a hop of the same task with a later deadline,
#    the parent's deadline is enough.
# 4. Enter, run, leave. Between these steps only the method can raise.
#    A sweep removes a due request from its group, so the group is read again afterwards.
# 5. If the runtime ended the turn (deadline or swallowed cancellation), raise its error.
DIRECT = """\
async def {name}{signature}:
    _ms_act = _ms_activations.get({key})
    _ms_up = _ms_from = _ms_get()
    while _ms_up is not None and _ms_up.done:
        _ms_up = _ms_up.parent if _ms_up.same_task else None
    _ms_task = _ms_find_task()
    _ms_hop = _ms_deep = False
    if _ms_up is not None:
        _ms_hop = _ms_up.task is _ms_task
        if _ms_hop or _ms_up is _ms_from:
            _ms_deep = (_ms_up.depth + 1) % _ms_nest == 0 or _ms_up.depth >= _ms_longest
        else:
            _ms_up = None
    if _ms_act is None or _ms_deep or (_ms_act.is_gated and (
            _ms_act.running is None or _ms_has_waiting(_ms_name, _ms_act.key))):
        _ms_task = _ms_up = _ms_from = None
        return await _ms_call(_ms_kind, {key}, _ms_spec_{index}, ({arguments}))
{isolation}\
{until}    _ms_group = _ms_group_{index}
    if _ms_up is None:
        _ms_req = _ms_Request(
            None, _ms_task, _ms_act, _ms_spec_{index}, _ms_until, 1, _ms_task.cancelling(),
            False, _ms_group)
    else:
        if _ms_up.deadline < _ms_until:
            _ms_until = _ms_up.deadline
            _ms_group = None if _ms_hop else _ms_slot(_ms_until)
        _ms_req = _ms_Request(
            _ms_up, _ms_task, _ms_act, _ms_spec_{index}, _ms_until, _ms_up.depth + 1,
            _ms_task.cancelling(), _ms_hop, _ms_group)
    if _ms_group is not None:
        _ms_group[_ms_req] = None
        if not _ms_deadlines.is_armed:
            _ms_deadlines.arm()
    _ms_bad = None
    try:
        if _ms_act.is_gated:
            _ms_req.activation = None
            if not await _ms_wait(_ms_act, _ms_req):
                _ms_finish(_ms_req)
                _ms_task = _ms_up = _ms_from = None
                return await _ms_call(
                    _ms_kind, {key}, _ms_spec_{index}, ({arguments}),
                    _ms_max(_ms_req.deadline - _ms_time(), {shortest}))
            _ms_act = _ms_req.activation
        else:
            _ms_act.is_gated = True
            _ms_act.is_used = True
            _ms_act.running = _ms_req
        _ms_set(_ms_req)
        _ms_value = await _ms_fn_{index}({target}{passed})
    except _ms_BaseException as _ms_error:
        _ms_bad = _ms_settle(_ms_req, _ms_error)
    else:
        _ms_req.done = True
        _ms_req.task = None
        _ms_group = _ms_req.group
        if _ms_group is not None:
            del _ms_group[_ms_req]
        if _ms_act.mailbox is None:
            _ms_act.running = None
            _ms_act.is_gated = False
        else:
            _ms_act.leave(_ms_req)
        if not _ms_hop and _ms_up is not None:
            _ms_set(_ms_up)
        if _ms_req.expired or _ms_task.cancelling() > _ms_req.cancelling:
            _ms_bad = _ms_swallowed(_ms_req, _ms_task)
    if _ms_bad is None:
{tally}\
{result}\
        _ms_budget.left = _ms_left = _ms_budget.left - 1
        if not _ms_left:
            await _ms_budget.pause()
        return _ms_value
{failure}\
    if _ms_isinstance(_ms_bad, _ms_Exception):
        await _ms_budget.spend()
    _ms_task = _ms_req = _ms_act = _ms_up = _ms_from = None
    try:
        raise _ms_bad
    finally:
        _ms_bad = None
"""

# The lines that a stub has instead of `PLAIN` while calls are counted: see `MethodCalls`.
PLAIN = {
    "until": "    _ms_until = _ms_time() + _ms_seconds_{index}\n",
    "tally": "",
    "failure": "",
}
COUNTED = {
    "until": """\
    _ms_began = _ms_time()
    _ms_until = _ms_began + _ms_seconds_{index}
""",
    "tally": """\
        _ms_calls_{index}.left = _ms_left = _ms_calls_{index}.left - 1
        if not _ms_left:
            _ms_calls_{index}.measure(_ms_time() - _ms_began)
""",
    "failure": """\
    _ms_calls_{index}.end_direct(_ms_req, _ms_bad, _ms_time() - _ms_began)
""",
}

# `Codec.quick_copy` inline. If it cannot copy a value, `isolate` copies it or raises the error.
# That call is outside of the handler, because an error raised there would keep this frame.
COPY = """\
_ms_copied = _ms_type({name}) in _ms_direct_{which}
if _ms_copied:
    try:
        {name} = _ms_decode_{which}(_ms_encode({name}))
    except _ms_Exception:
        _ms_copied = False
if not _ms_copied:
    {name} = _ms_isolate_{which}({name}, _ms_runtime)
"""


class StubBuilder:
    """Creates reference classes whose stubs are bound to one silo or client.

    Args:
        activations: returns the activations of a kind in this process, by key.
    """

    def __init__(
        self,
        turns: Turns,
        caller: Caller,
        locator: Locator,
        activations: Callable[[str], Mapping[str, Activation]],
        optioned: Callable[[str, type[Any]], type[OptionedReference]],
        results: ResultReader,
    ) -> None:
        self._results = results
        self._turns = turns
        self._caller = caller
        self._locator = locator
        self._activations = activations
        self._optioned = optioned

    def build(self, kind: GrainKind, grain_type: GrainType, has_options: bool) -> type[Any]:
        """Return the reference class of a contract. With options, no call of it is direct.

        Raises NotHosted if the hosted class lacks a method of the contract.
        """
        specs = list(grain_type.specs.values())
        for spec in specs:
            spec.resolve()
        own_specs = [kind.own_spec(spec) for spec in specs]
        namespace = self._names(kind)
        for index, (spec, own) in enumerate(zip(specs, own_specs, strict=True)):
            self._bind(namespace, index, own, kind.name)
            for at, parameter in enumerate(spec.parameters):
                namespace[f"_ms_default_{index}_{at}"] = parameter.default
        is_filtered = bool(kind.incoming) or self._caller.has_outgoing
        is_newer = grain_type.version > kind.version  # its calls do not run in this process
        source = (kind.hosted or grain_type, own_specs, not has_options, is_filtered or is_newer)
        is_counted = self._turns.counts is not None
        exec(_code(grain_type, *source, is_counted), namespace)
        body: dict[str, Any] = {"__slots__": (), "_ms_type": grain_type, "_ms_kind": kind.name}
        body["_ms_optioned"] = staticmethod(self._optioned)
        for spec in specs:
            stub = namespace[f"_ms_stub_{spec.name}"]
            stub.__name__ = spec.name
            stub.__qualname__ = spec.label
            stub.__doc__ = spec.fn.__doc__
            stub.__module__ = spec.fn.__module__
            stub.__signature__ = spec.signature
            body[spec.name] = stub
        base = OptionedReference if has_options else Reference
        return type(f"{grain_type.cls.__name__}Reference", (base,), body)

    def build_extension(self, kind: GrainKind, spec: MethodSpec) -> ExtensionCall:
        """Return a method of an extension as a function of the grain's key and the arguments."""
        assert spec.extension and spec.is_internal
        namespace = self._names(kind)
        self._bind(namespace, 0, spec, kind.name)
        make, name = self._turns.extension_of, spec.extension
        namespace["_ms_extension"] = lambda activation: make(activation, name)
        namespace["_ms_call"] = self._caller.call_here
        hosted = kind.hosted
        is_direct = hosted is not None and _may_be_direct(hosted, spec)
        source = _extension_source(spec, is_direct, self._turns.counts is not None)
        exec(_extension_code(source), namespace)
        found: ExtensionCall = namespace[f"_ms_stub_{spec.name}"]
        return found

    def _names(self, kind: GrainKind) -> dict[str, Any]:
        turns, deadlines, caller = self._turns, self._turns.deadlines, self._caller
        return {
            "_ms_type": type,
            "_ms_int": int,
            "_ms_str": str,
            "_ms_max": max,
            "_ms_isinstance": isinstance,
            "_ms_encode": encode_any,
            "_ms_BaseException": BaseException,
            "_ms_Exception": Exception,
            "_ms_kind": kind,
            "_ms_name": kind.name,
            "_ms_runtime": kind.runtime,
            "_ms_activations": self._activations(kind.name),
            "_ms_call": caller.call_filtered if caller.has_outgoing else caller.call,
            "_ms_read": self._results.read,
            "_ms_wait": self._caller.wait_turn,
            "_ms_has_waiting": self._locator.has_waiting,
            "_ms_Request": Request,
            "_ms_get": current_request.get,
            "_ms_set": current_request.set,
            "_ms_finish": turns.finish,
            "_ms_settle": turns.settle,
            "_ms_swallowed": turns.replace_swallowed,
            "_ms_find_task": turns.find_task,
            "_ms_time": turns.loop.time,
            "_ms_deadlines": deadlines,
            "_ms_slot": deadlines.slot,
            "_ms_budget": turns.budget,
            "_ms_nest": turns.options.nested_turns_max,
            "_ms_longest": turns.options.chain_turns_max,
        }

    def _bind(
        self, namespace: dict[str, Any], index: int, spec: MethodSpec, grain_type: str
    ) -> None:
        spec.resolve()
        if self._turns.counts is not None:
            calls = self._turns.counts.of(grain_type, spec.wire_name)
            namespace[f"_ms_calls_{index}"] = calls
        seconds = spec.timeout_s or self._turns.options.call_timeout_s
        namespace[f"_ms_spec_{index}"] = spec
        namespace[f"_ms_fn_{index}"] = spec.fn
        namespace[f"_ms_seconds_{index}"] = seconds
        namespace[f"_ms_group_{index}"] = self._turns.deadlines.groups[seconds]
        for at, (parameter, codec) in enumerate(zip(spec.parameters, spec.codecs, strict=True)):
            isolate = partial(spec.isolate_argument, at)
            namespace |= _isolation_names(f"{index}_{parameter.name}", codec, isolate)
        namespace |= _isolation_names(f"{index}__ms_value", spec.result, spec.isolate_result)


def _code(
    grain_type: GrainType,
    hosted: GrainType,
    own_specs: list[MethodSpec],
    is_plain: bool,
    is_filtered: bool,
    is_counted: bool,
) -> Any:
    """Return the compiled stubs. The hosted class, if any, decides whether a stub may be direct."""
    is_quick = is_plain and not is_filtered
    source = "\n".join(
        _stub_source(
            index, spec, own, is_plain, is_quick and _may_be_direct(hosted, own), is_counted
        )
        for index, (spec, own) in enumerate(zip(grain_type.specs.values(), own_specs, strict=True))
    )
    code = grain_type.stub_code.get(source)
    if code is None:
        where = f"{grain_type.cls.__module__}.{grain_type.cls.__qualname__}"
        filename = f"<millstream reference {where} {len(grain_type.stub_code)}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        code = grain_type.stub_code[source] = compile(source, filename, "exec")
    return code


def _may_be_direct(grain_type: GrainType, spec: MethodSpec) -> bool:
    """Return True for an exclusive method of a plain grain, for which the fast path is written."""
    options = grain_type.options
    writes = any(field.writes_each_turn for field in grain_type.states.values())
    special = spec.is_read_only or spec.is_interleaving or spec.is_one_way or spec.is_shielded
    decides = options.reentrant or options.may_interleave is not None
    return options.direct and not (decides or special or writes)


def _extension_source(spec: MethodSpec, is_direct: bool, is_counted: bool) -> str:
    names = [parameter.name for parameter in spec.parameters]
    return (DIRECT if is_direct else SLOW).format(
        name=f"_ms_stub_{spec.name}",
        shortest=SHORTEST_S,
        index=0,
        key="_ms_key",
        target="_ms_extension(_ms_act)",
        signature=f"({', '.join(['_ms_key', *names])})",
        arguments="".join(f"{name}, " for name in names),
        options="",
        passed="".join(f", {name}" for name in names),
        isolation="",
        result="",
        **_counting(0, is_counted),
    )


@cache
def _extension_code(source: str) -> Any:
    """Compile the stub of an extension's method. The text is the same for every grain type."""
    filename = f"<millstream extension {source[10 : source.index('(')]}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    return compile(source, filename, "exec")


def _stub_source(
    index: int,
    spec: MethodSpec,
    own: MethodSpec,
    is_plain: bool,
    is_direct: bool,
    is_counted: bool,
) -> str:
    names = [parameter.name for parameter in spec.parameters]
    template = STREAMED if spec.is_streamed else DIRECT if is_direct else SLOW
    return template.format(
        name=f"_ms_stub_{spec.name}",
        shortest=SHORTEST_S,
        index=index,
        key="_ms_self._ms_key",
        target="_ms_act.grain",
        signature=_signature(index, spec),
        arguments="".join(f"{name}, " for name in names),
        options="" if is_plain else ", _ms_self._ms_timeout_s, _ms_self._ms_headers",
        passed="".join(
            f", {p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else f", {p.name}"
            for p in spec.parameters
        ),
        isolation=_isolation(own, dict(zip(names, own.codecs, strict=True)), index, 4),
        result=_isolation(own, {"_ms_value": own.result}, index, 8),
        **_counting(index, is_counted),
    )


def _counting(index: int, is_counted: bool) -> dict[str, str]:
    """Return the lines of a stub that depend on whether calls are counted."""
    lines = COUNTED if is_counted else PLAIN
    return {name: text.format(index=index) for name, text in lines.items()}


def _isolation(spec: MethodSpec, codecs: Mapping[str, Codec[Any]], index: int, depth: int) -> str:
    """Return the source text that isolates these values. Internal methods need none."""
    if spec.is_internal:
        return ""
    parts = [_isolation_of(name, codec, f"{index}_{name}") for name, codec in codecs.items()]
    return indent("".join(parts), " " * depth)


def _isolation_of(name: str, codec: Codec[Any], which: str) -> str:
    if codec.quick_copy is None:
        test = _needs_isolation(name, codec.fast_types, which)
        return f"if {test}:\n    {name} = _ms_isolate_{which}({name}, _ms_runtime)\n"
    return COPY.format(name=name, which=which)


def _isolation_names(which: str, codec: Codec[Any], isolate: Callable[..., Any]) -> dict[str, Any]:
    """Return the names that the text of `_isolation_of` uses."""
    found = {
        f"_ms_isolate_{which}": isolate,
        f"_ms_fast_{which}": _select_passed_as_is(codec.fast_types),
    }
    if codec.quick_copy is not None:
        direct, decode = codec.quick_copy
        found |= {f"_ms_direct_{which}": direct, f"_ms_decode_{which}": decode}
    return found


def _needs_isolation(name: str, fast_types: frozenset[type], fast_name: str) -> str:
    """Return the source text of a test for values that may not pass as they are.

    The test finds values of other types, and values that cannot be sent.
    """
    if fast_types == {int}:
        return (
            f"_ms_type({name}) is not _ms_int or not ("
            f"{-INT_QUICK} < {name} < {INT_QUICK} or {INT_MIN} <= {name} <= {INT_MAX})"
        )
    if fast_types == {str}:
        return f"_ms_type({name}) is not _ms_str or not {name}.isascii()"
    return f"_ms_type({name}) not in _ms_fast_{fast_name}"


def _select_passed_as_is(fast_types: frozenset[type]) -> frozenset[type]:
    """Return the types without int and str, because some of their values cannot be sent."""
    return fast_types - {int, str}


def _signature(index: int, spec: MethodSpec) -> str:
    parts = ["_ms_self"]
    kinds = [parameter.kind for parameter in spec.parameters]
    if inspect.Parameter.POSITIONAL_ONLY not in kinds:
        parts.append("/")
    starred = False
    for position, parameter in enumerate(spec.parameters):
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        has_default = parameter.default is not parameter.empty
        default = f"=_ms_default_{index}_{position}" if has_default else ""
        parts.append(f"{parameter.name}{default}")
        is_last_positional = parameter.kind is parameter.POSITIONAL_ONLY and (
            position + 1 == len(kinds) or kinds[position + 1] is not parameter.POSITIONAL_ONLY
        )
        if is_last_positional:
            parts.append("/")
    return f"({', '.join(parts)})"
