"""The replicated log under fire: its tests share the workload of the log on one machine."""

from __future__ import annotations

import sys
from pathlib import Path

# fault_workload.py: writers and readers do not care how many machines there are.
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
