"""OR-Tools stays inside solver.cpsat: the import contract names every other module of the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_import_contract_covers_every_solver_module() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (only,) = [c for c in contracts if c["forbidden_modules"] == ["ortools"]]
    listed = {name for name in only["source_modules"] if name.startswith("solver.")}
    there = {
        f"solver.{entry.stem}"
        for entry in (ROOT / "solver").iterdir()
        if (entry.suffix == ".py" or (entry / "__init__.py").is_file()) and entry.stem != "__init__"
    }
    assert there - listed == {"solver.cpsat"}
    assert listed <= there
