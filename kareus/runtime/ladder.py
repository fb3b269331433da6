"""The ladder: process groups by rank tuple, kind of collective and SM budget, created once in attach.

With NCCL 2.28 a budget belongs to a communicator and is fixed when it is made, so choosing a budget for
a collective means choosing a group. All ranks create all groups in one sorted order, also those they are
not members of. Independent NCCL communicators cost hundreds of MB each, so their number is bounded and
their memory measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from kareus.runtime import torch_api
from kareus.schedule import Path, Schedule

MAX_RUNGS = 4
Rung = tuple[tuple[int, ...], str, int]  # ranks, kind, number of CTAs (0: NCCL's default)


def limit_budgets(budgets: Counter[int], limit: int = MAX_RUNGS) -> dict[int, int]:
    """Map each requested budget to one of at most `limit` that get a communicator.

    The most used ones stay (the larger first among equals); others go to the nearest that stays, the
    larger one where two are equally near.

    Args:
        budgets: how often each budget, in CTAs, is asked for.
    """
    kept = sorted(sorted(budgets, key=lambda b: (-budgets[b], -b))[:limit])
    return {b: min(kept, key=lambda k: (abs(k - b), -k)) for b in budgets}


@dataclass(kw_only=True)
class Ladder:
    """Groups by (ranks, kind, CTAs).

    Attributes:
        groups: what was created, members only. nearest: requested budget to the one that exists, by kind.
        memory_bytes: device memory taken while they were made, 0 on CPU.
        separate: kinds that have a group of their own at NCCL's default budget.
    """

    groups: dict[Rung, dist.ProcessGroup] = field(default_factory=dict)
    nearest: dict[tuple[str, int], int] = field(default_factory=dict)
    memory_bytes: int = 0
    separate: frozenset[str] = frozenset()

    def pick(self, group: dist.ProcessGroup, kind: str, num_ctas: int | None) -> dist.ProcessGroup:
        """Return the group to use in place of `group`; `group` itself where the ladder has none.

        Depends only on the ranks of `group`, the kind and the budget, which are the same on all ranks.
        """
        if num_ctas is None and kind not in self.separate:
            return group
        ranks = torch_api.group_ranks(group)
        budget = 0 if num_ctas is None else self.nearest.get((kind, num_ctas), num_ctas)
        return self.groups.get((ranks, kind, budget), group)

    def rungs(self) -> list[str]:
        """Return the created groups in words, for the report."""
        return [
            f"{kind} of ranks {list(ranks)}: {ctas or 'default'} CTAs" for ranks, kind, ctas in self.groups
        ]


def wanted_rungs(
    schedule: Schedule, kinds: Iterable[str], limit: int = MAX_RUNGS
) -> tuple[dict[str, list[int]], dict[tuple[str, int], int]]:
    """Return the budgets to create for each kind, and the map from requested to created budgets."""
    budgets: dict[str, list[int]] = {}
    nearest: dict[tuple[str, int], int] = {}
    for kind in sorted(set(kinds)):
        asked = Counter(
            d.num_ctas
            for d in schedule.decisions
            if d.collective.kind == kind and d.num_ctas is not None and d.path is Path.NCCL
        )
        kept = limit_budgets(asked, limit)
        nearest.update({(kind, b): k for b, k in kept.items()})
        budgets[kind] = sorted(set(kept.values()))
        if kind == "reduce_scatter" and schedule.separate_reduce_scatter_group:
            budgets[kind].append(0)
    return budgets, nearest


def build_ladder(
    schedule: Schedule,
    *,
    all_tuples: list[tuple[int, ...]],
    kinds: Iterable[str],
    device: torch.device,
    limit: int = MAX_RUNGS,
) -> Ladder:
    """Create every group the schedule needs; a collective call that all ranks of the job make.

    Args:
        all_tuples: rank tuples of the groups in use anywhere in the job, the same list on every rank.
        kinds: kinds of collectives the job issues. device: where they run.
    """
    budgets, nearest = wanted_rungs(schedule, kinds, limit)
    backend = torch_api.backend_name()
    before = _free_memory(device)
    ladder = Ladder(
        nearest=nearest,
        separate=frozenset({"reduce_scatter"} if schedule.separate_reduce_scatter_group else ()),
    )
    rank = dist.get_rank()
    for ranks in sorted(set(all_tuples)):
        if list(ranks) != sorted(ranks):
            continue  # new_group sorts its ranks, so shards would land in another order
        for kind in sorted(budgets):
            for budget in budgets[kind]:
                group = _new_group(ranks, kind, budget, backend)
                if rank in ranks:
                    ladder.groups[(ranks, kind, budget)] = group
                    _warm_up(group, backend, device)
    ladder.memory_bytes = max(0, before - _free_memory(device))
    return ladder


def _new_group(ranks: tuple[int, ...], kind: str, budget: int, backend: str) -> dist.ProcessGroup:
    name = f"kareus_{kind}_{budget or 'default'}"
    options = torch_api.nccl_options(budget or None, high_priority=False) if backend == "nccl" else None
    group: dist.ProcessGroup = torch_api.new_group(list(ranks), description=name, options=options)
    return group


def _warm_up(group: dist.ProcessGroup, backend: str, device: torch.device) -> None:
    """Make NCCL build the communicator now, in the same order everywhere, and not inside a step."""
    if backend == "nccl":
        dist.all_reduce(torch.zeros(1, device=device), group=group)
        torch.cuda.synchronize(device)


def _free_memory(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0
