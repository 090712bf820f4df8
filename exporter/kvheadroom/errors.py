"""Every error kvheadroom raises on purpose, as one tree.

KvHeadroomError
├── ConfigError          the operator wrote something we cannot honor: one line, exit 2
├── ModelConfigError     a model's config.json lacks, or contradicts, a field we need
└── SourceError          one poll of one source failed; the daemon goes on
    └── (its `reason` is the bounded label value, its text is the line a person reads)
"""

from typing import Final, Literal

HttpReason = Literal[
    "unreachable",  # refused, no such host, no route
    "timeout",  # connected or not, the deadline passed
    "reset",  # the connection broke in the middle
    "tls",  # certificate or handshake
    "unauthorized",  # 401, 403
    "http_error",  # any other status that is not 200
    "redirect",  # to another host, or without end
    "not_metrics",  # an answer that is no exposition (a login page, an error page)
    "truncated",  # an exposition cut off in the middle
    "too_large",  # more bytes than we agree to read
    "internal",  # a fault of ours; the log has the traceback
]
NvmlReason = Literal[
    "driver_missing",  # no libnvidia-ml.so.1 on this machine
    "driver_not_loaded",  # the library is there, the kernel module is not
    "timeout",  # a call did not come back before the deadline
    "lost",  # the GPU fell off the bus, or needs a reset
    "no_permission",
    "not_supported",  # this GPU has no such reading
    "function_missing",  # this driver is too old for the call
    "driver_error",  # any other NVML error; the detail names it
    "internal",
]
Reason = HttpReason | NvmlReason

HTTP_REASONS: Final[tuple[HttpReason, ...]] = HttpReason.__args__  # type: ignore[attr-defined]
NVML_REASONS: Final[tuple[NvmlReason, ...]] = NvmlReason.__args__  # type: ignore[attr-defined]
# A folder of processes cannot be listed, or we are at fault.
PROC_REASONS: Final[tuple[Reason, ...]] = ("unreachable", "internal")


class KvHeadroomError(Exception):
    """Anything kvheadroom raises on purpose."""


class ConfigError(KvHeadroomError):
    """The operator wrote something that cannot be honored; the text is one line."""


class ModelConfigError(KvHeadroomError):
    """A model's configuration does not say what its KV cache needs."""


class SourceError(KvHeadroomError):
    """One poll of one source failed.

    Attributes:
        reason: Bounded cause, the ``reason`` label of the failure counter.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason: Reason = reason
