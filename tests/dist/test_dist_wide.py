"""Three and four ranks: gradient scaling where stock scales, HSDP and partial resharding."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")

THREE: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("hard", {"wrapper": "ddp", "oddity": "", "copies": False}),
    "ddp half": ("hard", {"wrapper": "ddp", "oddity": "half", "copies": False}),
    "ddp half views": (
        "hard",
        {"wrapper": "ddp", "oddity": "half", "copies": False, "wrap": {"gradient_as_bucket_view": True}},
    ),
    "ddp kept views": (
        "hard",
        {"wrapper": "ddp", "oddity": "kept", "copies": False, "wrap": {"gradient_as_bucket_view": True}},
    ),
    "ddp accumulate": ("hard", {"wrapper": "ddp", "oddity": "accumulate no sync", "copies": False}),
    "fsdp2": ("hard", {"wrapper": "fsdp2", "oddity": "", "copies": False}),
    "fsdp2 half": ("hard", {"wrapper": "fsdp2", "oddity": "half", "copies": False}),
    "close ddp": ("closeness", {"wrapper": "ddp"}),
    "close fsdp2": ("closeness", {"wrapper": "fsdp2"}),
}
FOUR: dict[str, tuple[str, dict[str, Any]]] = {
    "hsdp": ("meshes", {"kind": "hsdp"}),
    "partial": ("meshes", {"kind": "partial"}),
    "copies inside hosts": ("meshes", {"kind": "hsdp", "hosts": "aabb"}),
    "copies across hosts": ("meshes", {"kind": "hsdp", "hosts": "abab"}),
    "copies on four hosts": ("meshes", {"kind": "hsdp", "hosts": "abcd"}),
}


@pytest.fixture(scope="module")
def three() -> dict[str, list[Any]]:
    return dict(zip(THREE, run_world(3, list(THREE.values()), module="dist_wide"), strict=True))


@pytest.fixture(scope="module")
def four() -> dict[str, list[Any]]:
    return dict(zip(FOUR, run_world(4, list(FOUR.values()), module="dist_wide"), strict=True))


@pytest.mark.parametrize("name", [n for n in THREE if not n.startswith("close")])
def test_three_ranks_equal_stock(three: dict[str, list[Any]], name: str) -> None:
    for result in succeed(three[name]):
        assert result["equal"], (result["losses"], result["report"])
        assert "scheduled" in result["arms"]


@pytest.mark.parametrize("name", ["close ddp", "close fsdp2"])
def test_copies_on_three_ranks_are_close(three: dict[str, list[Any]], name: str) -> None:
    for result in succeed(three[name]):
        assert result["worst"] < 1e-4
        assert "path_unavailable" not in result["counts"]


@pytest.mark.parametrize("name", ["copies inside hosts", "copies across hosts", "copies on four hosts"])
def test_copies_stay_inside_a_host(four: dict[str, list[Any]], name: str) -> None:
    for result in succeed(four[name]):
        assert result["equal"]
        assert result["arms"].count("scheduled") >= 5
        assert ("path_unavailable" in result["counts"]) == (name != "copies inside hosts")
        assert ("copy_engine_unavailable" in result["counts"]) == (name != "copies inside hosts")


@pytest.mark.parametrize("name", ["hsdp", "partial"])
def test_meshes_equal_stock(four: dict[str, list[Any]], name: str) -> None:
    for result in succeed(four[name]):
        assert result["equal"]
        assert result["arms"].count("scheduled") >= 5
        assert any("ranks [0, 1]" in g or "ranks [2, 3]" in g for g in result["groups"]), result["groups"]
