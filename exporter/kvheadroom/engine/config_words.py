"""Turn the YAML mapping of `vllm serve --config` into the words vLLM makes of it."""

import json
from collections.abc import Mapping
from typing import Any

from kvheadroom.engine.option_names import OPTIONS


def words_of_config(config: Mapping[str, Any]) -> list[str]:
    """Return the arguments that *config*, the content of the YAML file, stands for.

    Source:
        vLLM 0.32: a true switch is its name, a false one its ``--no-`` twin where there is one,
        a list is one option with several words, a mapping is JSON.
    """
    words: list[str] = []
    for key, value in config.items():
        option = f"--{key}"
        match value:
            case True:
                words.append(option)
            case False:
                if OPTIONS.get(str(key).replace("_", "-")) == "switch":
                    words.append(f"--no-{key}")
            case list():
                words += [option, *(str(item) for item in value)] if value else []
            case Mapping():
                words += [option, json.dumps(value)]
            case _:
                words += [option, str(value)]
    return words
