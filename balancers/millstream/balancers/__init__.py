"""Balancers: they decide which silo reads which queue.

Owns the three balancers (`best_fit` behind `deployment`, `lease`, `ring`) and the rounds in which
they answer anew. Reading starts at `rounds.py`.
May import `runtime` and `streams`.
"""

from millstream.runtime.extending import publish

from .best_fit import best_fit
from .deployment import DeploymentBalancer
from .lease import LeaseBalancer
from .ring import RingBalancer

__all__ = ["DeploymentBalancer", "LeaseBalancer", "RingBalancer", "best_fit"]

publish(__name__)
