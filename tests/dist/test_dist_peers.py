"""A peer that is killed or stopped ends in torch's error, not in a hang; partly supported wrappers."""

from __future__ import annotations

from typing import Any

import pytest
from gloo_world import run_world, succeed

pytestmark = [pytest.mark.dist, pytest.mark.slow]
pytest.importorskip("torch")


@pytest.mark.parametrize(("wrapper", "how"), [("ddp", "killed"), ("fsdp2", "stopped")])
def test_lost_peer_ends_in_an_error_that_names_the_collective(wrapper: str, how: str) -> None:
    results = run_world(
        2,
        [("lost_peer", {"wrapper": wrapper, "how": how})],
        module="dist_peers",
        timeout_s=60,
        group_timeout_s=3,
        only=0,
    )
    found: dict[str, Any] = results[0][0]
    assert "error" not in found, found["error"]
    assert found["error_text"]
    assert found["seconds"] < 15
    assert not found["active"]
    if how == "stopped":
        assert "has waited" in found["messages"][0]
        assert "(" in found["messages"][0]


@pytest.fixture(scope="module")
def world() -> list[list[Any]]:
    return run_world(2, [("fsdp1", {}), ("foreign_hook", {})], module="dist_peers")


def test_fsdp1_takes_what_it_can_and_refuses_the_rest(world: list[list[Any]]) -> None:
    for result in succeed(world[0]):
        assert result["equal"]
        assert result["steps"] == 6
        assert "fully_shard" in result["refusal"]
        assert result["arguments"] == [
            "backward_prefetch",
            "forward_prefetch",
            "limit_all_gathers",
            "process_group",
        ]


def test_users_own_hook_is_refused_politely(world: list[list[Any]]) -> None:
    for result in succeed(world[1]):
        assert "allreduce_hook" in result["refusal"]
        assert "without one" in result["refusal"]
