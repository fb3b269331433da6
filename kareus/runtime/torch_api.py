"""Every private or version-dependent corner of torch that the runtime touches, tested by feature.

Nothing else under `kareus.runtime` reads an underscore name of torch. Versions are never compared: a
name is looked up, and where it is missing the knob that needs it is reported as unavailable.
Sources: torch 2.9.1 to 2.14.1, `torch/distributed/fsdp/_fully_shard` and `distributed_c10d`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState
from torch.nn.parallel import DistributedDataParallel

__all__ = ["AllGather", "FsdpUnit", "ReduceScatter", "capabilities", "fsdp_root", "fsdp_units"]

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.uint8: "uint8",
    torch.float8_e4m3fn: "fp8_e4m3",
    torch.float8_e5m2: "fp8_e5m2",
}
_GRAPH_TASK = getattr(torch._C, "_current_graph_task_id", None)
BACKWARD_STATES = (TrainingState.PRE_BACKWARD, TrainingState.POST_BACKWARD)
UNIT_METHODS = ("pre_forward", "post_forward", "pre_backward", "post_backward", "_prefetch_unshard")


@dataclass(eq=False, kw_only=True)
class FsdpUnit:
    """One FSDP2 parameter group, which communicates as a whole.

    Attributes:
        name: module path from the root, as torch names it in profiler labels ("a, b" for a grouped unit).
        module: the (first) module of the unit. state, group: torch's FSDPState and FSDPParamGroup.
        numel: elements of the gathered flat tensor, padding of all ranks included.
        dtype: its dtype's short name; "uint8" where the unit's parameters have several.
        lone: False where the module has several groups, which torch does not let us intercept.
    """

    name: str
    module: nn.Module
    state: Any
    group: Any
    numel: int
    dtype: str
    lone: bool


def is_fsdp2(module: nn.Module) -> bool:
    """Return True for a module that `fully_shard` was applied to."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def is_fsdp1(module: nn.Module) -> bool:
    """Return True for a module wrapped in `FullyShardedDataParallel`."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    return isinstance(module, FullyShardedDataParallel)


def is_ddp(module: nn.Module) -> bool:
    """Return True for a `DistributedDataParallel` wrapper."""
    return isinstance(module, DistributedDataParallel)


def fsdp_root(model: nn.Module) -> nn.Module | None:
    """Return the only outermost FSDP2 module in a model, or None where there is none or more than one."""
    if is_fsdp2(model):
        return model
    roots: list[nn.Module] = []

    def walk(module: nn.Module) -> None:
        for child in module.children():
            if is_fsdp2(child):
                roots.append(child)
            else:
                walk(child)

    walk(model)
    return roots[0] if len(roots) == 1 else None


def _groups(state: Any) -> list[Any]:
    """Return the parameter groups of an FSDPState (one attribute up to 2.11, a list from 2.12)."""
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    group = getattr(state, "_fsdp_param_group", None)
    return [] if group is None else [group]


def _gathered(group: Any) -> tuple[int, str]:
    """Return (elements, dtype name) of the group's all-gather output, padding included."""
    world = dist.get_world_size(group.mesh_info.shard_process_group)
    sizes: dict[torch.dtype, int] = {}
    for param in group.fsdp_params:
        dtype = group.mp_policy.param_dtype or param.sharded_param.dtype
        sizes[dtype] = sizes.get(dtype, 0) + param._sharded_param_data.numel()
    if len(sizes) == 1:
        dtype, numel = next(iter(sizes.items()))
        return numel * world, DTYPE_NAMES.get(dtype, str(dtype).removeprefix("torch."))
    return sum(numel * dtype.itemsize for dtype, numel in sizes.items()) * world, "uint8"


def fsdp_units(root: nn.Module) -> list[FsdpUnit]:
    """Return the FSDP2 units of a root module, in `named_modules` order.

    Torch gives groups their names at the first forward; the same names are made here, before it.
    """
    order: list[tuple[Any, Any, nn.Module]] = []
    names: dict[int, list[str]] = {}
    for path, module in root.named_modules():
        if not is_fsdp2(module):
            continue
        state = module._get_fsdp_state()
        for group in _groups(state):
            if id(group) not in names:
                names[id(group)] = []
                order.append((state, group, module))
            names[id(group)].append(path)
    units = []
    for state, group, module in order:
        numel, dtype = _gathered(group)
        several = len(_groups(state)) > 1
        name = ", ".join(names[id(group)])
        if several:
            name = f"{name} [{_groups(state).index(group)}]"
        units.append(
            FsdpUnit(
                name=name, module=module, state=state, group=group, numel=numel, dtype=dtype, lone=not several
            )
        )
    return units


def unit_phase(group: Any) -> str:
    """Return "forward" or "backward" for the collective a group is about to issue."""
    return "backward" if group._training_state in BACKWARD_STATES else "forward"


def prefetch_unshard(group: Any, phase: str) -> None:
    """Issue the all-gather of a group ahead of its use, on FSDP's own streams; a no-op if it is gathered."""
    type(group)._prefetch_unshard(group, phase)


def is_gathered(group: Any) -> bool:
    """Return True where a group's parameters are whole already or their all-gather is under way."""
    return group._all_gather_result is not None or bool(group.is_unsharded)


def gather_after(group: Any, mark: Any) -> None:
    """Let a group's next all-gather read its shards no earlier than a CUDA event, as FSDP does at its root."""
    group._wait_all_gather_streams_on_event(mark)


def drop_gather(group: Any) -> None:
    """Forget an all-gather that nobody has used; the next use gathers again."""
    result = group._all_gather_result
    if result is None:
        return
    if result.all_gather_work is not None:
        result.all_gather_work.wait()
    if group.device.type == "cuda":
        group._wait_all_gather_streams_on_event(result.all_gather_event)  # before its memory is used again
    group._all_gather_result = None


def sharded_parameters(group: Any) -> list[nn.Parameter]:
    """Return a group's parameters as optimizers hold them."""
    return [param.sharded_param for param in group.fsdp_params]


def offloads(group: Any) -> bool:
    """Return True where a group's shards live in host memory."""
    return any(param.offload_to_cpu for param in group.fsdp_params)


def local_tensor(parameter: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, without autograd; a plain tensor is its own part."""
    local: torch.Tensor = getattr(parameter, "_local_tensor", parameter)
    return local


def remaining_uses(group: Any) -> int:
    """Return how many forward uses of a group have not had their backward yet."""
    return len(group._post_forward_indices)


def forward_order(group: Any) -> list[Any]:
    """Return the groups in the order their forwards ended in this pass (with repetition)."""
    return list(group.comm_ctx.post_forward_order)


def unit_groups(group: Any) -> list[dist.ProcessGroup]:
    """Return the process groups a unit gathers or scatters over (the post-forward mesh has its own)."""
    found = [group.mesh_info.shard_process_group]
    after = group.post_forward_mesh_info
    if after is not None and after is not group.mesh_info:
        found.append(after.shard_process_group)
    return found


def missing_unit_methods(group: Any) -> list[str]:
    """Return which of the group methods we wrap this torch does not have."""
    return [name for name in UNIT_METHODS if not hasattr(group, name)]


def in_backward() -> bool:
    """Return True on a thread that runs a backward pass (so a forward seen now is a recomputation)."""
    return _GRAPH_TASK is not None and _GRAPH_TASK() != -1


def on_root_forward(root: nn.Module, callback: Callable[[], None]) -> Callable[[], None]:
    """Call back at the start of every forward of an FSDP2 root; returns what undoes it.

    The root state's own method is wrapped, which FSDP calls outside compiled regions; a module hook
    serves where torch has no such method.
    """
    state = root._get_fsdp_state()  # type: ignore[operator]
    if not hasattr(type(state), "_root_pre_forward"):
        handle = root.register_forward_pre_hook(lambda *_: callback(), prepend=True)
        return handle.remove
    original = state._root_pre_forward

    def root_pre_forward(*args: Any, **kwargs: Any) -> Any:
        if not in_backward():
            callback()
        return original(*args, **kwargs)

    state._root_pre_forward = root_pre_forward
    return lambda: state.__dict__.pop("_root_pre_forward", None) and None


def is_compiled(module: nn.Module) -> bool:
    """Return True for a module whose call is compiled in place (`module.compile()`)."""
    return getattr(module, "_compiled_call_impl", None) is not None


def is_compile_wrapper(module: nn.Module) -> bool:
    """Return True for the wrapper `torch.compile(module)` returns; hooks on it run outside the graph."""
    return hasattr(module, "_orig_mod")


def is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is being captured on the current stream."""
    return device.type == "cuda" and bool(torch.cuda.is_current_stream_capturing())


def all_gather(
    output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool
) -> dist.Work | None:
    """All-gather a flat tensor under whichever name this torch has for it (renamed in 2.13)."""
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work: dist.Work | None = function(output, tensor, group=group, async_op=async_op)
    return work


def reduce_scatter(
    output: torch.Tensor, tensor: torch.Tensor, group: dist.ProcessGroup, op: Any, async_op: bool
) -> dist.Work | None:
    """Reduce-scatter a flat tensor under whichever name this torch has for it (renamed in 2.13)."""
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    work: dist.Work | None = function(output, tensor, op=op, group=group, async_op=async_op)
    return work


def callback_work(callback: Callable[[timedelta], bool]) -> dist.Work | None:
    """Return a Work that runs a callback when it is waited for, or None where torch lacks it (2.9)."""
    kind = getattr(torch._C._distributed_c10d, "PythonCallbackWork", None)
    work: dist.Work | None = None if kind is None else kind(callback)
    return work


def group_ranks(group: dist.ProcessGroup) -> tuple[int, ...]:
    """Return the global ranks of a group, in group order."""
    return tuple(dist.get_process_group_ranks(group))


def backend_name(group: dist.ProcessGroup | None = None) -> str:
    """Return "nccl", "gloo", "fake", ...; for a mixed group the one that serves CUDA."""
    name = str(dist.get_backend(group)).lower()
    return "nccl" if "nccl" in name else "fake" if "fake" in name else "gloo" if "gloo" in name else name


def group_timeout_s(group: dist.ProcessGroup | None = None) -> float:
    """Return the timeout of a group in seconds; torch's default where it cannot be read."""
    from torch.distributed import distributed_c10d as c10d

    owner = group or dist.group.WORLD
    for device in ("cuda", "cpu"):
        try:
            backend = owner._get_backend(torch.device(device))  # type: ignore[union-attr]
            return float(backend.options._timeout.total_seconds())
        except (RuntimeError, AttributeError):
            continue
    return float(c10d.default_pg_timeout.total_seconds())


def new_group(
    ranks: list[int] | None, *, description: str, backend: str | None = None, options: Any = None
) -> Any:
    """Create a process group that gives up when the default group would; every rank of the job calls it.

    Torch would give it the backend's own timeout of 10 or 30 minutes, whatever the job chose.
    """
    timeout = timedelta(seconds=group_timeout_s())
    return dist.new_group(ranks, timeout=timeout, backend=backend, pg_options=options, group_desc=description)


def release_group(group: dist.ProcessGroup) -> None:
    """Give a gloo group back; NCCL's stay with the job, because ending them may wait for peers."""
    if backend_name(group) == "gloo":
        dist.destroy_process_group(group)


def job_store() -> Any:
    """Return the key-value store of the default group, or None where it cannot be reached."""
    from torch.distributed import distributed_c10d as c10d

    getter = getattr(c10d, "_get_default_store", None)
    return getter() if getter is not None else None


def nccl_options(num_ctas: int | None, *, high_priority: bool) -> Any:
    """Return NCCL group options with exactly this many thread blocks (min 1, so that NCCL accepts it).

    Source: measured on NCCL 2.28.9, `max_ctas` with `min_ctas=1` makes the kernel grid that many blocks.
    """
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=high_priority)
    if num_ctas is not None:
        options.config.min_ctas = 1
        options.config.max_ctas = num_ctas
    return options


def ddp_hook_name(model: DistributedDataParallel) -> str:
    """Return the name of a communication hook that is already registered, "" for none."""
    if getattr(model, "_comm_hooks", None):
        return str(getattr(model._comm_hooks[0][0], "__qualname__", "custom"))
    logger = getattr(model, "logger", None)
    if logger is None:
        return ""
    return str(logger._get_ddp_logging_data().strs_map.get("comm_hook", ""))


def ddp_parameters(model: DistributedDataParallel) -> list[nn.Parameter]:
    """Return the parameters a DDP model reduces, in registration order."""
    return [parameter for _, parameter in ddp_named_parameters(model)]


def ddp_named_parameters(model: DistributedDataParallel) -> list[tuple[str, nn.Parameter]]:
    """Return the same with their paths inside the wrapper."""
    ignored: Any = getattr(model, "parameters_to_ignore", set())
    return [(n, p) for n, p in model.module.named_parameters() if p.requires_grad and n not in ignored]


def environment(name: str) -> str | None:
    """Return an environment variable, None where it is unset or empty."""
    return os.environ.get(name) or None


def capabilities() -> dict[str, bool]:
    """Return which version-dependent features this torch has, for the report and `kareus doctor`."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    nccl = getattr(dist, "ProcessGroupNCCL", None)
    return {
        "fsdp2_custom_comms": hasattr(FSDPModule, "set_custom_all_gather"),
        "fsdp2_launch_points": not missing_unit_methods(FSDPParamGroup),
        "fsdp2_reset_iter_state": hasattr(FSDPModule, "reset_iter_state"),
        "callback_work": hasattr(torch._C._distributed_c10d, "PythonCallbackWork"),
        "backward_detection": hasattr(torch._C, "_current_graph_task_id"),
        "nccl_cta_budget": nccl is not None and hasattr(nccl, "Options"),
        "ddp_bucket_cap_mb_list": "bucket_cap_mb_list"
        in DistributedDataParallel.__init__.__code__.co_varnames,
        "sm_carveout": hasattr(torch._C, "_set_sm_carveout_experimental"),
        "green_contexts": hasattr(torch.cuda, "green_contexts") and hasattr(torch._C, "_CUDAGreenContext"),
    }
