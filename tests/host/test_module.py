"""The driver's kernel module, seen without the driver."""

from __future__ import annotations

from pathlib import Path

from mig_manager.host.module import module_load
from mig_manager.planning.catalogue import parse_gpus
from mig_manager.simulation.gpus import SimulatedGpus


def test_each_load_of_the_module_has_a_number_of_its_own(tmp_path: Path) -> None:
    gpus = SimulatedGpus.create(tmp_path / "gpus.json", parse_gpus("A30"), host_files=str(tmp_path))
    sys = tmp_path / "sys"
    first = module_load(sys)
    gpus.hold(pid=1, name="monitor")
    assert module_load(sys) == first
    gpus.unload_driver(force=True)
    assert module_load(sys) is None
    gpus.load_driver()
    second = module_load(sys)
    gpus.restart_driver("590.10", force=True)
    assert len({None, first, second, module_load(sys)}) == 4


def test_a_module_on_its_way_in_or_out_is_not_loaded(tmp_path: Path) -> None:
    state = tmp_path / "module" / "nvidia" / "initstate"
    state.parent.mkdir(parents=True)
    for text, loaded in (("coming\n", False), ("live\n", True), ("going\n", False)):
        state.write_text(text)
        assert (module_load(tmp_path) is not None) is loaded
