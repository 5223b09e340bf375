"""GPUs of nodes to hold layouts against."""

from __future__ import annotations

from mig_manager.layouts.generate import GeneratorInput
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.planning.catalogue import GpuModel, parse_gpus


def node(gpus: str) -> tuple[GpuIdentity, ...]:
    """The GPUs of a node such as `2xA100-SXM4-80GB,1xT4`; uuid and bus id carry the index."""
    return tuple(_identity(index, model) for index, model in enumerate(parse_gpus(gpus)))


def generator_input(gpus: str) -> tuple[GeneratorInput, ...]:
    """The same GPUs with what the catalogue says they offer."""
    return tuple(
        GeneratorInput(
            _identity(index, model),
            tuple((p.name, p.max_instances) for p in model.geometry.profiles) if model.geometry else (),
        )
        for index, model in enumerate(parse_gpus(gpus))
    )


def _identity(index: int, model: GpuModel) -> GpuIdentity:
    return GpuIdentity(
        index=index,
        uuid=f"GPU-{index:08x}-aaaa-bbbb-cccc-0123456789ab",
        bus_id=f"00000000:{0x07 + index:02X}:00.0",
        model=model.name,
        device_id=model.device_ids[0],
        subsystem_id=model.subsystem_ids[0] if model.subsystem_ids else 0,
        mig_capable=model.geometry is not None,
    )
