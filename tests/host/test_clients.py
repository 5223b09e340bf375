"""The list of GPU clients on the host: NVIDIA's format, strictly, with file and line in every error."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.clients import parse_services, read_services

EXAMPLE = Path(__file__).parents[2] / "config" / "host-clients.yaml"
UNIT = "allowed: the full name of a systemd unit, such as nvidia-dcgm.service"
GOOD = {
    "version: v1\nsystemd-services:\n  - nvsm.service\n  - dcgm.service\n": ("nvsm.service", "dcgm.service"),
    "version: v1\nsystemd-services: [a@1.service, nvsm.socket, a@1.service]\n": (
        "a@1.service",
        "nvsm.socket",
    ),
    "version: v1\nsystemd-services: []\n": (),
    "version: v1\nsystemd-services:\n": (),
    "version: v1\n": (),
}
BAD = {
    "": "list:1: the file is empty; it has version: v1 and systemd-services",
    "- nvsm.service": "list:1: found a list; allowed: a mapping with version and systemd-services",
    "systemd-services: []": "list:1: version: is missing; allowed: v1",
    "version: v2": "list:1: version: found v2; allowed: v1",
    "version: v1\nsystemd_services: [a.service]": "list:2: systemd_services: is not a known key; allowed: version, "
    "systemd-services; did you mean systemd-services?",
    "version: v1\nsystemd-services: a.service": "list:2: systemd-services: found a.service; allowed: a list of "
    "systemd units, such as [nvidia-dcgm.service]",
    "version: v1\nsystemd-services:\n- a.service\n- nvsm": f"list:4: systemd-services[1]: found nvsm; {UNIT}; did you "
    "mean nvsm.service?",
    "version: v1\nsystemd-services: [dcgm.servce]": f"list:2: systemd-services[0]: found dcgm.servce; {UNIT}; did you "
    "mean dcgm.service?",
    "version: v1\nsystemd-services: [nvidia.dcgm]": f"list:2: systemd-services[0]: found nvidia.dcgm; {UNIT}; did you "
    "mean nvidia.dcgm.service?",
    "version: v1\nsystemd-services: [a@.service]": f"list:2: systemd-services[0]: found a@.service; {UNIT}; a template "
    "runs only with an instance, such as a@0.service",
    "version: v1\nsystemd-services: [{name: a.service}, ]": f"list:2: systemd-services[0]: found a mapping; {UNIT}",
    "version: v1\nsystemd-services: ['/etc/a.service']": f"list:2: systemd-services[0]: found '/etc/a.service'; {UNIT}",
    "version: v1\nversion: v1": "list:2: version: is given twice; first on line 1",
}


@pytest.mark.parametrize(("text", "services"), GOOD.items())
def test_units_in_the_order_of_the_file(text: str, services: tuple[str, ...]) -> None:
    assert parse_services(text, file="list") == services


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_what_is_wrong_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(MigManagerError) as error:
        parse_services(text, file="list")
    assert error.value.message == message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MigManagerError) as error:
        read_services(tmp_path / "clients.yaml")
    assert error.value.reason is Reason.HOST_SERVICE_ERROR
    assert f"{tmp_path / 'clients.yaml'}: cannot be read: No such file or directory" in error.value.message


def test_the_example_can_be_read() -> None:
    assert "nvidia-dcgm.service" in read_services(EXAMPLE)
