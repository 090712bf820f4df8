"""Find vLLM's own arguments in what people run: a shell line, a container, a manifest's list."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from kvheadroom.engine.manifest import read_container
from kvheadroom.errors import ConfigError

# What sizes the cache or the admission of requests; nothing else of an environment is kept.
SIZING_VARIABLES: Final = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE",
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
        "VLLM_ATTENTION_BACKEND",
        "VLLM_CPU_KVCACHE_SPACE",
        "VLLM_ENABLE_STARTUP_PLAN",
        "VLLM_KV_CACHE_LAYOUT",
        "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",
        "VLLM_MLA_DISABLE",
        "VLLM_USE_V1",
        "VLLM_USE_V2_MODEL_RUNNER",
    }
)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_CONTINUATION: Final = re.compile(r"\\[ \t]*\r?\n")
_COMMENT_LINE: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_SHELL_END: Final = re.compile(r"&&|\|\|?|;+|&|<|&?\d*>{1,2}(?:&\d|\S*)")
_SERVER_MODULE: Final = re.compile(
    r"vllm\.entrypoints\.(?:\w+\.)*api_server(?:\.entry)?|(?:.*/)?api_server\.py"
)
_CONTAINER_TOOLS: Final = frozenset({"docker", "podman", "nerdctl"})
# Every other option of `docker run` takes a value.
_CONTAINER_SWITCHES: Final = frozenset(
    {
        *("--rm", "--detach", "--interactive", "--tty", "--privileged", "--init", "--read-only"),
        *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--quiet"),
        *("--replace", "--disable-content-trust", "--use-api-socket"),
    }
)
_SHORT_SWITCHES: Final = "ditPq"
_LAUNCHERS: Final = frozenset({"env", "export", "exec", "nohup", "sudo", "time", "command"})
# A shell in a container in a shell.
_DEEPEST_NESTING: Final = 4
_IMAGE_VERSION: Final = re.compile(r"[^\s@]*vllm[^\s:@]*:(v?\d+\.\d+[^\s@]*)(?:@.*)?")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "zsh"})


@dataclass(frozen=True, slots=True)
class VllmArguments:
    """What vLLM's own parser is given.

    Attributes:
        words: Arguments after ``vllm serve`` or the server's module.
        environment: Variables before the command that change sizing (`SIZING_VARIABLES`).
        image_version: Tag of the container's vLLM image, ``v0.8.5``; ``None`` without one.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    image_version: str | None = None


def find_vllm_arguments(command: str | Sequence[str]) -> VllmArguments:
    """Return vLLM's arguments in *command*.

    Args:
        command: A shell line (quotes, continuations, leading assignments and redirections are
            understood) or a list of words as a manifest's ``command`` and ``args`` hold it, also
            where that list is pasted as text.

    Raises:
        ConfigError: A line has no word (an empty list is vLLM without arguments), a quote is not
            closed, or a container is run without an image.
    """
    around = _Around()
    words = _given_words(command, around)
    if isinstance(command, str) and not words and around.image_version is None:
        raise ConfigError("the command is empty")
    found = _inside(words, around)
    kept = {name: value for name, value in around.environment.items() if name in SIZING_VARIABLES}
    return VllmArguments(tuple(found), MappingProxyType(kept), around.image_version)


@dataclass(slots=True)
class _Around:
    """What the words around vLLM's own say."""

    environment: dict[str, str] = field(default_factory=dict)
    image_version: str | None = None


def _given_words(command: str | Sequence[str], around: _Around) -> list[str]:
    if isinstance(command, str):
        container = read_container(command)
        if container is None:
            return _shell_words(command)
        around.image_version = _image_version(container.image)
        listed: Sequence[str] = container.words
    else:
        listed = [str(word) for word in command]
    return [part for word in listed for part in _parts(word)]


def _parts(word: str) -> list[str]:
    """Return a list's item in two where it is an option and its value, as people write them."""
    name, _, value = word.partition(" ")
    if not name.startswith("--") or "=" in name or not value.strip():
        return [word]
    is_json = value.lstrip().startswith(("{", "["))
    return [name, value.strip()] if is_json else _shell_words(word)


def _shell_words(line: str) -> list[str]:
    joined = _COMMENT_LINE.sub("", _CONTINUATION.sub(" ", line))
    lexer = shlex.shlex(joined, posix=True, punctuation_chars=";")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError:
        raise ConfigError("a quote is not closed in the command line") from None


def _inside(words: list[str], around: _Around, *, depth: int = 0) -> list[str]:
    """Return vLLM's arguments among *words*; note the rest in *around*."""
    words = _drop_assignments(words, around.environment)
    nested = _shell_script(words) if depth < _DEEPEST_NESTING else None
    if nested is not None:
        return _inside(_shell_words(nested), around, depth=depth + 1)
    if depth < _DEEPEST_NESTING and _is_container_run(words):
        return _inside(_container_arguments(words, around), around, depth=depth + 1)
    start = _server_start(words)
    assignments = [word for word in words[:start] if _ASSIGNMENT.fullmatch(word)]
    _drop_assignments(assignments, around.environment)
    return _until_shell_end(words[start:])


def _drop_assignments(words: list[str], environment: dict[str, str]) -> list[str]:
    for index, word in enumerate(words):
        match = _ASSIGNMENT.fullmatch(word)
        if match is not None:
            environment[match[1]] = match[2]
        elif word not in _LAUNCHERS:
            return words[index:]
    return []


def _shell_script(words: list[str]) -> str | None:
    """Return the script of ``sh -c SCRIPT``, or a whole line held in one word."""
    if len(words) == 1 and len(words[0].split()) > 1:
        return words[0]
    if not words or words[0].rsplit("/", 1)[-1] not in _SHELLS:
        return None
    for flag, script in itertools.pairwise(words):
        if re.fullmatch(r"-[a-z]*c", flag):
            return script
    return None


def _is_container_run(words: list[str]) -> bool:
    return (
        len(words) > 1
        and words[0].rsplit("/", 1)[-1] in _CONTAINER_TOOLS
        and any(word in ("run", "create") for word in words[1:4])
    )


def _container_arguments(words: list[str], around: _Around) -> list[str]:
    """Return what the container runs, as far as given, noting its image and what ``-e`` sets."""
    entrypoint: list[str] = []
    index = next(i for i, word in enumerate(words) if word in ("run", "create")) + 1
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        name, has_value, value = word.partition("=")
        index += 1
        if not has_value and not _is_container_switch(word):
            value = words[index] if index < len(words) else ""
            index += 1
        if name == "--entrypoint" and value:
            entrypoint = [value]
        match = _ASSIGNMENT.fullmatch(value) if name in ("-e", "--env") else None
        if match is not None:
            around.environment[match[1]] = match[2]
    if index >= len(words):
        raise ConfigError("a container is run, but no image is named")
    around.image_version = _image_version(words[index])
    return [*entrypoint, *words[index + 1 :]]


def _image_version(image: str | None) -> str | None:
    match = _IMAGE_VERSION.fullmatch(image or "")
    return match[1] if match else None


def _is_container_switch(word: str) -> bool:
    if word.startswith("--"):
        return word in _CONTAINER_SWITCHES
    # `-itd` is three switches, `-dp 80:80` a switch and one that takes a value, `-p80:80` has it.
    valued = word[1:].lstrip(_SHORT_SWITCHES)
    return len(valued) != 1


def _server_start(words: list[str]) -> int:
    """Return where vLLM's arguments begin: after its command, or at the first word."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        is_program = word.rsplit("/", 1)[-1] == "vllm" or word.startswith("vllm.entrypoints.cli")
        if is_program and following == "serve":
            return index + 2
        if _SERVER_MODULE.fullmatch(word):
            return index + 1
    return 1 if words[:1] == ["serve"] else 0


def _until_shell_end(words: list[str]) -> list[str]:
    end = next((i for i, word in enumerate(words) if _SHELL_END.fullmatch(word)), len(words))
    return words[:end]
