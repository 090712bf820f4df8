"""A node made by a test: a driver, a ``/proc`` and the HTTP of servers recorded for real."""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.e2e.exporter import Exporter
from tests.e2e.page_server import PageServer, answer
from tests.parts.fake_nvml import FakeNvml
from tests.unit.evidence import endpoint_body, page
from tests.unit.proc_tree import ProcTree, serve

RECORDED = Path(__file__).parents[1] / "evidence" / "real-servers"


class MadeNode:
    """What ``kvheadroom serve`` sees of a node.

    Attributes:
        driver: Its NVML; nothing is listed until a test writes it.
        tree: Its ``/proc``.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        self.driver = FakeNvml(folder / "nvml", library)
        self.tree = ProcTree(folder)
        self._models = folder / "models"
        self._servers: list[PageServer] = []

    def server(
        self,
        pid: int,
        recorded: str,
        *flags: str,
        titles: Mapping[int, str] | None = None,
        pages: str = "",
        model: str | None = None,
        start: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> PageServer:
        """Start a server as one that was *recorded*, on a port of its own.

        Args:
            pid: Of its process.
            recorded: Which of ``evidence/real-servers``.
            flags: What it is told beside its model, host and port.
            titles: Pid → title of its children; one ``VLLM::EngineCore`` if not given.
            pages: Prefix of its recorded pages, for servers recorded in several forms.
            model: The recording whose model it serves, if that is not its own.
            start: Of its process, clock ticks.
            environment: Variables of its process.
        """
        door = PageServer().page(page(f"real-servers/{recorded}/{pages}busy"))
        self._servers.append(door)
        door.routes["/version"] = answer(endpoint_body(recorded, "/version"))
        door.routes["/v1/models"] = answer(endpoint_body(recorded, "/v1/models"))
        door.routes["/health"] = answer(b"")
        host, _, port = door.target.partition(":")
        words = serve(
            "--host", host, "--port", port, *flags, model=str(self._model(model or recorded))
        )
        self.tree.add(pid, *words, start=start, environment=environment)
        self.tree.listen(pid, host, int(port))
        for child, title in (titles or {pid + 1: "VLLM::EngineCore"}).items():
            self.tree.title(child, title, parent=pid)
        return door

    def stop(self, pid: int, door: PageServer) -> None:
        """End the server *pid* with its children, and close its door."""
        for process in tuple(self.tree.root.iterdir()):
            stat = process / "stat"
            if stat.exists() and stat.read_text().partition(") ")[2].split(" ")[1] == str(pid):
                self.tree.end(int(process.name))
        self.tree.end(pid)
        door.close()

    def watch(self, *arguments: str, interval: str = "500ms") -> Exporter:
        """Run ``kvheadroom serve`` on this node, no engine configured."""
        return Exporter(
            "serve",
            *("--poll.interval", interval, "--proc.root", str(self.tree.root), *arguments),
            environment=self.driver.environment(),
        )

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _model(self, recorded: str) -> Path:
        folder = self._models / recorded
        if not folder.exists():
            folder.mkdir(parents=True)
            shutil.copy(RECORDED / recorded / "config.json", folder)
        return folder


def polls_until(
    exporter: Exporter, source: str, is_so: Callable[[], bool], *, seconds: float = 15
) -> int:
    """How many polls of *source* it took from now until something is so."""
    deadline = time.monotonic() + seconds
    ends = {_last_poll(exporter, source)}
    while not is_so():
        ends.add(_last_poll(exporter, source))
        assert time.monotonic() < deadline, "".join(exporter.log[-20:])
        time.sleep(0.02)
    # The one in whose snapshot it is so, and not what was there before.
    return len(ends | {_last_poll(exporter, source)}) - 1


def _last_poll(exporter: Exporter, source: str) -> float | None:
    return max(
        (value for labels, value in exporter.samples("poll_last_success_timestamp_seconds")
         if labels["source"] == source),
        default=None,
    )  # fmt: skip


def held(*processes: tuple[int, int]) -> str:
    """The driver's list of processes: pid and bytes of each."""
    return " ".join(f"{pid}:{count}" for pid, count in processes)


def ledger_sum(exporter: Exporter, gpu: str) -> float:
    """Everything the ledger of one GPU holds."""
    return sum(
        count for labels, count in exporter.samples("gpu_ledger_bytes") if labels["gpu"] == gpu
    )
