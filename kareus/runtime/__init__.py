"""Replays a schedule inside DDP and FSDP2 training; the only part of Kareus a training job loads.

session = kareus.attach(model, optimizer, schedule="schedule.json")
...the training loop, unchanged...
session.report(); session.detach()
"""

from __future__ import annotations

from kareus.runtime.ddp_arguments import ddp_kwargs
from kareus.runtime.entry import attach
from kareus.runtime.fsdp1 import fsdp1_kwargs
from kareus.runtime.session import Session

__all__ = ["Session", "attach", "ddp_kwargs", "fsdp1_kwargs"]
