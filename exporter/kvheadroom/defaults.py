"""What holds when the operator says nothing, as they would write it."""

from typing import Final

PORT: Final = 10420
LISTEN_ADDRESS: Final = f":{PORT}"
TELEMETRY_PATH: Final = "/metrics"
PROC_ROOT: Final = "/proc"
POLL_INTERVAL: Final = "5s"
CONTEXT: Final = "8K"
TRAFFIC_WINDOW: Final = "15m"
