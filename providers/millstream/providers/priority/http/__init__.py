"""An HTTP and JSON API of priority queues, for programs in any language. It needs the extra `http`.

Install it in a clone with `pip install -c constraints.txt '.[http]'`. `PriorityApi` is the server.
`docs/reference/priority_http.md` describes its routes, status codes and guarantees.

Owns the server, its connections and limits, the token, and the checks of a request before a route
serves it (`incoming`). Reading starts at `server.py`.
May import `core`, `owner`, `runtime` and `surface`.
"""

from millstream.runtime.extending import publish

from .options import HttpOptions
from .server import PriorityApi
from .token import TOKEN_VARIABLE

__all__ = ["TOKEN_VARIABLE", "HttpOptions", "PriorityApi"]

publish(__name__)
