"""The node under watch: all sources, their schedule, and the snapshot they add up to."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from kvheadroom.live.engine_view import ViewOptions
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.facts import FactsSource
from kvheadroom.poll.gpu_watch import GpuSource, GpuWatch
from kvheadroom.poll.judge import NodeJudge
from kvheadroom.poll.process_watch import ProcessSource, ProcessWatch
from kvheadroom.poll.publisher import Publisher
from kvheadroom.poll.schedule import PollSchedule
from kvheadroom.poll.server_set import FoundEngines, MakeServer, ServerSet, WatchedServer

# Names under which polls are scheduled and reported; a server's is its address.
_GPUS: Final = "nvml"
_PROCESSES: Final = "proc"
_CONFIGURATION: Final = "configuration"
