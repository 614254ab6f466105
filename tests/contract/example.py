"""Loads the adapter of the examples, which is not in a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["EXAMPLE", "jsonl"]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "custom_adapter"


def load_example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("jsonl_queues", EXAMPLE / "jsonl_queues.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["jsonl_queues"] = module
    spec.loader.exec_module(module)
    return module


jsonl = load_example()
