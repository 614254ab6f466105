"""Priority queues over HTTP and JSON; needs the extra `http`."""

from millstream.runtime.extending import publish

from .options import HttpOptions
from .server import PriorityApi
from .token import TOKEN_VARIABLE

__all__ = ["TOKEN_VARIABLE", "HttpOptions", "PriorityApi"]

publish(__name__)
