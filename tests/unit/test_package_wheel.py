"""What an installed Kareus consists of: a wheel with exactly the two packages."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names of the files in a wheel built offline from this checkout."""
    pytest.importorskip("hatchling", reason="builds need hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_holds_kareus_and_solver_and_nothing_else(names: list[str]) -> None:
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kareus", "solver"}
    assert len(tops) == 3


def test_holds_every_module_and_the_typing_marker(names: list[str]) -> None:
    modules = {
        str(path.relative_to(ROOT)) for top in ("kareus", "solver") for path in (ROOT / top).rglob("*.py")
    }
    assert modules <= set(names)
    assert "kareus/py.typed" in names


def test_carries_the_licence_and_the_command(names: list[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)
