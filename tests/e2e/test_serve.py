import base64
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import bcrypt
import pytest
from tests.e2e.exporter import Exporter
from tests.e2e.page_server import PageServer, answer, hang
from tests.unit.evidence import page as recorded

Servers = Callable[[], PageServer]

QUICK = ("--no-nvml", "--poll.interval", "200ms")


def serve(*arguments: str, **environment: str) -> Exporter:
    return Exporter("serve", *QUICK, *arguments, environment=environment)


def test_a_real_page_comes_out_as_headroom(servers: Servers) -> None:
    """The page of a preempting vLLM 0.32.0: 190 of 199 usable blocks of 128 tokens are held."""
    server = servers().page(recorded("pages/real-0.32.0-preempting-counter-lags"))
    server.routes["/version"] = answer(b'{"version": "0.32.0"}')
    server.routes["/v1/models"] = answer(
        b'{"data": [{"id": "tiny", "root": "/m", "parent": null, "max_model_len": 2048}]}'
    )
    engine = f"{server.target}/0"

    with serve("--engine", server.url, "--context", "1K") as exporter:
        exporter.wait_for("headroom_blocks", 9, engine=engine)

        assert exporter.value("source_up", source="vllm", target=server.target) == 1
        assert exporter.value("kv_capacity_tokens", engine=engine, source="engine") == 25_600
        assert exporter.value("headroom_requests", engine=engine, context="1024") == 1
        assert exporter.value("headroom_requests", engine=engine, context="max") == 0
        assert exporter.value("headroom_context_tokens", engine=engine, context="observed") == 1800
        assert exporter.value("engine_info", engine=engine, vllm_version="0.32.0") == 1


def test_every_source_dead_or_hanging_leaves_metrics_alive(
    tmp_path: Path, servers: Servers, release: threading.Event
) -> None:
    """/metrics answers 200, and source_up says 0 with a reason for each."""
    # Hides the driver of a machine that has one.
    (tmp_path / "libnvidia-ml.so.1").touch()
    hanging, broken = servers(), servers().page(b"<html>login</html>")
    hanging.routes["/metrics"] = hang(release)

    with Exporter(
        "serve", "--poll.interval", "300ms", "--engine", hanging.url, "--engine", broken.url,
        "--engine", "http://127.0.0.1:9", environment={"LD_LIBRARY_PATH": str(tmp_path)},
    ) as exporter:  # fmt: skip
        expected = {
            hanging.target: "timeout",
            broken.target: "not_metrics",
            "127.0.0.1:9": "unreachable",
            "driver": "driver_missing",
        }
        for target, reason in expected.items():
            exporter.wait_for("source_up", 0, target=target)
            deadline = time.monotonic() + 5
            while not exporter.value("poll_failures_total", target=target, reason=reason):
                assert time.monotonic() < deadline, (target, reason)
                time.sleep(0.05)

        assert exporter.get("/metrics")[0] == 200


def test_a_hanging_engine_delays_no_other(servers: Servers, release: threading.Event) -> None:
    """The living engine's reading is never older than two intervals while the other hangs."""
    hanging = servers()
    hanging.routes["/metrics"] = hang(release)
    living = servers().page(recorded("pages/made-healthy-20pct"))

    with Exporter(
        "serve", "--no-nvml", "--poll.interval", "1s", "--engine", hanging.url,
        "--engine", living.url,
    ) as exporter:  # fmt: skip
        exporter.wait_for("source_up", 1, target=living.target)
        oldest = 0.0
        for _ in range(40):
            read_at = exporter.value("poll_last_success_timestamp_seconds", target=living.target)
            assert read_at is not None
            oldest = max(oldest, time.time() - read_at)
            time.sleep(0.05)

        assert oldest < 2.0


def test_a_source_that_dies_takes_its_series_with_it(servers: Servers) -> None:
    """Nothing stale is served as live; what the source counted stays counted."""
    server = servers().page(recorded("pages/made-healthy-20pct"))

    with serve("--engine", server.url) as exporter:
        exporter.wait_for("kv_used_ratio", 0.20, engine=f"{server.target}/0")
        server.routes["/metrics"] = answer(b"died", status=503)
        exporter.wait_for("source_up", 0, target=server.target)

        assert exporter.value("kv_used_ratio") is None

        server.page(recorded("pages/made-healthy-20pct"))
        exporter.wait_for("kv_used_ratio", 0.20, engine=f"{server.target}/0")


@pytest.mark.parametrize("hangs", [False, True], ids=["idle", "while a poll hangs"])
def test_sigterm_ends_it_within_two_seconds(
    servers: Servers, release: threading.Event, hangs: bool
) -> None:
    """Exit status 0, also while a poll waits for an answer that does not come."""
    server = servers().page(b"")
    if hangs:
        server.routes["/metrics"] = hang(release)

    with Exporter(
        "serve", "--no-nvml", "--poll.interval", "10s", "--engine", server.url
    ) as exporter:
        time.sleep(0.3)

        assert exporter.stop() < 2.0
        assert exporter.process.returncode == 0


def test_it_survives_being_stopped_and_continued() -> None:
    """As a debugger or a checkpoint does; CPython's sigtimedwait then returns a signal of none."""
    with Exporter("serve", "--no-nvml", "--no-discovery") as exporter:
        for _ in range(3):
            exporter.process.send_signal(signal.SIGSTOP)
            # Longer than one wait for a signal.
            time.sleep(2.2)
            exporter.process.send_signal(signal.SIGCONT)
            time.sleep(0.2)

        assert exporter.process.poll() is None
        assert exporter.get("/-/healthy")[0] == 200


def test_a_reload_adds_an_engine_and_keeps_history(tmp_path: Path, servers: Servers) -> None:
    """A changed file is read by itself, and what was counted stays counted."""
    page = recorded("pages/made-modern-97pct")
    first, second = servers().page(page), servers().page(page)
    config = tmp_path / "kvheadroom.yml"
    config.write_text(
        f"nvml: false\npoll: {{interval: 200ms}}\nengines: [{{url: '{first.url}'}}]\n"
    )

    with Exporter("serve", "--config.file", str(config)) as exporter:
        exporter.wait_for("source_up", 1, target=first.target)
        first.page(b"<html>")
        exporter.wait_for("source_up", 0, target=first.target)
        failures = exporter.value("poll_failures_total", target=first.target, reason="not_metrics")
        engines = f"[{{url: '{first.url}'}}, {{url: '{second.url}', name: chat}}]"
        config.write_text(f"nvml: false\npoll: {{interval: 200ms}}\nengines: {engines}\n")
        exporter.wait_for("source_up", 1, target=second.target)

        assert exporter.value("kv_used_ratio", engine="chat") == 0.97
        after = exporter.value("poll_failures_total", target=first.target, reason="not_metrics")
        assert failures is not None
        assert after is not None
        assert after >= failures > 0


@pytest.mark.parametrize(
    "broken",
    [
        "engins: []\n",
        "contexts: [2024-13-45]\n",
        "contexts: [1K]\nengines: [{url: 'http://h:1', api_key_env: NOT_THERE}]\n",
        "contexts: [1K]\nengines: [{url: 'http://h:1', api_key_file: key}]\n",
        "engines: [{url: 'http://h:1', model_config: shape.json}]\n",
    ],
    ids=["unknown key", "no date", "no key", "key not ASCII", "model config"],
)
def test_a_bad_reload_keeps_the_old_configuration_and_says_so(
    tmp_path: Path, servers: Servers, broken: str
) -> None:
    """The exporter goes on as before, whole, and a metric can be alerted on."""
    server = servers().page(recorded("pages/made-healthy-20pct"))
    (tmp_path / "key").write_text("schl\u00fcssel")
    (tmp_path / "shape.json").write_text("[]")
    config = tmp_path / "kvheadroom.yml"
    good = f"nvml: false\npoll: {{interval: 200ms}}\nengines: [{{url: '{server.url}'}}]\n"
    config.write_text(good)

    with Exporter("serve", "--config.file", str(config)) as exporter:
        exporter.wait_for("config_last_reload_successful", 1)
        exporter.wait_for("source_up", 1, target=server.target)
        config.write_text(broken)
        exporter.process.send_signal(signal.SIGHUP)
        exporter.wait_for("config_last_reload_successful", 0)

        assert exporter.value("source_up", target=server.target) == 1
        assert exporter.value("headroom_requests", context="8192") is not None
        assert exporter.value("headroom_requests", context="1024") is None
        assert any("reload refused" in line for line in exporter.log)

        config.write_text(good)
        exporter.process.send_signal(signal.SIGHUP)
        exporter.wait_for("config_last_reload_successful", 1)


def test_a_password_is_revoked_by_a_reload(tmp_path: Path) -> None:
    """What exporter-toolkit's operators expect: the file is read again."""
    web = tmp_path / "web.yml"

    def allow(password: str) -> None:
        hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
        web.write_text(f"basic_auth_users: {{sre: '{hashed}'}}\n")

    def status(password: str) -> int:
        credentials = base64.b64encode(f"sre:{password}".encode()).decode()
        return exporter.get("/metrics", Authorization=f"Basic {credentials}")[0]

    allow("old")
    with Exporter("serve", *QUICK, "--web.config.file", str(web)) as exporter:
        assert (status("old"), status("new")) == (200, 401)
        allow("new")
        exporter.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 5
        while status("new") != 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)

        assert status("old") == 401


def test_one_absurd_number_costs_its_own_series_only(servers: Servers) -> None:
    """A page may claim any number of blocks; the other engine is served all the same."""
    good = recorded("pages/made-modern-97pct")
    absurd = servers().page(good.replace(b'num_gpu_blocks="25824"', b'num_gpu_blocks="1e308"'))
    sane = servers().page(good)

    with serve("--engine", absurd.url, "--engine", sane.url) as exporter:
        exporter.wait_for("source_up", 1, target=absurd.target)
        exporter.wait_for("kv_capacity_blocks", 25_824, engine=f"{sane.target}/0")

        assert exporter.value("kv_capacity_blocks", engine=f"{absurd.target}/0") is None
        assert exporter.value("kv_used_ratio", engine=f"{absurd.target}/0") == 0.97


SECRET = "sk-never-shown"


def test_no_secret_leaves_the_process(tmp_path: Path, servers: Servers) -> None:
    """Not in a metric, the page, the log or the process title, working or failing."""
    server, dead = servers().page(recorded("pages/made-healthy-20pct")), "127.0.0.1:9"
    key = tmp_path / "key"
    key.write_text(SECRET)
    config = tmp_path / "kvheadroom.yml"
    config.write_text(
        "engines:\n"
        f"  - {{url: 'http://me:{SECRET}@{server.target}', api_key_file: key}}\n"
        f"  - {{url: 'http://me:{SECRET}@{dead}', api_key_env: THE_KEY}}\n"
    )

    with Exporter(
        "serve", *QUICK, "--config.file", str(config), "--log.level", "debug",
        environment={"THE_KEY": SECRET},
    ) as exporter:  # fmt: skip
        exporter.wait_for("source_up", 1, target=server.target)
        exporter.wait_for("source_up", 0, target=dead)
        deadline = time.monotonic() + 5
        while server.seen_headers.get("/v1/models") is None and time.monotonic() < deadline:
            time.sleep(0.05)
        shown = exporter.get("/metrics")[1] + exporter.get("/")[1]
        title = Path(f"/proc/{exporter.process.pid}/cmdline").read_bytes()
        exporter.stop()

    assert server.seen_headers["/v1/models"]["Authorization"] == f"Bearer {SECRET}"
    assert SECRET.encode() not in shown
    assert SECRET.encode() not in title
    assert SECRET not in "".join(exporter.log)


def test_nothing_is_written_into_vllms_multiprocess_folder(
    tmp_path: Path, servers: Servers
) -> None:
    """Sharing an environment with vLLM must not pollute vLLM's metrics."""
    server = servers().page(recorded("pages/made-healthy-20pct"))

    with serve("--engine", server.url, PROMETHEUS_MULTIPROC_DIR=str(tmp_path)) as exporter:
        exporter.wait_for("source_up", 1, target=server.target)

        assert exporter.value("build_info") == 1

    assert not list(tmp_path.iterdir())


def test_the_landing_page_says_what_is_down_and_why(servers: Servers) -> None:
    """A person with a browser sees the same as Prometheus."""
    server = servers().page(b"<html>login</html>")

    with serve("--engine", server.url) as exporter:
        exporter.wait_for("source_up", 0, target=server.target)
        deadline = time.monotonic() + 5
        while b"not_metrics" not in (page := exporter.get("/")[1]):
            assert time.monotonic() < deadline, page
            time.sleep(0.05)

        assert b"/metrics" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--poll.interval", "5"], "not a duration"),
        (["serve", "--config.file", "/nowhere.yml"], "/nowhere.yml"),
        (["serve", "--engine", "h:1", "--model-config", "/nowhere.json"], "/nowhere.json"),
        (["serve", "--web.listen-address", "nonsense"], "listen address"),
        (["serve", "--web.telemetry-path", "/"], "telemetry path"),
        (["serve", "--web.config.file", "/nowhere.yml"], "/nowhere.yml"),
        (["serve", "--no-such-flag"], "No such option"),
        (["check-config", "--engine", "ftp://h"], "engine's URL"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], said: str) -> None:
    """Never a traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "kvheadroom", *arguments],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_line_and_exit_2(servers: Servers) -> None:
    """The address is named, and nothing was started."""
    taken = servers().target
    done = subprocess.run(
        [sys.executable, "-m", "kvheadroom", "serve", "--no-nvml", "--web.listen-address", taken],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert taken in done.stderr
    assert "Traceback" not in done.stderr


def test_check_config_says_what_it_means_without_secrets(tmp_path: Path) -> None:
    """An operator reads back what the daemon would do."""
    done = subprocess.run(
        [
            sys.executable, "-m", "kvheadroom", "check-config",
            "--engine", f"http://me:{SECRET}@h:8000", "--poll.interval", "2s",
        ],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip

    assert "h:8000" in done.stdout
    assert "every 2 s" in done.stdout
    assert SECRET not in done.stdout


def test_ready_is_when_all_was_asked_once_and_stays(
    tmp_path: Path, servers: Servers, release: threading.Event
) -> None:
    """Not before the first poll has ended; a server that is listed later takes nothing back."""
    hanging, targets = servers(), tmp_path / "targets.json"
    hanging.routes["/metrics"] = hang(release)
    targets.write_text("[]")
    slow = ("--poll.interval", "1s", "--no-discovery", "--targets.file", str(targets))

    with Exporter("serve", "--no-nvml", *slow, "--engine", hanging.url) as exporter:
        assert exporter.get("/-/ready")[0] == 503
        exporter.wait_for("poll_failures_total", 1, target=hanging.target, reason="timeout")
        assert exporter.get("/-/ready")[0] == 200
        later = servers()
        later.routes["/metrics"] = hang(release)
        targets.write_text(json.dumps([{"targets": [later.target]}]))
        exporter.wait_for("source_up", 0, target=later.target)

        assert exporter.get("/-/ready")[0] == 200


def test_check_health_follows_the_daemon(servers: Servers) -> None:
    """0 while it lives, 1 once it is gone, for a container's HEALTHCHECK."""

    def check(url: str) -> int:
        command = [sys.executable, "-m", "kvheadroom", "check-health", url]
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode

    with serve() as exporter:
        url = f"http://127.0.0.1:{exporter.port}/-/healthy"
        alive = check(url)

    assert (alive, check(url)) == (0, 1)


def test_json_logs_are_one_object_a_line(servers: Servers) -> None:
    """Each line parses by itself and says when, how severe, where and what."""
    with serve("--log.format", "json") as exporter:
        exporter.stop()

    for line in exporter.log:
        assert {"ts", "level", "logger", "msg"} <= json.loads(line).keys()
