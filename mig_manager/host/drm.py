"""The kernel module nvidia_drm, which keeps GPUs open that shall be reset; no process shows up for that.

With kernel mode setting it holds every GPU of the machine. Source: the known issue in the README of nvidia-mig-parted,
which asks for the module to be unloaded and loaded again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.commands import CommandError, run
from mig_manager.planning.explain import gpu_numbers
from mig_manager.planning.plan import NodePlan

MODULE = "nvidia_drm"
_TIMEOUT_S = 60.0


def nvidia_drm(sys: Path) -> str:
    """Whether it keeps GPUs open, and what to do, in words; empty if not.

    It does with kernel mode setting, and while anybody uses it.
    """
    users = _read(_module(sys) / "refcnt")
    found = []
    if users not in ("", "0"):
        found.append(f"{users} user{'' if users == '1' else 's'}")
    if _sets_modes(sys):
        found.append("mode setting on")
    if not found:
        return ""
    return (
        f"The kernel module {MODULE} is loaded ({', '.join(found)}) and keeps GPUs open: unload it on the host"
        " (modprobe -r nvidia_drm nvidia_modeset), keep it from loading, or have it unloaded for each reset"
        " (MIG_MANAGER_UNLOAD_DRM=true), and try again."
    )


def refuse_while_it_sets_modes(plan: NodePlan, sys: Path) -> None:
    """Refuse a plan whose resets cannot work for the sake of this module, before anything is touched.

    Users of it without mode setting are no reason: they may be pods that the plan makes leave.

    Raises:
        MigManagerError: GPU_IN_USE.
    """
    if plan.resets and _sets_modes(sys):
        gpus = gpu_numbers([gpu.index for gpu in plan.resets])
        raise MigManagerError(
            Reason.GPU_IN_USE, f"{gpus}: a change of the MIG mode takes a reset. {nvidia_drm(sys)}"
        )


class DrmModule:
    """Takes the module away for the length of a reset, and brings it back."""

    def __init__(
        self, modprobe: Sequence[str], *, sys: Path, root: Path | None, note: Callable[[], None]
    ) -> None:
        """Nothing is done yet.

        Args:
            modprobe: the command without its arguments.
            sys: the host's sysfs.
            root: where to chroot to for the command; None or `/`: nowhere.
            note: called before the module is unloaded, so that a later process can bring it back too (`adopt`).
        """
        self._modprobe = tuple(modprobe)
        self._sys = sys
        self._root = root
        self._note = note
        self._away = False
        self.problem = ""
        """Why it could not be brought back, in words."""

    @contextmanager
    def unloaded(self) -> Iterator[None]:
        """The module is not there within the block; nothing happens where it is not loaded.

        Raises:
            MigManagerError: GPU_IN_USE; it cannot be unloaded.
        """
        if not _module(self._sys).is_dir():
            yield
            return
        self._note()
        if words := self._run("-r", MODULE):
            raise MigManagerError(
                Reason.GPU_IN_USE, f"The kernel module {MODULE} keeps GPUs open, and {words}"
            )
        self._away = True
        try:
            yield
        finally:
            self.bring_back()

    def adopt(self) -> None:
        """Take over from an earlier process that may have unloaded it: `bring_back` loads it."""
        self._away = True

    def bring_back(self) -> None:
        """Load it if it is away; see `problem`."""
        if self._away:
            self._away = False
            words = self._run(MODULE)
            self.problem = (
                f"The kernel module {MODULE} was unloaded for a reset, and {words}" if words else ""
            )

    def _run(self, *arguments: str) -> str:
        """What went wrong, in words; empty if it worked."""
        try:
            done = run((*self._modprobe, *arguments), {}, root=self._root, timeout_s=_TIMEOUT_S)
        except CommandError as error:
            return f"modprobe {error}."
        if done.status == 0:
            return ""
        return f"this failed with exit status {done.status}: {done.shown}: {done.words or 'no output'}"


def _module(sys: Path) -> Path:
    return sys / "module" / MODULE


def _sets_modes(sys: Path) -> bool:
    return _read(_module(sys) / "parameters/modeset") in ("Y", "1")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
