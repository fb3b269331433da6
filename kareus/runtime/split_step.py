"""Splits one `optimizer.step()`: some parameters are updated first, the rest by the user's own call.

Only where that changes no bit and nothing of the user's is in between: torch's own optimizers that treat
every parameter by itself, without a closure, and without hooks of others, which could clip or log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

# Each updates a parameter from its own gradient and state alone. LBFGS, SparseAdam, Adafactor and Muon are
# left out: closures, other gradients, or not looked at.
ELEMENTWISE = frozenset(
    getattr(torch.optim, name)
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "NAdam",
        "RAdam",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
    )
)


class SplitStep:
    """One optimizer's step in parts.

    Args:
        optimizer: of the user. own_hooks: how many step hooks of each side are ours.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, own_pre_hooks: int, own_post_hooks: int) -> None:
        self._optimizer = optimizer
        self._own = (own_pre_hooks, own_post_hooks)
        self._hidden: list[tuple[torch.Tensor, torch.Tensor]] = []

    def problem(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> str:
        """Return why this call cannot be split, "" where it can.

        Args:
            arguments, keywords: of the user's call of `step`, as a hook gets them: the optimizer comes first.
        """
        optimizer = self._optimizer
        kind = type(optimizer)
        if kind not in ELEMENTWISE or not hasattr(kind.step, "__wrapped__"):
            return f"{kind.__name__} is not known to update each parameter by itself"
        if len(arguments) > 1 or any(value is not None for value in keywords.values()):
            return "step() was called with a closure"
        before = len(getattr(optimizer, "_optimizer_step_pre_hooks", ()))
        after = len(getattr(optimizer, "_optimizer_step_post_hooks", ()))
        common = len(getattr(torch_optimizer, "_global_optimizer_pre_hooks", ())) + len(
            getattr(torch_optimizer, "_global_optimizer_post_hooks", ())
        )
        if before > self._own[0] or after > self._own[1] or common:
            return "the optimizer has step hooks of others"
        return ""

    def update(self, parameters: Iterable[torch.Tensor]) -> None:
        """Update these parameters now and keep the rest of the user's call from doing it again."""
        chosen = {id(parameter) for parameter in parameters}
        groups = self._optimizer.param_groups
        whole = [group["params"] for group in groups]
        mine = [parameter for held in whole for parameter in held if id(parameter) in chosen]
        try:
            for group, held in zip(groups, whole, strict=True):
                group["params"] = [parameter for parameter in held if id(parameter) in chosen]
            type(self._optimizer).step.__wrapped__(self._optimizer)  # type: ignore[attr-defined]
        finally:
            for group, held in zip(groups, whole, strict=True):
                group["params"] = held
        # Every optimizer passes over a parameter without a gradient, so nothing else has to be changed,
        # and a call that fails leaves the optimizer whole.
        for parameter in mine:
            if parameter.grad is not None:
                self._hidden.append((parameter, parameter.grad))
                parameter.grad = None

    def finish(self) -> None:
        """Give the gradients back; called right after the user's call."""
        for parameter, gradient in self._hidden:
            if parameter.grad is None:
                parameter.grad = gradient
        self._hidden.clear()

    def abandon(self) -> None:
        """Forget gradients that a failed call left: by now the user may have cleared them."""
        self._hidden.clear()
