"""Lines of ``/proc/PID/cgroup`` as the runtimes' own documentation and issues show them."""

import pytest

from kvheadroom.node.cgroups import placement_of

ID = "0123456789abcdef" * 4
OTHER = "fedcba9876543210" * 4
UID = "0f1e2d3c-1111-2222-3333-0123456789ab"


@pytest.mark.parametrize(
    ("line", "container", "pod"),
    [
        (f"12:memory:/docker/{ID}", ID, None),
        (f"0::/system.slice/docker-{ID}.scope", ID, None),
        (f"0::/machine.slice/libpod-{ID}.scope/container", ID, None),
        (
            f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
            ID,
            None,
        ),
        (f"0::/system.slice/nerdctl-{ID}.scope", ID, None),
        (f"5:cpu:/kubepods/burstable/pod{UID}/{ID}", ID, UID),
        (f"5:cpu:/kubepods/besteffort/pod{'a' * 32}/{ID}", ID, "a" * 32),
        (
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
            ID,
            UID,
        ),
        (
            f"1:cpu:/a.service/kubepods-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}",
            ID,
            UID,
        ),
        (f"0::/docker/{OTHER}/docker/{ID}", ID, None),
        (f"9:pids:/ecs/{'b' * 32}/{'b' * 32}-1234567890", f"{'b' * 32}-1234567890", None),
        (f"0::/../../pod{UID}/{ID}", ID, UID),
        ("0::/", None, None),
        ("0::/user.slice/user-1000.slice/session-3.scope", None, None),
        ("garbage", None, None),
        ("", None, None),
    ],
)
def test_a_container_is_known_by_its_cgroup(
    line: str, container: str | None, pod: str | None
) -> None:
    """Version 1 and 2, with systemd or without, nested or seen from a namespace."""
    found = placement_of(line)

    assert (found.container_id, found.pod_uid) == (container, pod)


def test_a_service_is_known_by_its_unit() -> None:
    """systemd's unit is the last service on the path."""
    assert placement_of("0::/system.slice/vllm@8000.service").systemd_unit == "vllm@8000.service"


def test_mounts_tell_where_the_cgroup_is_hidden() -> None:
    """In a cgroup namespace the path is /; the files a runtime mounts name the container."""
    mounts = (
        f"36 35 8:1 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw - ext4 /dev/x\n"
        f"37 35 8:1 /var/lib/kubelet/pods/{UID}/etc-hosts /etc/hosts rw - ext4 /dev/x\n"
    )

    found = placement_of("0::/", mounts)

    assert (found.container_id, found.pod_uid) == (ID, UID)


def test_the_hosts_own_mounts_are_no_container() -> None:
    """A process of the host sees the volumes of every pod, and is in none."""
    mounts = (
        f"36 35 0:9 / /var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~projected/t rw - tmpfs t\n"
        f"37 35 0:9 / /var/lib/docker/containers/{ID}/mounts/shm rw - tmpfs shm\n"
    )

    found = placement_of("0::/system.slice/ssh.service", mounts)

    assert (found.container_id, found.pod_uid) == (None, None)
