import pytest
from tests.unit.oracle import config_at

from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import parse_serve_command
from kvheadroom.engine.options import Device
from kvheadroom.engine.overrides import with_overrides
from kvheadroom.errors import ConfigError
from kvheadroom.model.facts import read_facts

CONFIG = {
    "num_hidden_layers": 36,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "text_config": {
        "num_hidden_layers": 62,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    },
}
QWEN3 = config_at("configs/qwen3-32b.json")
YARN = '{"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":32768}'


@pytest.mark.parametrize(
    "words",
    [
        ["--hf-overrides", '{"num_hidden_layers": 18}'],
        ["--hf-overrides.num_hidden_layers", "18"],
        ["--hf_overrides", '{"num_hidden_layers": 18}'],
    ],
)
def test_a_field_of_the_config_is_replaced(words: list[str]) -> None:
    """A value given as JSON or by its dotted name takes the place of config.json's."""
    found = with_overrides(CONFIG, parse_serve_command(words))

    assert found == {**CONFIG, "num_hidden_layers": 18}
    assert CONFIG["num_hidden_layers"] == 36


def test_a_section_is_merged() -> None:
    """What is given for the text model leaves the rest of its section, as in vLLM 0.32."""
    command = parse_serve_command(
        ["--hf-overrides", '{"text_config": {"rope_parameters": {"rope_type": "yarn"}}}']
    )

    assert with_overrides(CONFIG, command)["text_config"] == {
        "num_hidden_layers": 62,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6},
    }


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_a_scaling_replaces_the_one_there_is(name: str) -> None:
    """Outside a section a mapping is replaced whole, by either name of the scaling."""
    command = parse_serve_command([f"--hf-overrides.{name}.rope_type", "yarn"])

    found = with_overrides(CONFIG, command)

    scaling = [found[key] for key in ("rope_scaling", "rope_parameters") if key in found]
    assert scaling == [{"rope_type": "yarn"}]


def test_a_command_without_overrides_leaves_the_config() -> None:
    """The same mapping comes back, so that what was read of it still counts."""
    assert with_overrides(CONFIG, parse_serve_command("vllm serve m")) is CONFIG


def test_what_is_no_object_is_refused() -> None:
    """A text in place of the JSON object is an error of one line."""
    with pytest.raises(ConfigError, match="hf-overrides"):
        with_overrides(CONFIG, parse_serve_command(["--hf-overrides", "text"]))


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ((0, 8, 5), ["--rope-scaling", YARN]),
        ((0, 10, 0), ["--hf-overrides", f'{{"rope_scaling": {YARN}}}']),
        (
            (0, 32, 0),
            ["--hf-overrides", f'{{"rope_parameters": {YARN}, "max_position_embeddings": 131072}}'],
        ),
    ],
)
def test_qwen3_serves_128k_with_yarn(version: tuple[int, int, int], words: list[str]) -> None:
    """Four times 32,768 tokens may be asked for once yarn is asked for, as its model card says."""
    command = parse_serve_command(["--max-model-len", "131072", *words])
    facts = read_facts(with_overrides(QWEN3, command))

    found = resolve_options(command, facts, version=version, device=Device())

    assert found.max_model_len == 131072
