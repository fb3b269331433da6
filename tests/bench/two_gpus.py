"""Two-GPU benchmarks: the loop, the win, and the model's data. One command under torchrun each.

    torchrun --nproc-per-node 2 tests/bench/two_gpus.py loop  [--schedule FILE]
    torchrun --nproc-per-node 2 tests/bench/two_gpus.py win   --arms ce,ag8,rs8 --schedule solved=FILE
    torchrun --nproc-per-node 2 tests/bench/two_gpus.py model

Without GPUs they run dry on gloo with a tiny model; `--fake` runs them in one process on one GPU with
torch's fake process group, and `--fake --stand-in fast` plays the collectives there (stand_in.py). Raw
JSON goes to --out (default: $OUT) and is written as it comes in. GPU settings are never touched; energy
is NVML's counter, read only.
"""

from __future__ import annotations

import argparse
import sys

from gpu_arms import BOUNDS, Arm, make_arm
from gpu_blocks import Bench, table
from gpu_job import Job, add_job_arguments
from gpu_loop import run_loop

MODEL_FSDP2 = (
    "ag2", "ag4", "ag8", "ag12", "ag16", "ag20", "rs2", "rs4", "rs8", "rs12", "rs16", "rs20", "ce", "ce+rs8",
    "ce+rs16", "ag8+rs8", "ag16+rs16", "sep", "pf2", "launch-mlp-before", "launch-attention-before",
    "launch-mlp-before+ag8", "serial", "serial-ag", "serial-rs", "no-ag", "no-rs", "bound",
)  # fmt: skip
MODEL_DDP = ("ar2", "ar4", "ar8", "ar12", "ar16", "ar20", "ce-ar", "serial", "bound")
WIN_FSDP2 = ("bound", "ce", "ag8", "rs8", "ce+rs16", "ce+pf2")
WIN_DDP = ("bound", "ar8", "ar16", "ce-ar")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sub = parser.add_subparsers(dest="bench", required=True)
    loop = sub.add_parser("loop", help="collect, replay, check every kernel's grid, losses and records")
    win = sub.add_parser("win", help="stock, schedules and the bound in interleaved blocks")
    model = sub.add_parser("model", help="many settings beside stock, for fitting and judging the cost model")
    for one in (loop, win, model):
        add_job_arguments(one)
    loop.add_argument("--schedule", metavar="FILE", help="default: one that changes every knob")
    loop.add_argument("--steps", type=int, default=16)
    for one in (win, model):
        one.add_argument("--arms", metavar="NAME,NAME", help="see gpu_arms.py; stock is always there")
        one.add_argument(
            "--schedule",
            metavar="NAME=FILE",
            action="append",
            default=[],
            help="another arm; may be repeated",
        )
        one.add_argument("--block", type=int, default=None, help="measured steps of a block")
        one.add_argument("--rounds", type=int, default=None)
        one.add_argument("--limit-s", type=float, default=480.0, help="start no round that would pass this")
        one.add_argument("--no-loss-check", action="store_true")
    args = parser.parse_args()
    if args.fake and args.wrapper == "ddp" and args.stand_in is None:
        args.stand_in = "fast"  # torch's DDP wants a tensor back, which the fake group does not give
    job = Job(args)
    try:
        return run_loop(job) if args.bench == "loop" else run_arms(job)
    finally:
        if job.moves_data:
            job.dist.destroy_process_group()


def run_arms(job: Job) -> int:
    """The subcommands win and model."""
    args = job.args
    files = dict(text.split("=", 1) for text in args.schedule)
    names = args.arms.split(",") if args.arms else list(default_arms(job))
    names = [n for n in dict.fromkeys([*names, *files]) if n != "stock"]
    cuda = job.device.type == "cuda"
    steps = args.block or (25 if cuda else 4)
    rounds = args.rounds or (1 if not cuda else 8 if args.bench == "win" else 2)
    bench = Bench(job, args.bench)
    job.say(
        f"{job.size_name} {args.wrapper} batch {args.batch} link {args.link}: {len(names)} arms beside stock"
    )
    job.observe()  # kernels are chosen now, and optimizer state exists
    job.sync()
    saved = job.snapshot()
    if args.stand_in is not None and job.device.type == "cuda":
        from stand_in import measure

        bench.document["stand_in"] = measure(job.device, args.stand_in)
    bench.snapshot_mb = sum(t.numel() * t.element_size() for t in saved) / 1e6
    plain = job
    if args.wrapper == "ddp" and args.stand_in is None:
        plain = job.twin()
        for _ in range(2):
            plain.step()
    stock = make_arm("stock", plain, files)
    arms: list[Arm] = [stock]
    for name in names:
        try:
            arms.append(make_arm(name, plain if name in BOUNDS else job, files))
        except Exception as error:
            bench.document["arms"][name] = {"refused": f"{type(error).__name__}: {error}"}
            job.say(f"arm {name} left out: {error}")
    job.say(f"arms ready after {bench.elapsed_s():.0f} s")
    equal = True
    if not args.no_loss_check:
        equal = check_losses(job, bench, arms, saved)
    order = interleaved(arms) if args.bench == "model" else arms
    done = bench.rounds(order, steps=steps, rounds=rounds, limit_s=args.limit_s, saved=saved)
    bench.document["rounds"] = done
    bench.save(arms)
    if job.rank == 0:
        print(table(bench.summary()), flush=True)
        print(
            f"losses equal stock bit for bit: {'yes' if equal else 'NO'}"
            if job.moves_data
            else "losses: fake group"
        )
        print(f"raw data: {bench.path}" if bench.path else "no --out: raw data not kept", flush=True)
    for arm in arms:
        arm.close()
    bench.close()
    return 0 if equal else 1


def default_arms(job: Job) -> tuple[str, ...]:
    fsdp2 = job.args.wrapper == "fsdp2"
    if job.args.bench == "model":
        return MODEL_FSDP2 if fsdp2 else MODEL_DDP
    return WIN_FSDP2 if fsdp2 else WIN_DDP


def interleaved(arms: list[Arm]) -> list[Arm]:
    """Stock before every third setting, so that each has a stock block close in time."""
    stock, rest = arms[0], arms[1:]
    order: list[Arm] = []
    for index in range(0, len(rest), 3):
        order += [stock, *rest[index : index + 3]]
    return [*order, stock]


def check_losses(job: Job, bench: Bench, arms: list[Arm], saved: list[object]) -> bool:
    """Train every arm but the bounds from one state and compare its losses with stock's, bit for bit."""
    if not job.moves_data:
        bench.document["losses"] = {"checked": False, "why": "the fake group moves no data"}
        return True
    count = 10
    found: dict[str, list[float]] = {}
    job.be_deterministic(True)
    # Stock twice: where it does not equal itself, equality says nothing about a schedule.
    for name, arm in [("stock again", arms[0]), *((arm.name, arm) for arm in arms)]:
        if name in BOUNDS:
            continue
        arm.job.restore(saved)
        arm.enter()
        losses = []
        for _ in range(count):
            losses.append(arm.job.step(sync=arm.sync))
            arm.after_step()
        arm.leave()
        found[name] = [float(loss) for loss in losses]
    job.be_deterministic(False)
    stock = found["stock"]
    mine = {name: losses == stock for name, losses in found.items()}
    everyone = job.gather(mine)
    equal = {name: all(answers[name] for answers in everyone) for name in mine}
    bench.document["losses"] = {"checked": True, "steps": count, "stock": stock, "equal": equal}
    for name, same in equal.items():
        if not same:
            bench.document["losses"].setdefault("different", {})[name] = found[name]
            job.say(f"losses of {name} differ from stock: {found[name]} against {stock}")
    return all(equal.values())


if __name__ == "__main__":
    sys.exit(main())
