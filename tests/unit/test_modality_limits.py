"""Which modalities a server refuses, as its command line says."""

import pytest
from tests.unit.oracle import config_at

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device, EngineOptions
from kvheadroom.model.facts import read_facts


def serve(words: str) -> EngineOptions:
    """Return the settings of a server of Qwen3-VL 8B on an H100."""
    command = parse_serve_command(f"vllm serve m {words}")
    facts = read_facts(config_at("configs/qwen3-vl-8b.json"))
    return resolve_options(
        command, facts, version=(0, 32, 0), device=Device(85_029_158_912, (9, 0))
    )


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("", set()),
        ("""--limit-mm-per-prompt '{"image": 0, "video": 1}'""", {"image"}),
        ("""--limit-mm-per-prompt '{"image": {"count": 0}, "video": 0}'""", {"image", "video"}),
        ("--limit-mm-per-prompt.audio 0", {"audio"}),
        ("""--limit-mm-per-prompt '{"image": {"width": 512}}'""", set()),
    ],
)
def test_a_limit_of_zero_refuses_a_modality(words: str, refused: set[str]) -> None:
    """A count of 0, plain or inside options, refuses; anything else and nothing said does not.

    Source:
        vLLM 0.32.0, the documented formats of ``limit_per_prompt``.
    """
    assert serve(words).without == refused


def test_a_language_model_alone_refuses_all() -> None:
    """``--language-model-only`` is a limit of 0 for every modality."""
    assert {"image", "video", "audio"} <= serve("--language-model-only").without


@pytest.mark.parametrize(("words", "by_request"), [("", False), ("data", True), ("weights", False)])
def test_ranks_share_out_requests_when_asked(words: str, *, by_request: bool) -> None:
    """``--mm-encoder-tp-mode data`` gives each rank whole requests to encode."""
    flags = f"--mm-encoder-tp-mode {words}" if words else ""
    assert serve(flags).encode_by_request is by_request
