"""A ValidatingAdmissionPolicy of a YAML file, asked as an API server asks it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cel_expr_python import cel

from mig_manager.simulation.api.admission import Admission
from mig_manager.simulation.api.status import StatusError
from mig_manager.simulation.objects import Object

_VARIABLES = dict.fromkeys(("request", "object", "oldObject"), cel.Type.DYN)


@dataclass(frozen=True, slots=True)
class _Rule:
    allows: cel.Expression
    message: str
    says: cel.Expression | None


class Policy:
    """Refuses what it does not allow, with StatusError 403."""

    def __init__(self, manifest: Object) -> None:
        """Raises RuntimeError if an expression is none."""
        spec = manifest["spec"]
        self._name = manifest["metadata"]["name"]
        self._kinds = spec["matchConstraints"]["resourceRules"]
        # A variable is worked out where it is used, as the API server does: not at all where `||` spares it.
        self._variables: dict[str, str] = {}
        for each in spec.get("variables", ()):
            self._variables[each["name"]] = self._spelt_out(each["expression"])
        self._environment = cel.NewEnv(variables=_VARIABLES)
        self._conditions = [self._compiled(each["expression"]) for each in spec.get("matchConditions", ())]
        self._rules = [
            _Rule(
                self._compiled(each["expression"]),
                each.get("message", ""),
                self._compiled(each["messageExpression"]) if "messageExpression" in each else None,
            )
            for each in spec["validations"]
        ]

    def __call__(self, asked: Admission) -> None:
        """Comes back if the change is allowed."""
        if not any(_matches(kind, asked) for kind in self._kinds):
            return
        values = {"request": _request(asked), "object": asked.new, "oldObject": asked.old}
        if not all(_value(each, values) is True for each in self._conditions):
            return
        for rule in self._rules:
            allowed = _value(rule.allows, values)
            if allowed is not True:
                # The policy fails closed: what cannot be worked out is refused as well.
                said = str(_value(rule.says, values)) if rule.says else rule.message
                why = said if allowed is False else f"expression could not be evaluated: {allowed}"
                raise StatusError(
                    403, "Forbidden", f"ValidatingAdmissionPolicy '{self._name}' denied request: {why}"
                )

    def _compiled(self, expression: str) -> cel.Expression:
        return self._environment.compile(self._spelt_out(expression))

    def _spelt_out(self, expression: str) -> str:
        return re.sub(r"variables\.(\w+)", lambda found: f"({self._variables[found[1]]})", expression)


def _matches(kind: Object, asked: Admission) -> bool:
    call = asked.call
    resource = f"{call.resource.plural}/{call.subresource}" if call.subresource else call.resource.plural
    return (
        call.resource.group in kind["apiGroups"]
        and resource in kind["resources"]
        and asked.operation in kind["operations"]
    )


def _request(asked: Admission) -> Object:
    call = asked.call
    resource = {
        "group": call.resource.group,
        "version": call.resource.version,
        "resource": call.resource.plural,
    }
    asked_for = {
        "userInfo": asked.user.info,
        "operation": asked.operation,
        "resource": resource,
        "subResource": call.subresource,
        "namespace": call.namespace,
        "name": call.name,
    }
    # An API server leaves out what is empty, so that an expression which reads it all the same fails.
    return {key: value for key, value in asked_for.items() if value}


def _value(expression: cel.Expression, values: Mapping[str, Any]) -> Any:
    return expression.eval(data=values).value()
