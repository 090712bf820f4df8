"""A made ``/proc`` in a folder, and the sockets, files and variables of its processes."""

from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path

from kvheadroom.poll.discovery import Discovered, Discovery
from kvheadroom.readings import GpuProcess, GpuReading
from kvheadroom.strict_yaml import load_mapping

OUR_NETWORK = str(Path("/proc/self/ns/net").readlink())
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


class ProcTree:
    """A ``/proc`` made of plain files, as many of them as a test needs."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "proc"
        (self.root / "self").mkdir(parents=True)
        self.add(1, "/sbin/init", parent=0)
        self._inode = 1000

    def add(
        self,
        pid: int,
        *argv: str,
        parent: int = 1,
        start: int | None = None,
        state: str = "S",
        environment: Mapping[str, str] | None = None,
        cgroup: str = "0::/init.scope",
        working_directory: str = "/",
        root: Path | str = "/",
        network: str = OUR_NETWORK,
    ) -> int:
        """Make the process *pid*, or make it anew."""
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        (folder / "net").mkdir(exist_ok=True)
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "net" / "tcp").write_text(HEADER)
        name = (argv[0].rpartition("/")[2] if argv else "gone")[:15]
        fields = [state, str(parent), *["0"] * 17, str(start or pid * 10), *["0"] * 30]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
        (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in argv).encode())
        variables = environment or {}
        (folder / "environ").write_bytes(
            "".join(f"{name}={value}\0" for name, value in variables.items()).encode()
        )
        (folder / "cgroup").write_text(f"{cgroup}\n")
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}\n")
        for link, target in (("cwd", working_directory), ("root", root), ("ns/net", network)):
            (folder / link).unlink(missing_ok=True)
            (folder / link).symlink_to(target)
        return pid

    def title(self, pid: int, title: str, *, parent: int, padding: str = "\0" * 40) -> int:
        """Make a process that wrote *title* over its words."""
        self.add(pid, title, parent=parent)
        (self.root / str(pid) / "cmdline").write_bytes((title + padding).encode())
        return pid

    def listen(self, pid: int, host: str, port: int, *also: int) -> None:
        """Let process *pid*, and those that share it, hold a listening socket."""
        self._inode += 1
        address = ip_address(host)
        words = [address.packed[at : at + 4][::-1].hex() for at in range(0, len(address.packed), 4)]
        line = (
            f"   0: {''.join(words).upper()}:{port:04X} 00000000:0000 0A 00000000:00000000 "
            f"00:00000000 00000000  1000        0 {self._inode} 1 0000000000000000 100 0 0 10 0\n"
        )
        table = "tcp" if address.version == 4 else "tcp6"
        for holder in (pid, *also):
            descriptors = self.root / str(holder) / "fd"
            (descriptors / str(len(list(descriptors.iterdir())) + 3)).symlink_to(
                f"socket:[{self._inode}]"
            )
            file = self.root / str(holder) / "net" / table
            file.write_text((file.read_text() if file.exists() else HEADER) + line)

    def addresses(self, pid: int, *hosts: str) -> None:
        """Give the network namespace of process *pid* these addresses."""
        rows = "".join(f"           |-- {host}\n              /32 host LOCAL\n" for host in hosts)
        (self.root / str(pid) / "net" / "fib_trie").write_text(f"Local:\n{rows}")

    def end(self, pid: int) -> None:
        """End process *pid*; who it was the parent of is adopted by init."""
        folder = self.root / str(pid)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()
        for child in self.root.iterdir():
            stat = child / "stat"
            if stat.exists():
                head, _, rest = stat.read_text().partition(") ")
                fields = rest.split(" ")
                if fields[1] == str(pid):
                    fields[1] = "1"
                    stat.write_text(f"{head}) {' '.join(fields)}")

    def discovery(self, **options: str) -> Discovery:
        """A discovery that looks here and does everything in the caller's thread."""
        return Discovery(
            proc=str(self.root),
            read_yaml=load_mapping,
            start=lambda work: work(),
            pod_logs=options.get("pod_logs"),
        )

    def look(self, *gpus: GpuReading) -> Discovered:
        """What a first look finds."""
        return self.discovery().look(gpus)


def serve(*flags: str, model: str = "org/m") -> tuple[str, ...]:
    """The words of a server's process, as a console script has them."""
    return ("/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", model, *flags)


def gpu(index: int, *pids: int, held_bytes: int = 1 << 30) -> GpuReading:
    """A GPU on which *pids* hold memory."""
    return GpuReading(
        str(index),
        f"GPU-{index:08x}-0000-0000-0000-000000000000",
        name="NVIDIA H100",
        processes=tuple(GpuProcess(pid, held_bytes) for pid in pids),
    )
