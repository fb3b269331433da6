"""The pilot turns step boundaries into arms: observe, then guard, then what the guard decided.

Everything ranks must know of each other at a boundary travels in one asynchronous vector, sent some steps
before it is used. A rank that wants to leave the plan says so in it; all leave at the same boundary.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kareus.runtime.exchange import Exchange, Pending
from kareus.runtime.guard import Guard
from kareus.runtime.records import Arm, Tally

FACTS_KEPT = 256  # steps; blocks with their lag are shorter
OBSERVE_LIMIT = 6  # DDP with a static graph settles its buckets in the third step


@dataclass(kw_only=True)
class StepFacts:
    """What a rank knows of a step that ended.

    Attributes:
        arm: it ran in. issue_hash: of its collectives, 32 bits. sequence: hash of their names alone.
        order: hash of what the driver met in an observed step (`Driver.order_hash`).
        time_us: filled when the device has done it; NaN before. energy_j: NaN unknown.
    """

    arm: Arm
    issue_hash: int
    sequence: int
    order: int = 0
    time_us: float = float("nan")
    energy_j: float = float("nan")


@dataclass(kw_only=True)
class _Block:
    arm: Arm | None
    first: int
    last: int
    pending: Pending | None = None


@dataclass(kw_only=True)
class Pilot:
    """Decides the arm of every step, the same on all ranks.

    Attributes:
        guard: judge of the schedule. exchange: to the other ranks. tally: counts. timeout_s: bound on
            waiting for another rank's vector. has_schedule: False stays with stock.
        min_observe: stock steps that must have run first; DDP with a static graph makes its final buckets
            in the third.
        settle: called before a block's figures are sent; must fill in the times of steps up to an index.
        on_start: called on all ranks at the boundary where the schedule begins to be used; returns why
            it must not be, the same on all ranks. It is given no exchange where all ranks saw the same order.
    """

    guard: Guard
    exchange: Exchange
    tally: Tally
    has_schedule: bool
    timeout_s: float
    settle: Callable[[int], None] = lambda _: None
    on_start: Callable[[Exchange | None], str] = lambda _: ""
    facts: dict[int, StepFacts] = field(default_factory=dict)
    _count: int = 0
    reason: str = ""
    min_observe: int = 2
    _start: int | None = None
    _blocks: deque[_Block] = field(default_factory=deque)
    _leaving: bool = False
    _left: bool = False
    _deaf: bool = False

    def leave(self, reason: str) -> None:
        """Ask to leave the plan; all ranks do at the next boundary that gathers their vectors."""
        self._leaving = True
        self.tally.add("leave_requested", f"asks to return to stock: {reason}")

    def settle_exchange(self) -> None:
        """Take in vectors that are still under way, so that their group can be given back."""
        for block in self._blocks:
            if block.pending is not None and not self._deaf:
                block.pending.result(1.0)
        self._blocks.clear()

    @property
    def state(self) -> str:
        """ "observe", "guard", "replay" or "stock"."""
        if not self.has_schedule or self._left:
            return "stock"
        if self._start is None:
            return "observe"
        return (
            "guard"
            if self.guard.decided is None
            else ("replay" if self.guard.decided == "better" else "stock")
        )

    def next_arm(self, facts: StepFacts) -> Arm:
        """Take in the step that ended and return the arm of the next one."""
        index = self._count
        self._count += 1
        self.facts[index] = facts
        self.facts.pop(index - FACTS_KEPT, None)
        if not self.has_schedule or self._left:
            return "stock"
        if self._start is None:
            return self._observe(index)
        self._beacon(index)
        if self._left:
            return "stock"
        arm = self.guard.arm(index + 1 - self._start)
        if self.guard.decided not in (None, "better") and not self.reason:
            self.reason = self._guard_reason()
            self.tally.add("guard_to_stock", self.reason)
        return arm

    def _guard_reason(self) -> str:
        found = self.guard.comparison
        if found is None:
            return "guard: nothing was measured"
        word = "is slower than stock" if self.guard.decided == "worse" else "is not clearly better than stock"
        return (
            f"guard: the schedule {word} ({found.time_ratio:.3f} x its step time, 95 % interval "
            f"{found.low:.3f} to {found.high:.3f}); training goes on as stock"
        )

    def _observe(self, index: int) -> Arm:
        if index == 0:
            return "observe"
        before, now = self.facts[index - 1], self.facts[index]
        stable = float(before.sequence == now.sequence and now.sequence != 0)
        rows = self.exchange.start([stable, float(now.sequence), float(now.order)]).result(self.timeout_s)
        if rows is None:
            return self._leave("a rank did not reach the step boundary in time")
        if index + 1 >= self.min_observe and all(row[0] == 1.0 for row in rows):
            if any(row[1] != rows[0][1] for row in rows):
                return self._leave("ranks issue different collectives")
            alike = all(row[2] == rows[0][2] for row in rows)
            problem = self.on_start(None if alike else self.exchange)
            if problem:
                return self._leave(problem)
            self._start = index + 1
            return self.guard.arm(0)
        if index + 1 >= OBSERVE_LIMIT:
            return self._leave("the collectives of a step do not repeat")
        return "observe"

    def _leave(self, reason: str) -> Arm:
        self._left, self.reason = True, reason
        self.tally.add("left_plan", f"{reason}; training goes on as stock")
        return "stock"

    def _beacon(self, index: int) -> None:
        """Send the figures of a block that ended `lag // 2` steps ago, use those sent `lag // 2` ago."""
        assert self._start is not None
        settings = self.guard.settings
        position = index - self._start
        if self.guard.decided is None:
            ended = self.guard.block_ending(position)
        else:
            ended = "stock" if position % settings.block == settings.block - 1 else None
        if ended is not None:
            judged = ended if self.guard.decided is None else None
            self._blocks.append(_Block(arm=judged, first=index - settings.block + 1, last=index))
        half = settings.lag // 2
        for block in list(self._blocks):
            if block.pending is None and index >= block.last + half:
                block.pending = self._send(block)
            if block.pending is not None and index >= block.last + 2 * half:
                self._blocks.remove(block)
                self._use(block)

    def _send(self, block: _Block) -> Pending:
        self.settle(block.last)
        facts = [self.facts[i] for i in range(block.first, block.last + 1)]
        folded = 0
        for item in facts:
            folded = (folded * 31 + item.issue_hash) & 0xFFFFFFFF
        counted = facts[self.guard.settings.drop :]
        energy = sum(item.energy_j for item in counted)
        return self.exchange.start(
            [float(self._leaving), float(folded), energy, *(item.time_us for item in facts)]
        )

    def _use(self, block: _Block) -> None:
        assert block.pending is not None
        if self._deaf:
            return
        rows = block.pending.result(self.timeout_s)
        if rows is None:
            # Leaving alone could pick another communicator than the others do, so the arm stays as it is.
            self._deaf = True
            self.tally.add(
                "beacon_lost", "another rank did not answer at a step boundary; the plan stays as it is"
            )
            return
        if any(row[1] != rows[0][1] for row in rows):
            self._leave("ranks issued different collectives")
        elif any(row[0] for row in rows):
            who = ", ".join(str(rank) for rank, row in enumerate(rows) if row[0])
            self._leave(f"rank {who} asked to leave the plan")
        elif block.arm is not None and self.guard.decided is None:
            self.guard.add_block(block.arm, [row[3:] for row in rows], [row[2] for row in rows])
