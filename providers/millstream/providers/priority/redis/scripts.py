"""The changes in Redis. Each change is one script, so it is atomic.

Owns the scripts. Their arguments are made in `rows`, and `server` sends them.

Each script answers a list whose first element is the outcome: `ok`, or the reason why it changed
nothing. A script that changes a queue first compares the owner's mark, `epoch:nonce:commits`. It is
therefore refused if there is another owner, and also if the server lost something that it had
acknowledged.

A server that has no memory left, cannot write to its disk, or is a replica refuses a script with
`#!lua` before it starts. With `allow-oom`, only the last two cases are refused.
"""

from __future__ import annotations

from hashlib import sha1
from typing import NamedTuple

__all__ = ["ACQUIRE", "COMMIT", "CONFIRM", "DELETE", "FORM", "NAME", "Script"]

FORM = "2"
"""The version of the form of a lane."""


class Script(NamedTuple):
    name: str
    text: str
    sha: str


def script(name: str, text: str) -> Script:
    return Script(name, text, sha1(text.encode(), usedforsecurity=False).hexdigest())


# KEYS: head, states, bodies, sessions, answers, lane, names, due, events. ARGV: queue, nonce,
# settings of a created queue or '', now_ms, form. A script that fails in the middle keeps its
# changes, so keys of another type are refused first.
ACQUIRE = script(
    "acquire",
    """#!lua
local kinds = {'hash', 'hash', 'hash', 'hash', 'hash', 'hash', 'zset', 'zset', 'stream'}
for at, kind in ipairs(kinds) do
  local found = redis.call('TYPE', KEYS[at]).ok
  if found ~= 'none' and found ~= kind then return {'foreign', KEYS[at], found} end
end
local form = redis.call('HGET', KEYS[6], 'form')
if form and form ~= ARGV[5] then return {'form', form} end
local is_absent = redis.call('HEXISTS', KEYS[1], 'settings') == 0
if is_absent and ARGV[3] == '' then return {'absent'} end
redis.call('HSET', KEYS[6], 'form', ARGV[5])
local epoch = redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'mark', string.format('%d:%s:0', epoch, ARGV[2]))
if is_absent then
  redis.call('HSET', KEYS[1], 'settings_version', '1', 'settings', ARGV[3], 'now_ms', ARGV[4])
  redis.call('ZADD', KEYS[7], 0, ARGV[1])
end
local head = redis.call('HMGET', KEYS[1], 'epoch', 'settings_version', 'settings', 'sequence',
  'leases', 'layout', 'now_ms', 'ahead_ms',
  'due_ms')
return {'ok', redis.call('XLEN', KEYS[9]), unpack(head)}
""",
)

# Positions of events are microseconds of the server's clock, or follow the last position. So no
# position is given twice, even if the last ones were lost. KEYS: head, states, bodies, sessions,
# answers, lane, due, events. ARGV: mark, next mark, queue, due_ms or '', then lists, each after its
# length: see `rows`.
COMMIT = script(
    "commit",
    """#!lua
local mark = redis.call('HGET', KEYS[1], 'mark')
if mark ~= ARGV[1] then return {'lost', mark or ''} end
local at = 5
local function each(command, ...)
  local last = at + tonumber(ARGV[at])
  for _, key in ipairs({...}) do
    for from = at + 1, last, 4000 do
      redis.call(command, key, unpack(ARGV, from, math.min(from + 3999, last)))
    end
  end
  at = last + 1
end
redis.call('HSET', KEYS[1], 'mark', ARGV[2])
if ARGV[4] == '' then
  redis.call('HDEL', KEYS[1], 'due_ms')
  redis.call('ZREM', KEYS[7], ARGV[3])
else
  redis.call('HSET', KEYS[1], 'due_ms', ARGV[4])
  redis.call('ZADD', KEYS[7], ARGV[4], ARGV[3])
end
each('HSET', KEYS[1])
each('HDEL', KEYS[2], KEYS[3])
each('HSET', KEYS[3])
each('HSET', KEYS[2])
each('HDEL', KEYS[4])
each('HDEL', KEYS[5])
each('HSET', KEYS[4])
each('HSET', KEYS[5])
local events = tonumber(ARGV[at])
if events > 0 then
  local time = redis.call('TIME')
  local position = tonumber(redis.call('HGET', KEYS[6], 'position') or '0')
  position = math.max(position, time[1] * 1000000 + time[2])
  redis.call('HSET', KEYS[6], 'position', string.format('%d', position + events))
  for n = 1, events do
    redis.call('XADD', KEYS[8], string.format('%d-0', position + n), 'e', ARGV[at + n])
  end
end
return {'ok', redis.call('XLEN', KEYS[8])}
""",
)

# KEYS: head. ARGV: mark. It writes nothing, but has no flag `no-writes`, so that a replica refuses
# it.
CONFIRM = script(
    "confirm",
    """#!lua flags=allow-oom
local mark = redis.call('HGET', KEYS[1], 'mark')
if mark ~= ARGV[1] then return {'lost', mark or ''} end
return {'ok'}
""",
)

# KEYS: head, states, bodies, sessions, answers, names, due. ARGV: mark, next mark, queue. Epoch and
# counters are kept for the next queue of the name; its time is not.
DELETE = script(
    "delete",
    """#!lua flags=allow-oom
local mark = redis.call('HGET', KEYS[1], 'mark')
if mark ~= ARGV[1] then return {'lost', mark or ''} end
redis.call('HSET', KEYS[1], 'mark', ARGV[2])
redis.call('HDEL', KEYS[1], 'settings', 'settings_version', 'due_ms', 'now_ms', 'ahead_ms')
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.call('ZREM', KEYS[6], ARGV[3])
redis.call('ZREM', KEYS[7], ARGV[3])
return {'ok'}
""",
)

# KEYS: lane. ARGV: a name for the outbox, if it has none.
NAME = script(
    "name",
    """#!lua
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
return {'ok', redis.call('HGET', KEYS[1], 'id')}
""",
)
