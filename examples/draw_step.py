"""Draws one recorded step before and under a schedule as an SVG picture (examples/step.svg is made by it).

python examples/draw_step.py traces/fsdp2-nvlink-default --schedule schedule.json -o examples/step.svg
"""

from __future__ import annotations

import argparse

from kareus.cli.inputs import add_step_arguments, read_step
from kareus.cli.simulate import check_fits
from kareus.model.simulate import Simulation, simulate
from kareus.report.data import Timeline
from kareus.report.svg import step_picture
from kareus.report.tracks import recorded, simulated
from kareus.schedule import Schedule
from kareus.schema import write_bytes
from kareus.trace.types import StepGraph


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_step_arguments(parser)
    parser.add_argument("--schedule", required=True, help="the schedule to draw")
    parser.add_argument("--title", default="One training step", help="line above the picture")
    parser.add_argument("-o", "--output", required=True, help="SVG file to write")
    args = parser.parse_args()

    schedule = Schedule.load(args.schedule)
    step = read_step(args)
    check_fits(schedule, step, args.schedule)
    graph = step.graph
    stock = played(graph, simulate([graph], None, step.cost), None)
    after = played(graph, simulate([graph], schedule, step.cost), schedule)
    picture = step_picture(recorded(graph), after, title=f"{args.title}, rank {graph.rank}", baseline=stock)
    write_bytes(args.output, picture.encode())
    print(args.output)


def played(graph: StepGraph, simulation: Simulation, schedule: Schedule | None) -> Timeline:
    starts, ends = simulation.op_start_ns[0], simulation.op_end_ns[0]
    return simulated(graph, starts, ends, round(simulation.time_us * 1e3), schedule)


if __name__ == "__main__":
    main()
