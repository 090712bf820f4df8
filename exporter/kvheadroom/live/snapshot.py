"""One immutable picture of the node: what was read, and what it means."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvheadroom.errors import Reason
from kvheadroom.live.engine_view import EngineView
from kvheadroom.readings import GpuReading, SilentReason, SourceHealth


@dataclass(frozen=True, slots=True)
class ServerView:
    """One vLLM server that answered.

    Attributes:
        target: ``host:port``.
        silent: Why it tells nothing of its engines; ``None`` when it does.
        endpoints: Its other endpoints → answered (``None``) or the reason why not.
        vllm_version: As it reports.
    """

    target: str
    silent: SilentReason | None
    endpoints: Mapping[str, Reason | None]
    vllm_version: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node at one moment; every face renders the same one.

    Attributes:
        sources: Every source polled, up or not.
        gpus: Every GPU that answered at its last poll.
        servers: Every vLLM server that answered at its last poll.
        engines: Every engine of those servers.
        driver_version: NVIDIA driver; ``None`` while NVML does not answer.
        polls_missed: Polls that were due and never ran.
        polls_skipped: Polls not begun because the one before still ran.
        config_reloaded: The configuration in force is the one on disk.
        config_read_unix_seconds: When it was read.
    """

    sources: tuple[SourceHealth, ...] = ()
    gpus: tuple[GpuReading, ...] = ()
    servers: tuple[ServerView, ...] = ()
    engines: tuple[EngineView, ...] = ()
    driver_version: str | None = None
    polls_missed: int = 0
    polls_skipped: int = 0
    config_reloaded: bool = True
    config_read_unix_seconds: float | None = None

    @property
    def is_complete(self) -> bool:
        """Whether every source has been polled at least once."""
        return all(source.duration_seconds is not None for source in self.sources)
