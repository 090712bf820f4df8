"""What one poll cycle of 8 GPUs and 8 engines costs: CPU, memory, and memory over 20,000 polls."""

import gc
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from kvheadroom.faces import exposition
from kvheadroom.live.engine_view import EngineFacts, ViewOptions
from kvheadroom.node.vllm import EngineTarget, VllmSource
from kvheadroom.poll.gpu_watch import GpuSource
from kvheadroom.poll.node import NodeWatch, WatchedServer
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.readings import GpuProcess, GpuReading, NvmlReading

PAGE: Final = Path(__file__).parent.parent / "tests/evidence/demo/real-0.32.0-after.prom"
ENGINES: Final = 8
CYCLES: Final = 100
INTERVAL_SECONDS: Final = 0.1
GIB: Final = 1024**3


class _Gpus:
    """Eight cards; the cost of NVML itself is measured by its own tests."""

    def read(self) -> NvmlReading:
        cards = tuple(
            GpuReading(
                gpu=str(index),
                uuid=f"GPU-{index}",
                name="NVIDIA H200",
                total_bytes=141 * GIB,
                reserved_bytes=GIB,
                used_bytes=100 * GIB,
                free_bytes=40 * GIB,
                utilization_ratio=0.5,
                temperature_celsius=60.0,
                power_watts=500.0,
                processes=(GpuProcess(1000 + index, 99 * GIB),),
            )
            for index in range(8)
        )
        return NvmlReading("590.48.01", cards)

    def close(self) -> None:
        pass
