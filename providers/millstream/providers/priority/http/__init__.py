"""Priority queues over HTTP and JSON; needs the extra `http`.

Owns the server, its connections and limits, the token, and the checks of a request before it is
served (`incoming`). Reading starts at `server.py`.
May import `core`, `owner`, `runtime` and `surface`.
"""

from millstream.runtime.extending import publish

from .options import HttpOptions
from .server import PriorityApi
from .token import TOKEN_VARIABLE

__all__ = ["TOKEN_VARIABLE", "HttpOptions", "PriorityApi"]

publish(__name__)
