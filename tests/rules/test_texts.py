import re
from pathlib import Path
from string import Template
from typing import Final

import pytest
import yaml
from tests.parts.prometheus_builds import installed
from tests.rules.shipped import ALERTS, promtool, write_rule

pytestmark = pytest.mark.parts

LABELS: Final = {
    "CHAT": 'job="kv", instance="n1", engine="chat"',
    "RANK1": 'job="kv", instance="n1", engine="chat/1"',
    "PEER": 'job="kv", instance="n2", engine="chat"',
    "CARD": 'job="kv", instance="n1", gpu="0", uuid="GPU-1"',
    "SERVER": 'job="kv", instance="n1", source="vllm", target="n1:8000"',
    "DRIVER": 'job="kv", instance="n1", source="nvml", target="driver"',
    "GPU0": 'job="kv", instance="n1", source="nvml", target="0"',
    "NODE": 'job="kv", instance="n1"',
}

# A node in trouble of every kind: one 80 GiB card, its engine full, everything at constant values.
NODE: Final = """\
engine_info{$CHAT, target="n1:8000", model="qwen"} 1x400
engine_info{$PEER, target="n2:8000", model="qwen"} 1x400
engine_info{$RANK1, target="n1:8000", model="qwen"} 1x400
kv_used_ratio{$RANK1} 0.2x400
kv_used_ratio{$CHAT} 0.96x400
headroom_blocks{$CHAT} 26x400
kv_capacity_tokens{$CHAT, source="engine"} 10480x400
headroom_context_tokens{$CHAT, context="observed"} 1819x400
headroom_context_tokens{$CHAT, context="observed_p95"} 5088x400
headroom_requests{$CHAT, context="observed"} 1x400
headroom_requests{$CHAT, context="observed_p95"} 20x400
headroom_limit{$CHAT, limit="kv"} 1x400
headroom_exhaustion_seconds{$CHAT} 420x400
engine_requests_running{$CHAT} 7x400
engine_requests_waiting{$CHAT, reason="capacity"} 3x400
engine_max_num_seqs{$CHAT} 32x400
engine_preemptions_inferred_total{$CHAT} 0+2x400
engine_preemptions_total{$CHAT} 0+1x400
engine_stalled{$CHAT} 1x400
kv_capacity_drift_ratio{$CHAT} -0.25x400
kv_capacity_boot_change_ratio{$CHAT, previous_version="0.31.0", version="0.32.0"} -0.125x400
source_up{$SERVER} 0x400
poll_failures_total{$SERVER, reason="timeout"} 0+12x400
poll_failures_total{$SERVER, reason="tls"} 0x400
source_silent{$SERVER, reason="log_stats_disabled"} 1x400
source_silent{$SERVER, reason="before_first_traffic"} 1x400
source_up{$DRIVER} 0x400
poll_failures_total{$DRIVER, reason="lost"} 0+12x400
source_up{$GPU0} 1x400
poll_last_success_timestamp_seconds{$GPU0} 0x400
poll_skipped_total{$NODE} 0+12x400
build_info{$NODE} 1x400
model:kvheadroom_headroom_requests:sum{job="kv", model="qwen", context="observed"} 14x400
engine_info{$NODE, engine="gone", target="n1:9000"} 1x9 stale _x400
gpu_memory_total_bytes{$CARD} 85899345920x400
gpu_memory_claimed_bytes{$CARD} 90194313216x400
gpu_utilization_claimed_ratio{$CARD} 1.03x400
gpu_memory_free_bytes{$CARD} 4294967296x400
server_restart_blocked{$CARD, server="chat"} 1x400
gpu_intruder_memory_bytes{$CARD} 2147483648x400
gpu_memory_unexplained_bytes{$CARD} 0+17895697x400
up{job="kvheadroom", instance="n9"} 0x400
engine_info{job="kvheadroom", instance="n9", engine="a"} 1x90 stale _x400
config_last_reload_successful{$NODE} 0x400
config_last_reload_success_timestamp_seconds{$NODE} 0x400
"""

# What an alert's text must say, worked out by hand from the node above.
SAID: Final[dict[str, tuple[str, ...]]] = {
    "KvHeadroomPreemptionSpike": (
        "chat on n1 preempted 10 requests in 5 minutes", "own counter shows 5 of them",
        "96% full", "holds 10480 tokens", "5 requests of the traffic's mean length",
        "2 of its 95th percentile", "7 run and 32 may", "--max-num-seqs",
    ),
    "KvHeadroomPreemptionsSustained": ("preempted 60 requests", "--max-num-seqs to 2", "(now 32)"),
    "KvHeadroomPressure": (
        "100% of the last 5 minutes", "3 wait now", "96% of the pool is used",
        "and 26 blocks are free",
        "10480 tokens", "--kv-cache-dtype fp8",
    ),
    "KvHeadroomExhausted": ("3 wait, 7 run", "of its model together have room for 14", "replica"),
    "KvHeadroomExhaustionForecast": ("in 7m 0s", "still fit: 1."),
    "KvHeadroomLow": ("room for 1 more requests", "(1819 tokens)", "10480 tokens"),
    "KvHeadroomOtherLimit": (
        "(50% used)", "binds is max_num_seqs", "are taken (32)", "by up to 20", "--max-num-seqs",
    ),
    "KvHeadroomDataParallelSkew": ("behind n1:8000 on n1", "uses 96%", "another uses 20%"),
    "KvHeadroomCapacityFell": ("-12.5%", "0.31.0 before, 0.32.0 now", "10480 tokens now"),
    "KvHeadroomCapacityDrift": ("by 25%", "(10480 tokens)"),
    "KvHeadroomEngineDown": ("n1:8000 gives n1 no metrics: 120 polls", "failed with timeout"),
    "KvHeadroomEngineGone": ("gone (n1:9000) ran on n1", "10 minutes"),
    "KvHeadroomEngineStalled": ("chat on n1 answers", "7 requests run", "3 wait", "restart"),
    "KvHeadroomLogStatsOff": ("n1:8000 on n1", "--disable-log-stats"),
    "KvHeadroomEngineSilent": ("n1:8000 on n1", "0 requests"),
    "KvHeadroomGpuOvercommitted": (
        "GPU 0 of n1 claim 84GiB of 80GiB", "adds up to 1.03", "by 0.050 in sum",
    ),
    "KvHeadroomRestartBlocked": ("chat on n1 runs", "GPU 0", "4GiB free"),
    "KvHeadroomGpuIntruder": ("took 2GiB on GPU 0 of n1", "4GiB is free", "by 0.025"),
    "KvHeadroomMemoryLeak": ("GPU 0 of n1", "1024MiB an hour", "full in 4h 0m"),
    "KvHeadroomNvmlLost": ("n1 cannot read the NVIDIA driver: 120 polls", "failed with lost"),
    "KvHeadroomStalePolls": ("nvml 0 on n1 is 1h 40m", "120 polls were skipped"),
    "KvHeadroomExporterDown": ("cannot scrape n9", "within the hour: 1.", "port 10420"),
    "KvHeadroomExporterAbsent": ("0 scrape targets",),
    "KvHeadroomReloadFailed": ("n1 runs on", "1h 40m", "check-config"),
}  # fmt: skip

# Where the node's own trouble would hide the alert's.
INSTEAD: Final = {
    "KvHeadroomOtherLimit": (
        'kv_used_ratio{$CHAT} 0.5x400\nheadroom_limit{$CHAT, limit="max_num_seqs"} 1x400\n'
    ),
    "KvHeadroomExporterAbsent": 'up{job="kvheadroom", instance="n9"} _x400\n',
}
AT: Final = {
    "KvHeadroomEngineGone": "25m",
    "KvHeadroomMemoryLeak": "3h",
    "KvHeadroomPreemptionSpike": "20m",
}


@pytest.mark.parametrize("name", ALERTS)
def test_a_text_names_who_with_figures_and_the_remedy(tmp_path: Path, name: str) -> None:
    """As Prometheus fills it in on a node whose every figure is known."""
    text = " ".join(description(tmp_path, name).split())

    for said in SAID[name]:
        assert said in text
    assert not re.search(r"<no value>|%!|\{\{|NaN|Inf| [.,;:]|\.[A-Z]", text), text


def description(folder: Path, name: str) -> str:
    """Return the first description that promtool reports for an alert nobody expected."""
    series = {**series_of(NODE), **series_of(INSTEAD.get(name, ""))}
    expected = {"eval_time": AT.get(name, "100m"), "alertname": name, "exp_alerts": []}
    document = {
        "rule_files": [str(write_rule(folder, ALERTS[name]))],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": value} for key, value in series.items()],
                "alert_rule_test": [expected],
            }
        ],
    }
    file = folder / "test.yml"
    file.write_text(yaml.safe_dump(document))
    told = promtool(installed("promtool"), "test", "rules", file)
    found = re.search(r'Annotations:\{description="((?:[^"\\]|\\.)*)"', told.stdout + told.stderr)
    assert found, told.stdout + told.stderr
    return found[1].replace('\\"', '"')


def series_of(text: str) -> dict[str, str]:
    """Return series to values, from lines as in an exposition without our prefix."""
    lines = Template(text).substitute(LABELS).splitlines()
    found = (line.rpartition("} ") for line in lines)
    return {
        (series if series.startswith(("up{", "model:")) else f"kvheadroom_{series}") + "}": values
        for series, _brace, values in found
    }
