"""Read every GPU and MIG device of the node through NVML, never for longer than a deadline."""

import _ctypes
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import pynvml

from kvheadroom.errors import NvmlReason, Reason, SourceError
from kvheadroom.node.lanes import Lanes, if_alone
from kvheadroom.node.nvml_values import (
    NOT_AVAILABLE_U64,
    GpuMemory,
    gpu_memory,
    merge_processes,
    mig_profile_in_name,
    mig_profile_of,
)
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading, SourceFailure

T = TypeVar("T")

_DRIVER: Final = "driver"
# A healthy driver shuts down in less, and who closes a source has no use for waiting longer.
_CLOSE_SECONDS: Final = 0.1
_REASON_OF: Final[Mapping[int, NvmlReason]] = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "driver_missing",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "driver_not_loaded",
    pynvml.NVML_ERROR_TIMEOUT: "timeout",
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost",
    pynvml.NVML_ERROR_RESET_REQUIRED: "lost",
    pynvml.NVML_ERROR_NO_PERMISSION: "no_permission",
    pynvml.NVML_ERROR_NOT_SUPPORTED: "not_supported",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "function_missing",
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: "function_missing",
    pynvml.NVML_ERROR_DEPRECATED: "function_missing",
}
# These speak of the whole driver, whichever GPU's call they come from.
_DRIVER_WIDE: Final = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
# There is nothing to answer with, as opposed to: it would not answer now.
_NOTHING_THERE: Final[frozenset[Reason]] = frozenset({"not_supported", "function_missing"})
# NVML reads these of the board only; a MIG device's parent has them.
_BOARD_READINGS: Final = ("utilization_ratio", "temperature_celsius", "power_watts")

# An opaque ctypes pointer of an untyped library.
Handle = Any
_GpuAnswer = tuple[tuple[GpuReading, ...], tuple[SourceFailure, ...]]


class NvmlSource:
    """Reads every GPU and MIG device; one that hangs or is lost costs no other its reading.

    Nothing is remembered between two reads except that NVML is initialized: handles, names and
    MIG devices change when a GPU is reset or repartitioned, and asking again costs microseconds.
    One thread reads at a time; any may close meanwhile.

    Attributes:
        deadline_seconds: Longest a read may take. May be changed by any thread at any time; the
            read after the change heeds it.
    """

    def __init__(self, *, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        self._lanes = Lanes("nvml")
        self._initialized = False
        self._in_use = threading.Lock()
        self._close_requested = False

    def read(self) -> NvmlReading:
        """Return what every GPU answered by the deadline, and for the others why they did not.

        A driver that is missing, not loaded or lost is looked for again at the next read.

        Raises:
            SourceError: The driver as a whole cannot be read.
        """
        try:
            with self._in_use:
                return self._read(self.deadline_seconds)
        finally:
            # After the lock is free: a close that still found it taken is seen here.
            if self._close_requested:
                self.close()

    def close(self) -> None:
        """Shut NVML down, unless a call hangs in it; safe when it was never initialized.

        Returns within a moment, whatever hangs. A read in progress goes on and closes at its end;
        a read begun later starts NVML anew.
        """
        self._close_requested = True
        if self._in_use.acquire(blocking=False):
            try:
                self._shut()
                self._close_requested = False
            finally:
                self._in_use.release()

    def _read(self, deadline_seconds: float) -> NvmlReading:
        deadline = time.monotonic() + deadline_seconds
        try:
            driver_version, gpu_count = self._enter_driver(deadline, deadline_seconds)
            targets = [str(index) for index in range(gpu_count)]
            answers = self._lanes.gather(
                {target: partial(_read_gpu, target) for target in targets},
                deadline_monotonic_seconds=deadline,
            )
        except _CallError:
            self._initialized = False
            raise
        gpus: list[GpuReading] = []
        failures: list[SourceFailure] = []
        for target in targets:
            answered, failed = answers.get(target) or ((), (self._late(target, deadline_seconds),))
            gpus += answered
            failures += failed
        return NvmlReading(driver_version, tuple(gpus), tuple(failures))

    def _shut(self) -> None:
        if self._initialized and self._lanes.idle():
            deadline = time.monotonic() + _CLOSE_SECONDS
            self._lanes.gather({_DRIVER: _shut_down}, deadline_monotonic_seconds=deadline)
        self._initialized = False
        self._lanes.close()

    def _enter_driver(
        self, deadline_monotonic_seconds: float, deadline_seconds: float
    ) -> tuple[str | None, int]:
        answers = self._lanes.gather(
            {_DRIVER: partial(_driver_facts, initialize=not self._initialized)},
            deadline_monotonic_seconds=deadline_monotonic_seconds,
        )
        if _DRIVER not in answers:
            raise SourceError("timeout", self._late(_DRIVER, deadline_seconds).detail)
        self._initialized = True
        return answers[_DRIVER]

    def _late(self, target: str, deadline_seconds: float) -> SourceFailure:
        # A call that returns between the deadline and here was late all the same.
        seconds = self._lanes.busy_seconds(target) or deadline_seconds
        whose = "NVML" if target == _DRIVER else f"NVML call for GPU {target}"
        return SourceFailure(target, "timeout", f"{whose}: no answer for {seconds:.1f} s")


# --- one call -------------------------------------------------------------------------------


class _CallError(SourceError):
    """One NVML call failed.

    Attributes:
        code: NVML's own number for it.
    """

    def __init__(self, function_name: str, code: int, text: str) -> None:
        super().__init__(_REASON_OF.get(code, "driver_error"), f"{function_name}: {text}")
        self.code = code

    @property
    def ends_gpu(self) -> bool:
        """Whether no further call on the same GPU can succeed."""
        return self.reason == "lost" or self.code in _DRIVER_WIDE


def _call(function: Callable[..., T], *arguments: object) -> T:
    # pynvml's errors name neither the call nor, being unhashable, survive a set or a dict.
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise _CallError(function.__name__, error.value, f"{error} ({error.value})") from error
    except UnicodeDecodeError as error:
        text = "text that is not UTF-8"
        raise _CallError(function.__name__, pynvml.NVML_ERROR_UNKNOWN, text) from error


def _attempt(
    unavailable: dict[str, Reason], reading: str, read: Callable[[Handle], T], handle: Handle
) -> T | None:
    """Return the reading, or ``None`` and note why; a lost GPU or driver is raised."""
    try:
        return read(handle)
    except _CallError as error:
        if error.ends_gpu:
            raise
        unavailable[reading] = error.reason
        return None


# --- the driver -----------------------------------------------------------------------------


def _driver_facts(*, initialize: bool) -> tuple[str | None, int]:
    """Return driver version and number of GPUs, after initializing NVML where asked to."""
    if initialize:
        # A thread that hangs in the library, even for a source long closed, would return into
        # unmapped memory.
        if_alone(_unload_library)
        _call(pynvml.nvmlInit)
    gpu_count = _call(pynvml.nvmlDeviceGetCount)
    with suppress(_CallError):
        return _call(pynvml.nvmlSystemGetDriverVersion), gpu_count
    return None, gpu_count


def _shut_down() -> None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlShutdown()


def _unload_library() -> None:
    """Make the next nvmlInit look for the library anew.

    pynvml keeps the library, and the address of each function in it, for good. After a driver
    upgrade that copy no longer matches the kernel module, and dlopen goes on handing it out until
    it has been closed.
    """
    library = pynvml.nvmlLib
    if library is None:
        return
    _shut_down()
    pynvml.nvmlLib = None
    pynvml._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  (no public way)
    _ctypes.dlclose(library._handle)  # noqa: SLF001  (ctypes has no public way either)


# --- GPUs and MIG devices -------------------------------------------------------------------


def _read_gpu(target: str) -> _GpuAnswer:
    """Return a GPU followed by its MIG devices, and what failed of them.

    Raises:
        SourceError: The driver as a whole is gone.
    """
    failures: list[SourceFailure] = []
    try:
        handle = _call(pynvml.nvmlDeviceGetHandleByIndex, int(target))
        unavailable: dict[str, Reason] = {}
        mig_devices = _attempt(unavailable, "mig_devices", _mig_devices, handle) or {}
        gpus = [_read_device(handle, target, unavailable)]
        for index, mig_handle in mig_devices.items():
            mig_target = f"{target}:{index}"
            try:
                mig_device = _read_mig_device(mig_handle, mig_target)
                capability = gpus[0].compute_capability
                gpus.append(replace(mig_device, compute_capability=capability))
            except _CallError as error:
                if error.ends_gpu:
                    raise
                failures.append(SourceFailure(mig_target, error.reason, str(error)))
    except _CallError as error:
        if error.code in _DRIVER_WIDE:
            raise
        return (), (SourceFailure(target, error.reason, str(error)),)
    return tuple(gpus), tuple(failures)


def _mig_devices(handle: Handle) -> dict[int, Handle]:
    """Return the handles of a GPU's MIG devices by MIG index; none where MIG is off or unknown."""
    try:
        current_mode, _ = _call(pynvml.nvmlDeviceGetMigMode, handle)
    except _CallError as error:
        if error.reason in _NOTHING_THERE:
            return {}
        raise
    if current_mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return {}
    found = {}
    for index in range(_call(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        try:
            found[index] = _call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        except _CallError as error:
            # A gap: the others keep their index when a MIG device is removed.
            if error.code != pynvml.NVML_ERROR_NOT_FOUND:
                raise
    return found


def _read_device(handle: Handle, gpu: str, unavailable: dict[str, Reason]) -> GpuReading:
    """Return a whole GPU's reading."""
    reading = _read_shared(handle, gpu, unavailable)
    return replace(
        reading,
        utilization_ratio=_attempt(unavailable, "utilization_ratio", _utilization_ratio, handle),
        temperature_celsius=_attempt(unavailable, "temperature_celsius", _celsius, handle),
        power_watts=_attempt(unavailable, "power_watts", _power_watts, handle),
        compute_capability=_compute_capability(reading.uuid, handle),
    )


def _read_mig_device(handle: Handle, gpu: str) -> GpuReading:
    """Return a MIG device's reading; utilization, temperature and power are its parent's."""
    unavailable: dict[str, Reason] = dict.fromkeys(_BOARD_READINGS, "not_supported")
    reading = _read_shared(handle, gpu, unavailable)
    profile = mig_profile_in_name(reading.name) or _attempt(
        unavailable, "mig_profile", _mig_profile, handle
    )
    return replace(reading, mig_profile=profile)


def _read_shared(handle: Handle, gpu: str, unavailable: dict[str, Reason]) -> GpuReading:
    """Return what a GPU and a MIG device have in common; *unavailable* stays open for more."""
    uuid = _call(pynvml.nvmlDeviceGetUUID, handle)
    memory = _attempt(unavailable, "memory", partial(_memory, unavailable), handle) or GpuMemory()
    return GpuReading(
        gpu=gpu,
        uuid=uuid,
        name=_attempt(unavailable, "name", partial(_call, pynvml.nvmlDeviceGetName), handle),
        total_bytes=memory.total_bytes,
        reserved_bytes=memory.reserved_bytes,
        used_bytes=memory.used_bytes,
        free_bytes=memory.free_bytes,
        processes=_attempt(unavailable, "processes", _processes, handle),
        unavailable=unavailable,
    )


# --- single readings ------------------------------------------------------------------------


def _memory(unavailable: dict[str, Reason], handle: Handle) -> GpuMemory:
    try:
        read = _call(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        reserved = read.reserved
    except _CallError as error:
        if error.reason not in _NOTHING_THERE:
            raise
        read, reserved = _call(pynvml.nvmlDeviceGetMemoryInfo, handle), None
        unavailable["reserved_bytes"] = error.reason
    memory = gpu_memory(total=read.total, free=read.free, reserved=reserved)
    if memory.reserved_bytes is None:
        unavailable.setdefault("reserved_bytes", "not_supported")
    if memory.used_bytes is None:
        untold = NOT_AVAILABLE_U64 in (read.total, read.free)
        unavailable["memory"] = "not_supported" if untold else "driver_error"
    return memory


def _processes(handle: Handle) -> tuple[GpuProcess, ...]:
    listed = _call(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    for list_more in (
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
    ):
        try:
            listed += _call(list_more, handle)
        except _CallError as error:
            # A GPU without graphics or MPS has no such processes; any other failure hides some.
            if error.reason not in _NOTHING_THERE:
                raise
    return merge_processes((process.pid, process.usedGpuMemory) for process in listed)


def _mig_profile(handle: Handle) -> str:
    attributes = _call(pynvml.nvmlDeviceGetAttributes_v2, handle)
    return mig_profile_of(
        gpu_slices=attributes.gpuInstanceSliceCount,
        compute_slices=attributes.computeInstanceSliceCount,
        memory_mib=attributes.memorySizeMB,
    )


def _utilization_ratio(handle: Handle) -> float:
    percent: int = _call(pynvml.nvmlDeviceGetUtilizationRates, handle).gpu
    return percent / 100


def _celsius(handle: Handle) -> float:
    try:
        return float(_call(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU))
    except _CallError as error:
        # nvml.h announces the end of this call for CUDA 14; old pynvml lacks its successor.
        successor = getattr(pynvml, "nvmlDeviceGetTemperatureV", None)
        if error.reason != "function_missing" or successor is None:
            raise
        return float(_call(successor, handle, pynvml.NVML_TEMPERATURE_GPU))


def _power_watts(handle: Handle) -> float:
    milliwatts: int = _call(pynvml.nvmlDeviceGetPowerUsage, handle)
    return milliwatts / 1000


_capabilities: dict[str, tuple[int, int] | None] = {}


def _compute_capability(uuid: str, handle: Handle) -> tuple[int, int] | None:
    """Return what the device can do, asked once: it never changes, and no reading hangs on it."""
    if uuid not in _capabilities:
        try:
            major, minor = _call(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        except _CallError as error:
            if error.ends_gpu:
                raise
            _capabilities[uuid] = None
        else:
            _capabilities[uuid] = (int(major), int(minor))
    return _capabilities[uuid]
