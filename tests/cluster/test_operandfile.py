"""The list of GPU clients: what it says, and what is wrong with it, by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.cluster.operandfile import OperandFileError, parse_operands, read_operands
from mig_manager.cluster.operands import Operand, Role, gpu_operator_operands

CONFIG = Path(__file__).parents[2] / "config"


@pytest.mark.parametrize("namespace", ["gpu-operator", None])
def test_the_shipped_list_is_the_one_that_the_daemon_knows(namespace: str | None) -> None:
    assert read_operands(CONFIG / "operands.yaml", namespace) == gpu_operator_operands(namespace)


def test_the_list_for_charts_of_their_own_finds_pods_anywhere() -> None:
    found = read_operands(CONFIG / "operands-standalone.yaml", "gpu-operator")
    assert {one.role for one in found} == {Role.DEVICE_PLUGIN, Role.CLIENT, Role.DRA_PLUGIN}
    assert all(one.namespaces is None for one in found)


def parsed(*lines: str) -> tuple[Operand, ...]:
    return parse_operands("\n".join(("version: v1", "operands:", *lines)), file="list.yaml", namespace="here")


def test_every_key_has_its_meaning() -> None:
    assert parsed(
        "- {name: a, label: x/deploy.a}",
        "- {name: b, pods: {app: b}, container: main, namespaces: [one, two], role: validator}",
        "- {name: c, pods: {app: c}, namespaces: [], holds-gpus: false}",
    ) == (
        Operand("a", "x/deploy.a", {}, ("here",)),
        Operand("b", None, {"app": "b"}, ("one", "two"), Role.VALIDATOR, "main"),
        Operand("c", None, {"app": "c"}, None, holds_gpus=False),
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("- {name: a, lable: x}", "list.yaml:3: operands[0].lable: is not a known key; allowed: name,"),
        ("- {name: a, lable: x}", "did you mean label?"),
        ("- {name: a}", "list.yaml:3: operands[0]: has neither label nor pods"),
        ("- {label: x}", "list.yaml:3: operands[0].name: is missing"),
        (
            "- {name: a, label: x, role: device_plugin}",
            "operands[0].role: found device_plugin; allowed: client, device-plugin, dra-plugin, validator; "
            "did you mean device-plugin?",
        ),
        ("- {name: a, label: [x]}", "operands[0].label: found a list; allowed: text"),
        ("- {name: a, pods: app}", "operands[0].pods: found app; allowed: a mapping of pod labels"),
        ("- {name: a, pods: {app: [b]}}", "operands[0].pods.app: found a list; allowed: a value"),
        ("- {name: a, label: x, namespaces: one}", "operands[0].namespaces: found one; allowed: a list"),
        ("- {name: a, label: x, holds-gpus: 2}", "operands[0].holds-gpus: found 2; allowed: true, false"),
        (
            "- {name: a, label: x}\n- {name: a, label: y}",
            "list.yaml:4: operands[1].name: a stands in the list",
        ),
        ("- a", "list.yaml:3: operands[0]: found a; allowed: a mapping of name,"),
        ("  a: b", "operands: must be a list of GPU clients"),
        ("- {name: a, name: b, label: x}", "operands[0].name: is given twice"),
    ],
)
def test_a_mistake_is_named_with_line_and_path(line: str, message: str) -> None:
    with pytest.raises(OperandFileError) as caught:
        parsed(line)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list.yaml:1: the file must be a mapping"),
        ("version: v2\noperands: []", "list.yaml:1: version: found v2; allowed: v1"),
        ("operands: []", "version: found nothing; allowed: v1"),
        ("version: v1", "operands: must be a list"),
        ("version: v1\n\toperands: []", "list.yaml:2: column"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(OperandFileError) as caught:
        parse_operands(text, file="list.yaml", namespace=None)
    assert message in caught.value.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OperandFileError) as caught:
        read_operands(tmp_path / "none.yaml", None)
    assert caught.value.message == f"{tmp_path}/none.yaml:1: cannot be read: No such file or directory"
