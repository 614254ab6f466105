"""A store of priority queues in Redis, for the silos of several machines.

It needs the extra `redis`.

Install it with `pip install 'millstream[redis]'`. Only this package imports the Redis client.

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
        "priority queues in Redis need its client: pip install 'millstream[redis]'", name="redis"
    ) from error

__all__ = ["RedisOptions", "RedisStore"]

publish(__name__)
