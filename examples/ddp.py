"""DDP training under Kareus.

torchrun --nproc-per-node 2 examples/ddp.py --steps 20                        # two processes on a laptop
torchrun --nproc-per-node 2 examples/ddp.py --size llama8 --collect trace/    # two GPUs
"""

from __future__ import annotations

import torch.distributed as dist
from model import SIZES, Batches, build, loss_of, make_optimizer, parse_arguments, start_process_group
from torch.nn.parallel import DistributedDataParallel

import kareus


def main() -> None:
    args = parse_arguments("DDP training under Kareus")
    device = start_process_group()
    size = SIZES[args.size]
    network = build(size, device, args.seed)
    if args.compile:
        for block in network.blocks:
            block.compile()
    model = DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        **kareus.ddp_kwargs(args.schedule),
    )
    optimizer = make_optimizer(model, device)
    batches = Batches(size, args.batch, device, args.seed, dist.get_rank())

    session = kareus.attach(model, optimizer, schedule=args.schedule)

    for step in range(args.steps):
        x, target = batches.next()
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.9f}", flush=True)

    session.detach()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
