"""Tell from a process's cgroups and mounts which container, pod and service it belongs to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# Docker, containerd, CRI-O and podman name a container by 64 hexadecimal digits; ECS on Fargate by
# 32, a dash and ten more.
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{32}-\d{10})(?![0-9a-f])")
# systemd writes the dashes of a pod's uid as underscores; a static pod's uid has neither.
_POD: Final = re.compile(
    r"[/-]pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./:]|$)"
)
_SERVICE: Final = re.compile(r"/([^/]+\.service)(?=/|$)")
# Files that a runtime lays over a container's own, from the container's folder on the host.
_MOUNTED_FILE: Final = re.compile(
    r"/(?:overlay-)?containers/([0-9a-f]{64})/(?:userdata/)?(hostname|hosts|resolv\.conf) /etc/\2 "
)
_MOUNTED_HOSTS: Final = re.compile(r"/pods/([0-9a-f-]{32,36})/etc-hosts /etc/hosts ")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a process was put; each part ``None`` where nothing tells.

    Attributes:
        container_id: The innermost container's.
        pod_uid: Kubernetes' id of the pod, with dashes.
        systemd_unit: The innermost service, ``vllm.service``.
    """

    container_id: str | None = None
    pod_uid: str | None = None
    systemd_unit: str | None = None


def placement_of(cgroup: str, mountinfo: str = "") -> Placement:
    """Return what ``/proc/PID/cgroup`` tells and, where it is silent, ``/proc/PID/mountinfo``.

    Args:
        cgroup: ``hierarchy:controllers:path`` lines, version 1 or 2.
        mountinfo: Under version 2 a process in a namespace of its own has the path ``/``.
    """
    paths = list(_paths(cgroup))
    return Placement(
        container_id=_innermost(_CONTAINER, paths) or _first(_MOUNTED_FILE, mountinfo),
        pod_uid=_with_dashes(_innermost(_POD, paths) or _first(_MOUNTED_HOSTS, mountinfo)),
        systemd_unit=_innermost(_SERVICE, paths),
    )


def _paths(cgroup: str) -> Iterator[str]:
    for line in cgroup.splitlines():
        _, _, path = line.split(":", 2) if line.count(":") > 1 else ("", "", "")
        yield path


def _innermost(pattern: re.Pattern[str], paths: list[str]) -> str | None:
    for path in paths:
        found = [match[match.lastindex or 0] for match in pattern.finditer(path)]
        if found:
            return found[-1]
    return None


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.search(text)
    return match[1] if match else None


def _with_dashes(uid: str | None) -> str | None:
    return None if uid is None else uid.replace("_", "-")
