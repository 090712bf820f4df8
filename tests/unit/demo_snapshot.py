"""A snapshot of a simulated node, made by the real pipeline."""

import threading
import time

from kvheadroom.demo.node import build_node
from kvheadroom.live.snapshot import Snapshot
from kvheadroom.poll.node import NodeWatch
from kvheadroom.settings import Settings
from kvheadroom.watched import watch_node


def demo_snapshot(profile: str, *, speed: float = 50.0, polls: int = 3) -> Snapshot:
    """Return what a demo node of *profile* looks like after so many polls of all its sources."""
    node = build_node(profile, seed=1, speed=speed)
    seen: list[Snapshot] = []
    done = threading.Event()

    def take(snapshot: Snapshot) -> None:
        seen.append(snapshot)
        whole = [one for one in seen if one.engines and one.is_complete]
        if len(whole) >= polls:
            done.set()

    watch = NodeWatch(take)
    settings = Settings(poll_interval_seconds=0.5, poll_timeout_seconds=0.4)
    node.start()
    try:
        watch_node(watch, settings, gpus=node.gpus, processes=node.processes, are_named=True)
        watch.start()
        assert done.wait(20), "the demo's sources did not answer"
    finally:
        watch.stop()
        # A poll in progress may open its connection once more after the first close.
        time.sleep(0.5)
        watch._close_sources()
        node.close()
    return seen[-1]
