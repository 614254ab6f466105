"""Balancers: which silo should read which queue."""

from millstream.runtime.extending import publish

from .best_fit import best_fit
from .deployment import DeploymentBalancer
from .lease import LeaseBalancer
from .ring import RingBalancer

__all__ = ["DeploymentBalancer", "LeaseBalancer", "RingBalancer", "best_fit"]

publish(__name__)
