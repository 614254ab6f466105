"""Balancers: which silo should read which queue."""

from .best_fit import best_fit
from .deployment import DeploymentBalancer

__all__ = ["DeploymentBalancer", "best_fit"]
