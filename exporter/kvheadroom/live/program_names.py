"""Names for processes that are no engine, from a set that is small enough to be a label."""

import re
from typing import Final

OTHER: Final = "other"

# What is met on GPUs beside vLLM: desktops, other servers, notebooks, tools. A name given by a user
# (a script, a job, a customer) is none of these and stays out of every label.
_KNOWN: Final = frozenset(
    (
        *("python", "jupyter", "java", "node", "ffmpeg", "blender", "ray", "torchrun"),
        *("ollama", "llama-server", "koboldcpp", "tritonserver", "trtllm-serve", "trtllm-bench"),
        *("sglang", "lmdeploy", "tgi", "text-generation-launcher", "text-generation-server"),
        *("text-embeddings-router", "infinity_emb", "whisper-server", "comfyui", "tabbyapi"),
        *("Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "sway"),
        *(
            "weston",
            "mutter",
            "gnome-remote-desktop",
            "xrdp",
            "sunshine",
            "steam",
            "steamwebhelper",
        ),
        *("firefox", "chrome", "chromium", "code", "nxnode"),
        *(
            "nvidia-smi",
            "dcgm-exporter",
            "nv-hostengine",
            "dcgmproftester",
            "nvidia-cuda-mps-server",
        ),
        *("gpu_burn", "nccl-tests", "all_reduce_perf", "nsys", "ncu", "cuda-gdb"),
    )
)
# The kernel keeps 15 characters of a name.
_CUT: Final = {name[:15]: name for name in _KNOWN}
_VERSIONED: Final = re.compile(
    r"(?:pt_main_thread|pt_data_worker|python(?:\d{1,2}(?:\.\d{1,3})?)?)"
)


def program_name(comm: str | None) -> str:
    """Return the bounded name of a process.

    Args:
        comm: As ``/proc/PID/comm`` has it; ``None`` where it cannot be read.
    """
    if comm is None:
        return OTHER
    name = comm.strip().rsplit("/", 1)[-1]
    if _VERSIONED.fullmatch(name):
        return "python"
    if name.startswith("ray::"):
        return "ray"
    return name if name in _KNOWN else _CUT.get(name, OTHER)
