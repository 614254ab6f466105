"""Balancers decide which silo reads which queue: pass one to `PersistentStreams(balancer=...)`.

A balancer answers at once when its silo starts, and when another silo is gone. [Writing a
balancer](../guides/balancer.md) has the rules for one of your own.

Owns the three balancers (`best_fit` behind `deployment`, `lease`, `ring`) and the rounds in which
they answer again. Reading starts at `rounds.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .best_fit import best_fit
from .deployment import DeploymentBalancer
from .lease import LeaseBalancer
from .ring import RingBalancer

__all__ = ["DeploymentBalancer", "LeaseBalancer", "RingBalancer", "best_fit"]

publish(__name__)
