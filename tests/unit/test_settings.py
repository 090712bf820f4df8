from pathlib import Path

import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.settings import Flags, Settings, parse_listen_address, resolve


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kvheadroom.yml"
    path.write_text(text)
    return path


def from_file(tmp_path: Path, text: str, **environment: str) -> Settings:
    return resolve(Flags(config_file=written(tmp_path, text)), environment)


def refused(flags: Flags, **environment: str) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(flags, environment)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_defaults_watch_the_gpus_every_five_seconds() -> None:
    """Without a flag: NVML on, 5 s, 8K, port 10420 on every interface."""
    settings = resolve(Flags(), {})

    assert settings.nvml
    assert settings.poll_interval_seconds == 5
    assert settings.context_tokens == (8192,)
    assert settings.listen_addresses == (("", 10420),)


def test_a_flag_beats_the_file(tmp_path: Path) -> None:
    """What is typed last, by the person at the keyboard, wins."""
    file = written(tmp_path, "poll: {interval: 30s}\ncontexts: [4K]\n")

    settings = resolve(Flags(config_file=file, poll_interval="2s"), {})

    assert settings.poll_interval_seconds == 2
    assert settings.context_tokens == (4096,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pol: {}\n", "unknown key 'pol'; did you mean 'poll'?"),
        ("poll: {intervall: 5s}\n", "unknown key 'intervall' in poll; did you mean 'interval'?"),
        (
            "engines:\n  - {url: 'http://a:1', api_key_fil: k}\n",
            "unknown key 'api_key_fil' in engines[0]; did you mean 'api_key_file'?",
        ),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(tmp_path: Path, text: str, said: str) -> None:
    """One line, naming the key, where it is and what was probably meant."""
    assert refused(Flags(config_file=written(tmp_path, text))).endswith(said)


@pytest.mark.parametrize(
    "text",
    [
        "engines: 5\n",
        "poll: [1]\n",
        "- a\n",
        "engines: [{name: x}]\n",
        "a: [\n",
        "web: {a: &a *a}\n",
        "\x00",
    ],
)
def test_a_broken_file_is_one_line(tmp_path: Path, text: str) -> None:
    """No traceback, no dump of the file."""
    assert refused(Flags(config_file=written(tmp_path, text))).startswith(str(tmp_path))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    """The path and the operating system's reason."""
    assert "No such file" in refused(Flags(config_file=tmp_path / "none.yml"))


def test_a_broken_file_never_shows_its_text(tmp_path: Path) -> None:
    """The text around a YAML fault may be a secret."""
    file = written(tmp_path, "engines:\n  - url: 'http://x:1\n    api_key: sk-secret\n")

    assert "sk-secret" not in refused(Flags(config_file=file))


@pytest.mark.parametrize("url", ["", "ftp://a", "http://", "http://a:99999", "http://[::1"])
def test_what_is_no_engine_url_is_refused(url: str) -> None:
    """An engine is reached by http or https at a host."""
    assert "engine's URL" in refused(Flags(engines=(url,)))


def test_a_refused_url_does_not_show_its_credentials() -> None:
    """The message is printed, logged and pasted into tickets."""
    assert "hunter2" not in refused(Flags(engines=("http://me:hunter2@h:99999/?key=hunter2",)))


@pytest.mark.parametrize("name", ["", "a/1", "h:8000", "a b", "-a", "a" * 200])
def test_a_name_that_could_be_another_engines_id_is_refused(tmp_path: Path, name: str) -> None:
    """Ids are host:port/rank or name/rank; a name that looks like one makes series collide."""
    file = written(tmp_path, f"engines: [{{url: 'http://h:1', name: '{name}'}}]\n")

    assert "engine name" in refused(Flags(config_file=file))


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    """YAML would silently take the last."""
    file = written(tmp_path, "poll: {interval: 5s}\npoll: {interval: 1s}\n")

    assert "given twice: poll" in refused(Flags(config_file=file))


def test_an_engine_given_twice_is_refused() -> None:
    """Two sources of one target would collide in every series."""
    twice = ("http://h:8000", "http://h:8000/metrics")

    assert "given twice: h:8000" in refused(Flags(engines=twice))


def test_the_api_key_comes_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    """A relative path is relative to the file it stands in."""
    (tmp_path / "key").write_text("sk-123\n")

    settings = from_file(tmp_path, "engines: [{url: 'http://h:1', api_key_file: key}]\n")

    assert settings.engines[0].api_key == "sk-123"


def test_the_api_key_never_shows_in_a_representation(tmp_path: Path) -> None:
    """A record that ends up in a log or an assertion keeps its secrets."""
    settings = from_file(
        tmp_path, "engines: [{url: 'http://u:pw@h:1', api_key_env: K}]\n", K="sk-123"
    )

    assert "sk-123" not in repr(settings)
    assert "pw" not in repr(settings)


def test_a_missing_key_in_the_environment_is_said(tmp_path: Path) -> None:
    """Better refused at start than 401 for ever."""
    file = written(tmp_path, "engines: [{url: 'http://h:1', api_key_env: NOPE}]\n")

    assert "NOPE" in refused(Flags(config_file=file))


def test_a_model_config_may_be_given_per_engine() -> None:
    """URL=PATH goes to that engine, PATH to the others."""
    flags = Flags(
        engines=("http://a:1", "http://b:2"),
        model_configs=("a:1=/m/a=b.json", "/m/all.json"),
    )

    settings = resolve(flags, {})

    assert [str(engine.model_config) for engine in settings.engines] == [
        "/m/a=b.json",
        "/m/all.json",
    ]


def test_a_model_config_for_no_engine_is_refused() -> None:
    """A typo in the URL would otherwise go unnoticed for ever."""
    flags = Flags(engines=("http://a:1",), model_configs=("http://b:1=/m/b.json",))

    assert "--model-config" in refused(flags)


def test_a_timeout_as_long_as_the_interval_is_refused() -> None:
    """A poll must have ended before the next one is due."""
    assert "shorter" in refused(Flags(poll_interval="2s", poll_timeout="2s"))


@pytest.mark.parametrize(
    ("text", "address"),
    [(":9", ("", 9)), ("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9", ("::1", 9))],
)
def test_listen_addresses(text: str, address: tuple[str, int]) -> None:
    """Prometheus' own spellings."""
    assert parse_listen_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:99999", "::1:9"])
def test_what_is_no_listen_address_is_refused(text: str) -> None:
    """A port is always said."""
    with pytest.raises(ConfigError, match="listen address"):
        parse_listen_address(text)
