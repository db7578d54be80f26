"""Result objects as files of a directory: `<system>-<variant>-<query>-<rate>-<n>.json`.

Law: no file is ever overwritten; n counts up from 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def keep(result: dict[str, Any], directory: Path) -> Path:
    """Write it under the next free number."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = [result[part] for part in ("system", "variant", "query")]
    name = "-".join((*parts, f"{result['rate']:.0f}"))
    number = 1
    while True:
        path = directory / f"{name}-{number}.json"
        try:
            with path.open("x") as file:
                json.dump(result, file, indent=1)
            return path
        except FileExistsError:
            number += 1
