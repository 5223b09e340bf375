"""Why a run failed, in the words that stand on the Node.

Every room raises `MigManagerError` with a `Reason`; nobody needs to translate.
"""

from __future__ import annotations

from enum import StrEnum

from mig_manager.redaction import redacted


class Reason(StrEnum):
    """The reasons a run can fail for. docs/troubleshooting.md has a section for each."""

    UNKNOWN_LAYOUT = "UnknownLayout"
    INVALID_LAYOUT = "InvalidLayout"
    UNSUPPORTED_PROFILE = "UnsupportedProfile"
    IMPOSSIBLE_LAYOUT = "ImpossibleLayout"
    STRATEGY_MISMATCH = "StrategyMismatch"
    SLOT_TIMEOUT = "SlotTimeout"
    DRAIN_REQUIRED = "DrainRequired"
    DRAIN_TIMEOUT = "DrainTimeout"
    EVICTION_BLOCKED = "EvictionBlocked"
    OPERAND_TIMEOUT = "OperandTimeout"
    HOST_SERVICE_ERROR = "HostServiceError"
    GPU_IN_USE = "GpuInUse"
    RESET_NOT_SUPPORTED = "ResetNotSupported"
    REBOOT_REQUIRED = "RebootRequired"
    NVML_ERROR = "NvmlError"
    VERIFY_FAILED = "VerifyFailed"
    DEVICE_NODE_ERROR = "DeviceNodeError"
    CDI_ERROR = "CdiError"
    DRIFTED = "Drifted"
    RESOURCES_NOT_ADVERTISED = "ResourcesNotAdvertised"
    ROLLBACK_FAILED = "RollbackFailed"
    INTERRUPTED = "Interrupted"
    API_ERROR = "ApiError"

    @property
    def transient(self) -> bool:
        """Whether a later attempt can succeed although nobody changed the label or the layout file."""
        return self in _TRANSIENT


_TRANSIENT = frozenset(
    {
        Reason.SLOT_TIMEOUT,
        Reason.DRAIN_REQUIRED,
        Reason.DRAIN_TIMEOUT,
        Reason.EVICTION_BLOCKED,
        Reason.OPERAND_TIMEOUT,
        Reason.HOST_SERVICE_ERROR,
        Reason.GPU_IN_USE,
        Reason.NVML_ERROR,
        Reason.VERIFY_FAILED,
        Reason.DEVICE_NODE_ERROR,
        Reason.CDI_ERROR,
        Reason.RESOURCES_NOT_ADVERTISED,
        Reason.INTERRUPTED,
        Reason.API_ERROR,
    }
)


class MigManagerError(Exception):
    """A failure that a user can read.

    `str(error)` is one message for the user: it names the place, what was found, what is allowed and,
    where there is one, the nearest valid choice. Secrets in it are hidden.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        self.reason = reason
        self.message = redacted(message)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.reason, self.message))
