"""The ranks of one job: files found, read one at a time, clocks aligned, collectives matched.

Ends of a collective agree across ranks to tens of microseconds, starts do not: a rank that arrives early
waits inside its kernel. So clocks are aligned on ends, and a collective's duration splits into waiting
for the last rank and moving data. One rank alone can only give an upper bound of the latter.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from kareus.errors import InputError
from kareus.trace.execution import beside
from kareus.trace.folder import trace_files
from kareus.trace.kernels import Rule
from kareus.trace.kineto import read_trace
from kareus.trace.manifest import Manifest
from kareus.trace.matching import match_keys
from kareus.trace.members import assign_ranks
from kareus.trace.types import (
    I64,
    CollectiveKind,
    PowerSamples,
    Trace,
    TraceWarning,
)

ONE_RUN_NS = 600 * 10**9  # clocks of hosts differ by less; recordings further apart are of different runs
LOADED_AT_ONCE = 2  # a trace of a large job is tens of megabytes of columns; keep the pair being compared
ALIGNABLE = {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_REDUCE,
             CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND_RECV, CollectiveKind.OTHER}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """One collective on every rank that recorded it; columns over ranks on rank 0's clock.

    Attributes:
        kind, num_bytes, unit: what it is. ranks: int64[r], ascending.
        start_ns, end_ns: int64[r]. wait_ns: until the last rank arrived. transfer_ns: one figure,
            last end minus last start; an upper bound where ranks are missing.
    """

    kind: CollectiveKind
    num_bytes: int
    unit: str
    ranks: I64
    start_ns: I64
    end_ns: I64
    wait_ns: I64
    transfer_ns: int

    @property
    def last_rank(self) -> int:
        """The rank the others waited for."""
        return int(self.ranks[int(self.start_ns.argmax())])


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """Clock offsets and matched collectives of a job.

    Attributes:
        offset_ns: rank -> add to its times to get the first rank's clock.
        uncertainty_ns: rank -> median absolute deviation of the end differences.
        collectives: matched ones in order of the first rank.
        complete: every rank of the job is there, so transfer times are exact.
    """

    offset_ns: dict[int, int]
    uncertainty_ns: dict[int, int]
    collectives: tuple[Matched, ...]
    complete: bool

    def stragglers(self, share: float = 0.5) -> dict[int, float]:
        """Return ranks that arrived last in more than `share` of the collectives, with that share."""
        if not self.collectives:
            return {}
        last = np.array([m.last_rank for m in self.collectives])
        ranks, counts = np.unique(last, return_counts=True)
        return {
            int(r): float(c / len(last)) for r, c in zip(ranks, counts, strict=True) if c / len(last) > share
        }


class TraceSet:
    """The traces of one job. Make it with `TraceSet.open`."""

    def __init__(
        self,
        files: dict[int, Path],
        world_size: int,
        manifest: Manifest | None,
        warnings: tuple[TraceWarning, ...],
        names: Sequence[Rule] = (),
        execution: dict[int, Path] | None = None,
    ) -> None:
        self._names = names
        self._asked_execution = execution
        self.files = files
        self.world_size = world_size
        self.manifest = manifest
        self._warnings = list(warnings)
        self._load = lru_cache(maxsize=LOADED_AT_ONCE)(self._read)

    @classmethod
    def open(
        cls,
        source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        names: Sequence[Rule] = (),
        execution: Sequence[str | os.PathLike[str]] = (),
        rank: int | None = None,
    ) -> TraceSet:
        """Find the trace files of a job. What is no trace is left out with a warning that names it.

        Args:
            source: a directory with one file per rank (manifest.json optional), one file, or several files.
            names: rows tried before the built-in table of kernel names.
            execution: execution traces, one a rank in the order of ranks; without them, what lies beside
                each file under a usual name is taken where it fits.
            rank: of a single file that does not say it.

        Raises:
            InputError: fewer or more execution traces than ranks, nothing there, or see `assign_ranks`.
        """
        paths, directory = trace_files(source)
        manifest = Manifest.load(directory) if directory is not None else None
        warnings: list[TraceWarning] = []
        files, world, refused = assign_ranks(paths, rank)
        if refused:
            shown = "; ".join(str(error) for error in refused[:3])
            more = f"; and {len(refused) - 3} more" if len(refused) > 3 else ""
            warnings.append(
                TraceWarning(code="skipped-files", count=len(refused), text=f"left out: {shown}{more}")
            )
        files = dict(sorted(files.items()))
        world_size = max(manifest.world_size if manifest else 0, world, max(files) + 1)
        warnings += _missing(files, world_size, manifest, source)
        return cls(files, world_size, manifest, tuple(warnings), names, _execution_of(files, execution))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks with a file, ascending."""
        return tuple(self.files)

    @property
    def complete(self) -> bool:
        """True when every rank of the job has a file."""
        return len(self.files) == self.world_size

    @property
    def warnings(self) -> tuple[TraceWarning, ...]:
        """What was missing, dropped or guessed, in the set and in the traces loaded so far."""
        return tuple(self._warnings)

    def load(self, rank: int) -> Trace:
        """Read one rank's trace; the two read last stay in memory.

        Raises:
            InputError: no such rank, or its file cannot be used.
        """
        if rank not in self.files:
            raise InputError(f"no trace of rank {rank}; there are ranks {', '.join(map(str, self.ranks))}")
        return self._load(rank)

    def _read(self, rank: int) -> Trace:
        path, asked = self.files[rank], self._asked_execution
        trace = read_trace(
            path,
            rank=rank,
            names=self._names,
            execution=beside(path) if asked is None else (asked[rank],),
            execution_asked=asked is not None,
        )
        self._warnings += [w for w in trace.warnings if w not in self._warnings]
        world = max(trace.world_size, self.world_size)
        return replace(trace, world_size=world, power=self._power(rank))

    def _power(self, rank: int) -> PowerSamples:
        """NVML samples written beside the trace, if the manifest names any."""
        name = self.manifest.samples.get(str(rank)) if self.manifest else None
        if not name:
            return PowerSamples()
        from kareus.trace.samples import read_samples

        return read_samples(self.files[rank].parent / Path(name).name)

    @cached_property
    def alignment(self) -> Alignment:
        """Clock offsets and the table of matched collectives; reads every rank once."""
        reference: dict[tuple[object, ...], tuple[int, int]] | None = None
        rows: dict[tuple[object, ...], list[tuple[int, int, int]]] = defaultdict(list)
        offsets: dict[int, int] = {}
        spread: dict[int, int] = {}
        facts: dict[tuple[object, ...], tuple[CollectiveKind, int, str]] = {}
        for rank in self.ranks:
            table = _table(self.load(rank), facts)
            if reference is None:
                reference = table
            common = [k for k in table if k in reference and facts[k][0] in ALIGNABLE]
            differences = np.array([reference[k][1] - table[k][1] for k in common], np.int64)
            offsets[rank] = int(np.median(differences)) if len(differences) else 0
            spread[rank] = int(np.median(np.abs(differences - offsets[rank]))) if len(differences) else 0
            for key, (start, end) in table.items():
                rows[key].append((rank, start + offsets[rank], end + offsets[rank]))
        self._warn_of_other_runs(offsets)
        matched = tuple(_match(facts[k], v) for k, v in rows.items() if len(v) > 1)
        return Alignment(
            offset_ns=offsets,
            uncertainty_ns=spread,
            collectives=tuple(sorted(matched, key=lambda m: int(m.start_ns[0]))),
            complete=self.complete,
        )

    def _warn_of_other_runs(self, offsets: dict[int, int]) -> None:
        far = [rank for rank, offset in offsets.items() if abs(offset) > ONE_RUN_NS]
        if far:
            self._warnings.append(
                TraceWarning(
                    code="other-run",
                    count=len(far),
                    text=f"{self.files[far[0]]}: recorded {abs(offsets[far[0]]) / 3.6e12:.1f} hours from "
                    f"{self.files[self.ranks[0]]} by their clocks; waits and transfers of collectives mean nothing "
                    "where the files are of different runs: keep those of one",
                )
            )


def _execution_of(
    files: dict[int, Path], execution: Sequence[str | os.PathLike[str]]
) -> dict[int, Path] | None:
    """Execution traces that were asked for, by rank; None where none was."""
    if not execution:
        return None
    if len(execution) != len(files):
        raise InputError(
            f"{len(execution)} execution traces for {len(files)} ranks ({', '.join(map(str, [*files][:8]))}); pass "
            "one for each, in the order of ranks"
        )
    return dict(zip(files, map(Path, execution), strict=True))


def _missing(
    files: dict[int, Path], world_size: int, manifest: Manifest | None, source: object
) -> tuple[TraceWarning, ...]:
    missing = [rank for rank in range(world_size) if rank not in files]
    if not missing:
        return ()
    shown = ", ".join(map(str, missing[:8])) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
    reasons = "; ".join(manifest.missing.values()) if manifest and manifest.missing else ""
    return (
        TraceWarning(
            code="missing-ranks",
            count=len(missing),
            text=f"{source}: a job of {world_size} ranks, no trace of rank {shown}"
            f"{' (' + reasons + ')' if reasons else ''}; without them a collective's cost is an upper bound",
        ),
    )


def _table(
    trace: Trace, facts: dict[tuple[object, ...], tuple[CollectiveKind, int, str]]
) -> dict[tuple[object, ...], tuple[int, int]]:
    """Collectives of one rank: key -> (start, end)."""
    table: dict[tuple[object, ...], tuple[int, int]] = {}
    for key, op in match_keys(trace.ops, trace.collectives).items():
        collective = trace.collectives[int(trace.ops.collective[op])]
        facts.setdefault(key, (collective.kind, collective.num_bytes, collective.unit))
        table[key] = int(trace.ops.start_ns[op]), int(trace.ops.end_ns[op])
    return table


def _match(fact: tuple[CollectiveKind, int, str], rows: list[tuple[int, int, int]]) -> Matched:
    columns = np.array(sorted(rows), np.int64)
    start, end = columns[:, 1], columns[:, 2]
    return Matched(
        kind=fact[0],
        num_bytes=fact[1],
        unit=fact[2],
        ranks=columns[:, 0],
        start_ns=start,
        end_ns=end,
        wait_ns=start.max() - start,
        transfer_ns=max(0, int(end.max() - start.max())),
    )
