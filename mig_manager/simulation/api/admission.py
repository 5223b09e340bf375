"""What is asked about a change before it is stored, as ValidatingAdmissionPolicies are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from mig_manager.simulation.api.authorization import User
from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.objects import Object

Operation = Literal["CREATE", "UPDATE", "DELETE"]


@dataclass(frozen=True, slots=True)
class Admission:
    """A change that is about to be stored."""

    user: User
    operation: Operation
    """A patch is an UPDATE."""
    call: Call
    old: Object | None
    """None for a CREATE."""
    new: Object | None
    """None for a DELETE."""


Admit = Callable[[Admission], None]
"""Comes back if the change may be stored; raises StatusError if not."""
Ask = Callable[[Operation, Call, Object | None, Object | None], None]
"""The same for the sender of one request."""


def asking(admit: Admit | None, user: User) -> Ask:
    """For the requests of a user. None admits everything."""

    def ask(operation: Operation, call: Call, old: Object | None, new: Object | None) -> None:
        if admit is not None:
            admit(Admission(user, operation, call, old, new))

    return ask
