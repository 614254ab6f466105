"""Reference classes: one generated `async def` stub per method, with the direct turn inside.

Owns: the source text of stubs and the order of steps of a direct turn (spec/hotpath.md 3.1-3.3,
traps 1, 2, 9, 11). Invariants: a direct turn happens only if the target is here, valid, idle and
nobody waits (`gate == 0`), or after it has waited for its turn at an activation that runs another;
between entering and releasing the activation nothing but the method runs; every generated name
begins with `_ms`, which definitions refuse.
"""

from __future__ import annotations

import inspect
import linecache
from typing import TYPE_CHECKING, Any

from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.reference import OptionedReference, Reference
from millstream.runtime.turns.request import Request, current_request
from millstream.runtime.turns.run import finish, settle, timed_out

from .caller import call, wait_turn

if TYPE_CHECKING:
    from millstream.runtime.turns.catalog import GrainTable

    from .engine import Host

__all__ = ["build_reference_class"]

SHORTEST_S = 0.001  # of what is left to a call whose activation ended while it waited
INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # what MessagePack carries

SLOW = """\
async def {name}{signature}:
    return await _ms_call(
        _ms_host, _ms_table, _ms_self._ms_key, _ms_spec_{index}, ({arguments}){options})
"""

DIRECT = """\
async def {name}{signature}:
    _ms_act = _ms_activations.get(_ms_self._ms_key)
    _ms_up = _ms_get()
    while _ms_up is not None and _ms_up.done:
        _ms_up = _ms_up.parent
    if _ms_act is None or (_ms_act.gate and (
            _ms_act.running is None or _ms_router.has_line(_ms_kind, _ms_act.key))) or (
            _ms_up is not None and (
            (_ms_up.depth + 1) % _ms_nest == 0 or _ms_up.depth >= _ms_longest)):
        return await _ms_call(
            _ms_host, _ms_table, _ms_self._ms_key, _ms_spec_{index}, ({arguments}))
{isolation}\
    _ms_task = _ms_find_task()
    _ms_until = _ms_time() + _ms_seconds_{index}
    if _ms_up is None:
        _ms_req = _ms_Request(
            None, _ms_task, _ms_act, _ms_spec_{index}, _ms_until, 1, _ms_task.cancelling())
        _ms_group = _ms_group_{index}
    else:
        _ms_tight = _ms_up.task is _ms_task
        _ms_group = _ms_group_{index}
        if _ms_up.deadline < _ms_until:
            _ms_until = _ms_up.deadline
            _ms_group = None if _ms_tight else _ms_irregular
        _ms_req = _ms_Request(
            _ms_up, _ms_task, _ms_act, _ms_spec_{index}, _ms_until, _ms_up.depth + 1,
            _ms_task.cancelling(), _ms_tight)
    if _ms_group is not None:
        _ms_group[_ms_req] = None
        _ms_req.group = _ms_group
        if not _ms_pending.is_armed:
            _ms_pending.arm()
    _ms_bad = None
    try:
        if _ms_act.gate:
            _ms_req.activation = None
            if not await _ms_wait(_ms_host, _ms_act, _ms_req):
                _ms_finish(_ms_host, _ms_req)
                return await _ms_call(
                    _ms_host, _ms_table, _ms_self._ms_key, _ms_spec_{index}, ({arguments}),
                    _ms_max(_ms_req.deadline - _ms_time(), {shortest}))
        else:
            _ms_act.gate = 1
            _ms_act.is_used = True
            _ms_act.running = _ms_req
        _ms_set(_ms_req)
        _ms_value = await _ms_fn_{index}(_ms_act.grain{passed})
    except _ms_BaseException as _ms_error:
        _ms_bad = _ms_settle(_ms_host, _ms_req, _ms_error)
    else:
        _ms_req.done = True
        _ms_req.task = None
        if _ms_group is not None:
            _ms_group.pop(_ms_req, None)
        if _ms_act.mailbox is None:
            _ms_act.running = None
            _ms_act.gate = 0
        else:
            _ms_act.leave(_ms_req)
        if _ms_req.expired:
            _ms_task.uncancel()
            _ms_bad = _ms_timed_out(_ms_host, _ms_req)
    if _ms_bad is not None:
        _ms_task = _ms_req = _ms_act = _ms_up = None
        try:
            raise _ms_bad
        finally:
            _ms_bad = None
{result}\
    _ms_budget.left -= 1
    if not _ms_budget.left:
        await _ms_budget.pause()
    return _ms_value
"""


def build_reference_class(
    host: Host,
    table: GrainTable,
    grain_type: GrainType,
    base: type[Any] = Reference,
) -> type[Any]:
    """A subclass of `base` for a contract, with stubs bound to one silo or client.

    No call of an `OptionedReference` is direct.
    """
    for spec in grain_type.specs.values():
        spec.resolve()
    is_plain = base is not OptionedReference
    own_specs = [table.own_spec(spec) for spec in grain_type.specs.values()]
    namespace: dict[str, Any] = _globals(host, table)
    for index, (spec, own) in enumerate(zip(grain_type.specs.values(), own_specs, strict=True)):
        _bind_spec(namespace, index, own, host)
        for position, parameter in enumerate(spec.parameters):
            namespace[f"_ms_default_{index}_{position}"] = parameter.default
    exec(_code(grain_type, table.hosted or grain_type, own_specs, is_plain), namespace)
    body: dict[str, Any] = {"__slots__": (), "_ms_type": grain_type, "_ms_kind": table.name}
    body["_ms_optioned"] = staticmethod(host.optioned)
    for spec in grain_type.specs.values():
        stub = namespace[f"_ms_stub_{spec.name}"]
        stub.__name__ = spec.name
        stub.__qualname__ = spec.label
        stub.__doc__ = spec.fn.__doc__
        stub.__module__ = spec.fn.__module__
        stub.__signature__ = spec.signature
        body[spec.name] = stub
    return type(f"{grain_type.cls.__name__}Reference", (base,), body)


def _globals(host: Host, table: GrainTable) -> dict[str, Any]:
    return {
        "_ms_type": type,
        "_ms_int": int,
        "_ms_str": str,
        "_ms_BaseException": BaseException,
        "_ms_host": host,
        "_ms_table": table,
        "_ms_activations": table.activations,
        "_ms_max": max,
        "_ms_call": call,
        "_ms_wait": wait_turn,
        "_ms_finish": finish,
        "_ms_router": host.router,
        "_ms_kind": table.name,
        "_ms_Request": Request,
        "_ms_get": current_request.get,
        "_ms_set": current_request.set,
        "_ms_settle": settle,
        "_ms_timed_out": timed_out,
        "_ms_find_task": host.find_task,
        "_ms_time": host.loop.time,
        "_ms_pending": host.pending,
        "_ms_irregular": host.pending.irregular,
        "_ms_budget": host.budget,
        "_ms_nest": host.options.nested_turns_max,
        "_ms_longest": host.options.chain_turns_max,
    }


def _bind_spec(namespace: dict[str, Any], index: int, spec: MethodSpec, host: Host) -> None:
    spec.resolve()
    seconds = spec.timeout_s or host.options.call_timeout_s
    namespace[f"_ms_spec_{index}"] = spec
    namespace[f"_ms_fn_{index}"] = spec.fn
    namespace[f"_ms_seconds_{index}"] = seconds
    namespace[f"_ms_group_{index}"] = host.pending.group(seconds)
    for position in range(len(spec.parameters)):
        namespace[f"_ms_fast_{index}_{position}"] = _passed_as_is(spec.codecs[position].fast_types)
        namespace[f"_ms_isolate_{index}_{position}"] = spec.argument_isolator(position)
    namespace[f"_ms_fast_{index}_result"] = _passed_as_is(spec.result.fast_types)
    namespace[f"_ms_isolate_result_{index}"] = spec.result_isolator()


def _code(
    grain_type: GrainType, hosted: GrainType, own_specs: list[MethodSpec], is_plain: bool
) -> Any:
    """The compiled stubs; whether one may be direct, the hosted class decides, if there is one."""
    source = "\n".join(
        _stub_source(index, spec, own, is_plain, is_plain and _may_be_direct(hosted, own))
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
    """Exclusive methods of plain grains: what the fast path of a stub is written for."""
    options = grain_type.options
    writes = any(field.writes_each_turn for field in grain_type.states.values())
    special = spec.is_read_only or spec.is_interleaving or spec.is_one_way or spec.is_shielded
    return options.direct and not (options.reentrant or special or writes)


def _stub_source(
    index: int, spec: MethodSpec, own: MethodSpec, is_plain: bool, is_direct: bool
) -> str:
    names = [parameter.name for parameter in spec.parameters]
    return (DIRECT if is_direct else SLOW).format(
        name=f"_ms_stub_{spec.name}",
        shortest=SHORTEST_S,
        index=index,
        signature=_signature(index, spec),
        arguments="".join(f"{name}, " for name in names),
        options="" if is_plain else ", _ms_self._ms_timeout_s, _ms_self._ms_headers",
        passed="".join(
            f", {p.name}={p.name}" if p.kind is p.KEYWORD_ONLY else f", {p.name}"
            for p in spec.parameters
        ),
        isolation="".join(
            f"    if {_needs_isolation(name, own.codecs[i].fast_types, f'{index}_{i}')}:\n"
            f"        {name} = _ms_isolate_{index}_{i}({name}, _ms_host)\n"
            for i, name in enumerate(names)
        ),
        result=(
            f"    if {_needs_isolation('_ms_value', own.result.fast_types, f'{index}_result')}:\n"
            f"        _ms_value = _ms_isolate_result_{index}(_ms_value, _ms_host)\n"
        ),
    )


def _needs_isolation(name: str, fast_types: frozenset[type], fast_name: str) -> str:
    """The test that a value does not pass as it is: type, and what the wire would refuse."""
    if fast_types == {int}:
        return f"_ms_type({name}) is not _ms_int or not {INT_MIN} <= {name} <= {INT_MAX}"
    if fast_types == {str}:
        return f"_ms_type({name}) is not _ms_str or not {name}.isascii()"
    return f"_ms_type({name}) not in _ms_fast_{fast_name}"


def _passed_as_is(fast_types: frozenset[type]) -> frozenset[type]:
    """Without int and str, of which some values cannot be sent."""
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
