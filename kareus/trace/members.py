"""Which rank of which job each trace file is, read from as little of the file as possible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kareus.errors import InputError
from kareus.trace.compact import is_compact, read_compact
from kareus.trace.execution import is_execution_trace
from kareus.trace.jsonstream import EventStream
from kareus.trace.rawtrace import mapping, whole

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[_-]?(\d+)|(?:^|[._-])r(\d+)(?=[._-])", re.IGNORECASE)


def rank_in_name(path: Path) -> int | None:
    """Return the rank that a file's name says (rank3.json, trace_rank_3.json, x.r3.json), None where it says none."""
    found = _RANK_IN_NAME.search(path.name)
    rank = int(found.group(1) or found.group(2)) if found else -1
    return rank if 0 <= rank < 2**31 else None


def assign_ranks(paths: Sequence[Path], rank: int | None) -> tuple[dict[int, Path], int, list[InputError]]:
    """Return the trace file of each rank, the largest world size they say, and refusals of what is no trace.

    Execution traces among the files are left out without a word: they lie beside and are joined later.

    Args:
        rank: of a single file that does not say it.

    Raises:
        InputError: two files of one rank, a rank nowhere to be found or outside its job, files of jobs of different
            size, or not one trace among the files.
    """
    files: dict[int, Path] = {}
    worlds: dict[int, Path] = {}
    nameless: list[Path] = []
    refused: list[InputError] = []
    others: list[InputError] = []
    for path in paths:
        try:
            found, world = _identity(path)
        except InputError as error:
            (others if is_execution_trace(path) else refused).append(error)
            continue
        worlds.setdefault(world, path)
        if found is None:
            nameless.append(path)
            continue
        if found in files:
            raise InputError(f"two traces of rank {found}: {files[found]} and {path}; keep one of them")
        if found >= world > 1:
            raise InputError(
                f"{path}: distributedInfo says rank {found} of a job of {world} ranks, which has ranks 0 to "
                f"{world - 1}; mend rank or world_size in it"
            )
        files[found] = path
    if not files and not nameless:
        raise (refused or others)[0]
    if len(said := sorted(world for world in worlds if world > 1)) > 1:
        raise InputError(
            f"files of different jobs: {worlds[said[0]]} is of a job of {said[0]} ranks, {worlds[said[-1]]} of one of "
            f"{said[-1]}; keep those of one job"
        )
    if nameless:
        files[_rank_of_nameless(nameless, files, max(worlds), rank)] = nameless[0]
    return files, max(worlds), refused


def _rank_of_nameless(nameless: list[Path], files: dict[int, Path], world: int, rank: int | None) -> int:
    alone = len(nameless) == 1 and not files
    if alone and rank is not None:
        return rank
    if alone and world == 1:
        return 0
    job = f"a job of {world} ranks, but " if world > 1 else ""
    free = next(number for number in range(len(files) + 1) if number not in files)
    ask = " or pass --rank" if alone else ""
    raise InputError(
        f"{nameless[0]}: {job}neither distributedInfo nor the file name says which rank this is; name it "
        f"rank{free}.json, with its own rank{ask}"
    )


def _identity(path: Path) -> tuple[int | None, int]:
    """Rank (None where nothing says it) and world size from the file's facts or its name."""
    if is_compact(path):
        trace = read_compact(path)
        return trace.rank, trace.world_size
    stream = EventStream(path)
    info = mapping(stream.read_header(), "distributedInfo")
    if not info:  # on-demand traces (dynolog) write it behind the events
        info = mapping(stream.read_end(), "distributedInfo")
    rank = whole(info.get("rank"))
    return rank_in_name(path) if rank is None else rank, whole(info.get("world_size"), 1) or 1
