"""The public name of the contract suite that authors of queue adapters run against their own."""

from __future__ import annotations

from .contracts.suite import ADAPTER_CHECKS, AdapterBench, run_adapter_check

__all__ = ["ADAPTER_CHECKS", "AdapterBench", "run_adapter_check"]
