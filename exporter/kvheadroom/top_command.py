"""``kvheadroom top``: show a node in the terminal, one that is being served or this one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kvheadroom import __version__, defaults
from kvheadroom.errors import KvHeadroomError
from kvheadroom.faces.document import NodeDocument, decode_node
from kvheadroom.faces.node_document import node_document
from kvheadroom.faces.top import NARROWEST_COLUMNS, render
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.logs import set_up_logs
from kvheadroom.node.engine_url import parse_engine_url
from kvheadroom.node.http import EngineHttp
from kvheadroom.node.nvml import NvmlSource
from kvheadroom.poll.node import NodeWatch
from kvheadroom.settings import Flags, resolve
from kvheadroom.watched import process_source, watch_node

SNAPSHOT_PATH: Final = "/api/v1/snapshot"

_TIMEOUT_SECONDS: Final = 3.0
_LOCAL_TIMEOUT_SECONDS: Final = 0.5
_MOST_BYTES: Final = 16 * 1024 * 1024
# How long a node of our own may take to answer for the first time.
_FIRST_LOOK_SECONDS: Final = 10.0

Look = Callable[[], NodeDocument]


@dataclass(frozen=True, slots=True)
class TopFlags:
    """The command line of ``top``.

    Attributes:
        url: A kvheadroom to ask; ``None`` asks the one on this machine, or looks for itself.
        once: Draw once and return, as where the output is no terminal.
        flags: What the node is watched by, where nobody else watches it.
    """

    url: str | None
    once: bool
    flags: Flags


def run_top(given: TopFlags) -> None:
    """Draw the node until interrupted, or once.

    Raises:
        ConfigError: A flag cannot be honored.
        SourceError: The kvheadroom that was asked does not answer.
    """
    settings = resolve(given.flags)
    look = _served(given.url, _TIMEOUT_SECONDS) if given.url else _local()
    if look is None:
        look = _own(given.flags)
    try:
        _draw(look, once=given.once, every_seconds=settings.poll_interval_seconds)
    except KeyboardInterrupt:
        return


def _draw(look: Look, *, once: bool, every_seconds: float) -> None:
    terminal = Console(highlight=False)
    console = Console(highlight=False, width=_width(terminal))
    node = look()
    # Nobody could see a picture change in a file or a pipe.
    if once or not console.is_terminal:
        console.print(render(node, console.width))
        return
    first = render(node, console.width, terminal.height)
    with Live(first, console=console, screen=True, auto_refresh=False) as screen:
        while True:
            time.sleep(every_seconds)
            console.width = _width(terminal)
            try:
                picture = render(look(), console.width, terminal.height)
            except KvHeadroomError as error:
                # The next look may find it again.
                picture = Text(str(error), style="red")
            screen.update(picture, refresh=True)


def _width(terminal: Console) -> int:
    return max(terminal.width, NARROWEST_COLUMNS)


def _served(url: str, timeout_seconds: float) -> Look:
    """Return how to ask the kvheadroom at *url*; credentials in it are sent as basic auth."""
    http = EngineHttp(parse_engine_url(url))

    def look() -> NodeDocument:
        body = http.get(
            SNAPSHOT_PATH,
            accept="application/json",
            deadline_monotonic_seconds=time.monotonic() + timeout_seconds,
            max_bytes=_MOST_BYTES,
        )
        return decode_node(body)

    return look


def _local() -> Look | None:
    """Return how to ask the kvheadroom that serves this machine; ``None`` where none does."""
    look = _served(f"http://127.0.0.1:{defaults.PORT}", _LOCAL_TIMEOUT_SECONDS)
    try:
        look()
    except KvHeadroomError:
        return None
    return look


def _own(flags: Flags) -> Look:
    """Watch this node ourselves; return how to look at it."""
    settings = resolve(flags)
    # A line of log in the middle of the picture would break it.
    set_up_logs("error", settings.log_format)
    latest = [Snapshot()]
    watch = NodeWatch(lambda snapshot: latest.__setitem__(0, snapshot))
    gpus = NvmlSource(deadline_seconds=settings.poll_timeout_seconds)
    watch_node(watch, settings, gpus=gpus, processes=process_source(settings))
    watch.start()
    deadline = time.monotonic() + _FIRST_LOOK_SECONDS
    while not _is_seen(latest[0]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return lambda: node_document(__version__, latest[0])


def _is_seen(snapshot: Snapshot) -> bool:
    return bool(snapshot.sources) and snapshot.is_complete
