"""Prometheus exporter and live capacity monitor for vLLM's KV cache.

The arithmetic is usable by itself, from a notebook, with the standard library only::

    from kvheadroom import Device, allocate, parse_serve_command, read_facts, read_model
    from kvheadroom import resolve_options

    command = parse_serve_command("vllm serve Qwen/Qwen3-8B --max-model-len 32K")
    options = resolve_options(
        command, read_facts(config), version=(0, 32, 0), device=Device(80 * 2**30, (9, 0))
    )
    allocate(read_model(config), options, available_bytes=20 * 2**30).num_blocks

where ``config`` is a parsed config.json. Each name is documented where it is defined.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kvheadroom.engine.capacity import Allocation as Allocation
    from kvheadroom.engine.capacity import allocate as allocate
    from kvheadroom.engine.capacity import steady_blocks as steady_blocks
    from kvheadroom.engine.capacity import steady_requests as steady_requests
    from kvheadroom.engine.defaults import resolve_options as resolve_options
    from kvheadroom.engine.flags import parse_serve_command as parse_serve_command
    from kvheadroom.engine.options import Device as Device
    from kvheadroom.engine.options import EngineOptions as EngineOptions
    from kvheadroom.engine.refusal import Refusal as Refusal
    from kvheadroom.engine.request_bytes import request_bytes as request_bytes
    from kvheadroom.model.config import read_model as read_model
    from kvheadroom.model.facts import read_facts as read_facts
    from kvheadroom.model.weights import weights_bytes as weights_bytes

__version__ = "0.1.0"

# Where each public name lives. Loaded when first asked for: the daemon needs none of them.
_HOMES: Final = {
    "Allocation": "engine.capacity",
    "Device": "engine.options",
    "EngineOptions": "engine.options",
    "Refusal": "engine.refusal",
    "allocate": "engine.capacity",
    "parse_serve_command": "engine.flags",
    "read_facts": "model.facts",
    "read_model": "model.config",
    "request_bytes": "engine.request_bytes",
    "resolve_options": "engine.defaults",
    "steady_blocks": "engine.capacity",
    "steady_requests": "engine.capacity",
    "weights_bytes": "model.weights",
}

__all__ = [*_HOMES, "__version__"]  # noqa: PLE0604  (names of the table above)


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module 'kvheadroom' has no attribute {name!r}")
    return getattr(import_module(f"kvheadroom.{_HOMES[name]}"), name)
