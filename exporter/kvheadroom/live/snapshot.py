"""One immutable picture of the node: what was read, and what it means."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvheadroom.errors import Reason
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.found_servers import FoundServer
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
        cards: Every GPU that answered at its last poll, with who holds its memory.
        servers: Every vLLM server that answered at its last poll.
        engines: Every engine of those servers.
        discovered: Every vLLM server that was found among the node's processes, by its id.
        driver_version: NVIDIA driver; ``None`` while NVML does not answer.
        polls_missed: Polls that were due and never ran.
        polls_skipped: Polls not begun because the one before still ran.
        config_reloaded: The configuration in force is the one on disk.
        config_read_unix_seconds: When it was read.
    """

    sources: tuple[SourceHealth, ...] = ()
    cards: tuple[CardView, ...] = ()
    servers: tuple[ServerView, ...] = ()
    engines: tuple[EngineView, ...] = ()
    discovered: Mapping[str, FoundServer] = field(default_factory=dict)
    driver_version: str | None = None
    polls_missed: int = 0
    polls_skipped: int = 0
    config_reloaded: bool = True
    config_read_unix_seconds: float | None = None

    @property
    def gpus(self) -> tuple[GpuReading, ...]:
        """What the driver said of every GPU."""
        return tuple(card.gpu for card in self.cards)

    @property
    def is_complete(self) -> bool:
        """Whether every source has been polled at least once."""
        return all(source.duration_seconds is not None for source in self.sources)
