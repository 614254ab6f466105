"""A store of priority queues in Redis, for the silos of several machines.

It needs the extra `redis`.

Install it in a clone with `pip install -c constraints.txt '.[redis]'`. Only this package imports
the Redis client.

Owns the store, the connection to the server, the scripts and the form of rows. Reading starts at
`store.py`.
May import `core`, `runtime` and `store`.
"""

from millstream.runtime.extending import publish

try:
    from .options import RedisOptions
    from .store import RedisStore
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise ModuleNotFoundError(
        "priority queues in Redis need its client. In a clone of Millstream, run "
        "pip install -c constraints.txt '.[redis]'",
        name="redis",
    ) from error

__all__ = ["RedisOptions", "RedisStore"]

publish(__name__)
