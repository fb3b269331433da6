"""Twente's 46 kernels: what is saved within stock time, against the time of a clock switch."""

from __future__ import annotations

import itertools
import json

from policies_common import DATA, rows, write

from kareus.plan.policies.twente import Kernel, KernelOption
from kareus.plan.policies.twente_switch import Switching, select_switching


def twente_table():
    """The 46 kernels with stock and the published choice, and the launches of a step."""
    table = rows(DATA / "twente/twente_table1_fig5.csv")

    def clock(text):
        return None if text == "auto" else int(text)

    kernels = []
    for r in table:
        time_s, energy_j = float(r["auto_time_ms_fig5"]) * 1e-3, float(r["auto_energy_j_fig5"])
        stock = KernelOption(mem_clock_mhz=None, sm_clock_mhz=None, time_s=time_s, energy_j=energy_j)
        chosen = KernelOption(
            mem_clock_mhz=clock(r["mem_mhz"]),
            sm_clock_mhz=clock(r["core_mhz"]),
            time_s=time_s * (1 + float(r["time_change_pct"]) / 100),
            energy_j=energy_j * (1 + float(r["energy_change_pct"]) / 100),
        )
        options = (stock,) if chosen.clocks == stock.clocks else (stock, chosen)
        kernels.append(Kernel(name=r["kernel"], repeat=int(r["repeat"]), options=options))
    launches = []
    for _, group in itertools.groupby(range(len(table)), key=lambda i: table[i]["section"]):
        block = list(group)
        launches += block * kernels[block[0]].repeat
    return kernels, launches


def twente():
    kernels, launches = twente_table()
    data = []
    for tolerance in (0.0, 0.01, 0.02, 0.05):
        for switch_ms in (0, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 6, 10, 20, 50, 100, 150):
            plan = select_switching(
                kernels, launches, Switching(time_s=switch_ms * 1e-3, power_w=339.0), tolerance=tolerance
            )
            data.append(
                {
                    "tolerance": tolerance,
                    "switch_ms": switch_ms,
                    "time_change": plan.time_s / plan.stock_time_s - 1,
                    "energy_change": plan.energy_j / plan.stock_energy_j - 1,
                    "bound_change": plan.bound_j / plan.stock_energy_j - 1,
                    "switches": plan.switches,
                    "launches": len(launches),
                }
            )
            print(json.dumps(data[-1]))
    write("policies_twente_switching", {"switch_power_w": 339.0, "rows": data})
