"""A key found on the way opens a server's door and is shown to nobody."""

import dataclasses
import json
import logging
import pickle
from pathlib import Path

import pytest
from tests.unit.proc_tree import ProcTree, gpu, serve

from kvheadroom.engine.api_keys import find_api_key, without_api_keys
from kvheadroom.redaction import Secret

SECRET = "sk-planted-1f2e3d"


@pytest.mark.parametrize(
    "words",
    [
        ("--api-key", SECRET),
        (f"--api-key={SECRET}",),
        (f"--api_key={SECRET}",),
        ("--api-key", SECRET, "sk-second"),
        ("--api-k", SECRET),
        ("--api-key", "sk-old", "--port", "1", "--api-key", SECRET),
    ],
)
def test_a_key_is_found_however_it_is_given(words: tuple[str, ...]) -> None:
    """The first word of the last --api-key is one that the server takes.

    Source: vLLM 0.32's parser: the option takes one or more words, the last one given counts.
    """
    found = find_api_key(serve(*words))

    assert found == Secret(SECRET)


def test_the_environments_key_counts_without_an_option() -> None:
    """VLLM_API_KEY is asked for where neither command nor file has a key."""
    assert find_api_key(serve(), from_environment=Secret(SECRET)) == Secret(SECRET)
    of_both = find_api_key(serve("--api-key", "sk-a"), from_environment=Secret(SECRET))
    assert of_both == Secret("sk-a")


@pytest.mark.parametrize("content", [SECRET, [SECRET, "sk-other"]])
def test_the_config_files_key_counts(content: object) -> None:
    """A key in the file of --config is one like any other."""
    found = find_api_key(serve("--config", "x.yaml"), config={"api-key": content})

    assert found == Secret(SECRET)


def test_other_options_hold_no_key() -> None:
    """Neither the count of servers nor the model is taken for a key."""
    assert find_api_key(serve("--api-server-count", "2")) is None


def test_keys_leave_the_words() -> None:
    """What identifies a server does not depend on its keys."""
    words = ("a", "--api-key", "x", "y", "--port", "1", "--api-key=z", "b")

    assert without_api_keys(words) == ["a", "--port", "1", "b"]


def plant(tree: ProcTree, folder: Path) -> None:
    """Servers with the secret in every place where people put one."""
    file = folder / "vllm.yaml"
    file.write_text(f"api-key: {SECRET}\nhf-token: {SECRET}\nmax-num-seqs: 4\n")
    words = (
        ("--api-key", SECRET),
        (f"--api-key={SECRET}",),
        ("--config", str(file)),
        ("--hf-token", SECRET),
        (f"--new-option={SECRET}", SECRET),
        ("--otlp-traces-endpoint", f"https://user:{SECRET}@host/x?key={SECRET}"),
        ("--max-model-len", SECRET),
        ("--config", f"/nowhere/{'x'}.yaml", "--api-key", SECRET),
    )
    for index, flags in enumerate(words):
        pid = 1000 + 10 * index
        environment = {
            "VLLM_API_KEY": SECRET,
            "HF_TOKEN": SECRET,
            "OPENAI_API_KEY": SECRET,
            "HOME": "/srv",
        }
        tree.add(pid, *serve("--port", str(8000 + index), *flags), environment=environment)
        tree.title(pid + 1, "VLLM::EngineCore", parent=pid)


def test_no_secret_is_in_any_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither text nor representation of what was found has it, at any level of the log."""
    caplog.set_level(logging.DEBUG)
    tree = ProcTree(tmp_path)
    plant(tree, tmp_path)
    discovery = tree.discovery()

    found = discovery.look((gpu(0, *range(1001, 1072, 10)),))
    logging.getLogger("test").debug("%s %r", found, found)
    plain = json.dumps(
        [dataclasses.asdict(server.address) for server in found.servers.values()]
        + [server.problem for server in found.servers.values()]
    )

    assert len(found.servers) == 8
    assert all(server.api_key is not None for server in found.servers.values())
    for text in (repr(found), str(found), f"{found}", caplog.text, plain):
        assert SECRET not in text


def test_no_secret_is_kept_of_an_environment(tmp_path: Path) -> None:
    """Only variables that size the cache or say where files are stay in memory."""
    tree = ProcTree(tmp_path)
    plant(tree, tmp_path)

    for server in tree.look().servers.values():
        assert server.environment == {"HOME": "/srv"}


def test_a_secret_shows_itself_to_nobody() -> None:
    """Printing, formatting, listing and writing to a file do not reveal it; asking does."""
    secret = Secret(SECRET)

    for text in (repr(secret), str(secret), f"{secret}", f"{[secret]}", f"{secret!s:>5}"):
        assert SECRET not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        json.dumps({"key": secret})
    assert secret.reveal() == SECRET
