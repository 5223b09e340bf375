"""Waiting until NVIDIA's DRA driver offers the GPUs as they are, by the ResourceSlices of this node."""

from __future__ import annotations

from collections.abc import Mapping

from loguru import logger

from mig_manager.cluster.claims import Claims, current_devices
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.site import Site
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory


class Slices:
    """The ResourceSlices of this node during one run."""

    def __init__(self, site: Site, claims: Claims) -> None:
        """Nothing is asked yet."""
        self._site = site
        self._claims = claims

    def wait(self, inventory: Inventory, deadline: Deadline) -> None:
        """Wait until the slices show the devices that there are, and none that are gone.

        Where slices cannot be followed (no such API, no permission), this is logged, and nothing waited for.

        Raises:
            MigManagerError: ResourcesNotAdvertised.
        """
        watch = self._claims.watch_slices(self._site.signal, self._site.watching)
        if watch is None:
            logger.warning(
                "the API server has no ResourceSlices: what the DRA driver offers is not waited for"
            )
            return
        with watch:
            try:
                watch.wait_synced(deadline)
            except MigManagerError as error:
                logger.warning("what the DRA driver offers is not waited for: {}", error.message)
                return

            def obstacle() -> str | None:
                return wrong_slices(current_devices(watch.objects.values()), inventory)

            self._site.signal.wait_for(
                lambda: obstacle() is None,
                deadline,
                lambda: f"The DRA driver does not offer the GPUs as they are: {obstacle()}.",
                reason=Reason.RESOURCES_NOT_ADVERTISED,
            )


def wrong_slices(offered: Mapping[str, str | None], inventory: Inventory) -> str | None:
    """Why devices in ResourceSlices are not those that there are; None when they are.

    A GPU in MIG mode may be offered as a whole or not. MIG devices need not be there where the driver makes them
    only once they are claimed: it offers such without a UUID.

    Args:
        offered: UUIDs by `pool/device`, as `current_devices` gives them.
        inventory: the GPUs as read.
    """
    shown = {uuid for uuid in offered.values() if uuid is not None}
    made_on_demand = None in offered.values()
    wanted = {state.gpu.uuid for state in inventory.gpus if not state.mig_current}
    if not made_on_demand:
        wanted |= {
            one.uuid
            for state in inventory.gpus
            if state.mig_current
            for instance in state.instances
            for one in instance.compute
            if one.uuid is not None
        }
    gone = sorted(uuid for uuid in shown - inventory.uuids if uuid.startswith(("MIG-", "GPU-")))
    missing = sorted(wanted - shown)
    problems = []
    if missing:
        problems.append(f"do not show {', '.join(missing[:3])}{' and more' if missing[3:] else ''} yet")
    if gone:
        problems.append(f"still show {', '.join(gone[:3])}{' and more' if gone[3:] else ''}")
    return f"its ResourceSlices {' and '.join(problems)}" if problems else None
