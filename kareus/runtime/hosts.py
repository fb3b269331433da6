"""Which ranks share a machine: only their GPUs can copy from each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

Ranks = tuple[int, ...]


def host_identity() -> str:
    """Return text that differs between machines, as NCCL tells them apart.

    NCCL_HOSTID where set, else the host's name and its boot, since names repeat among containers.
    Source: NCCL src/misc/utils.cc, `getHostHash`.
    """
    given = os.environ.get("NCCL_HOSTID")
    if given:
        return given
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def ranks_by_host(identities: Sequence[str]) -> list[Ranks]:
    """Return the ranks of each host, hosts in order of their first rank.

    Args:
        identities: of every rank's host, in rank order.
    """
    found: dict[str, list[int]] = {}
    for rank, identity in enumerate(identities):
        found.setdefault(identity, []).append(rank)
    return [tuple(ranks) for ranks in found.values()]


def inside_one_host(tuples: Sequence[Ranks], identities: Sequence[str]) -> list[Ranks]:
    """Return those rank tuples whose ranks share a host.

    Args:
        tuples: ranks of groups. identities: of every rank's host; of one rank only where nobody answers
            (torch's fake process group), which then stands for all.
    """
    if len(identities) == 1:
        return list(tuples)
    return [ranks for ranks in tuples if len({identities[rank] for rank in ranks}) == 1]
