"""Environment variables that override a schedule or make overlap impossible.

NCCL's precedence is environment, then communicator, then default, so a budget given to a communicator
is silently ignored where one of these is set (NCCL 2.28.9, `envConfigOverride`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kareus.schedule import Schedule

BUDGET_OVERRIDES = (
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_CTA_POLICY",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
)


def budget_problem(schedule: Schedule | None, environment: Mapping[str, str], backend: str) -> str:
    """Return why this environment makes the schedule's SM budgets void, "" where it does not.

    Args:
        backend: of the default group; only NCCL has budgets.
    """
    if schedule is None or backend != "nccl" or all(d.num_ctas is None for d in schedule.decisions):
        return ""
    found = [f"{name}={environment[name]}" for name in BUDGET_OVERRIDES if environment.get(name)]
    if not found:
        return ""
    return (
        f"{', '.join(found)} overrides the SM budgets of this schedule (the environment has precedence in "
        "NCCL); unset it, or use a schedule without budgets"
    )


def connection_warning(environment: Mapping[str, str], device_type: str) -> str:
    """Return a warning where CUDA_DEVICE_MAX_CONNECTIONS=1 serialises streams, "" otherwise."""
    if device_type != "cuda" or environment.get("CUDA_DEVICE_MAX_CONNECTIONS") != "1":
        return ""
    return (
        "CUDA_DEVICE_MAX_CONNECTIONS=1 puts all streams into one hardware queue, so collectives cannot run "
        "beside compute as planned; unset it (FSDP wants 8 or more) before CUDA starts"
    )
