"""The JSON form of one snapshot: the records, and how they are written and read back.

What is unknown is left out, as in the metrics. Fields may be added; none changes its meaning.
"""

from typing import Final, TypeVar

import msgspec

from kvheadroom.errors import ConfigError, KvHeadroomError


class Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A JSON object; a field at its default is left out."""


class SourceDocument(Part, frozen=True, kw_only=True):
    """One source: ``nvml`` or ``vllm``, and how its last poll went."""

    source: str
    target: str
    up: bool
    reason: str | None = None
    detail: str | None = None
    failures: dict[str, int] = {}
    duration_seconds: float | None = None
    last_success_unix_seconds: float | None = None


class DiscoveredDocument(Part, frozen=True, kw_only=True):
    """One vLLM server among the node's processes, watched or not."""

    server: str
    address: str
    pid: int
    model: str | None = None
    is_listening: bool | None = None
    unreachable: str | None = None
    problem: str | None = None
    devices: tuple[str, ...] | None = None
    container_id: str | None = None
    pod: str | None = None
    pod_namespace: str | None = None
    systemd_unit: str | None = None


class ServerDocument(Part, frozen=True, kw_only=True):
    """One vLLM server that answered."""

    target: str
    vllm_version: str | None = None
    silent: str | None = None
    endpoints: dict[str, str] = {}


class ShareDocument(Part, frozen=True, kw_only=True):
    """One line of a GPU's ledger; the lines of a GPU add up to its total."""

    component: str
    bytes: int
    source: str
    owner: str | None = None


class RestartDocument(Part, frozen=True, kw_only=True):
    """Whether one server would start again now."""

    server: str
    starts: bool
    needed_bytes: int | None = None
    free_bytes: int | None = None


class GpuDocument(Part, frozen=True, kw_only=True):
    """One GPU or MIG device."""

    gpu: str
    uuid: str
    name: str | None = None
    mig_profile: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    utilization_ratio: float | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    processes: int | None = None
    unavailable: dict[str, str] = {}
    engines: tuple[str, ...] = ()
    ledger: tuple[ShareDocument, ...] = ()
    ledger_notes: tuple[str, ...] = ()
    ledger_absent: str | None = None
    claimed_utilization_ratio: float | None = None
    overcommitted: bool | None = None
    intruders: tuple[str, ...] = ()
    intruder_bytes: int | None = None
    restarts: tuple[RestartDocument, ...] = ()
    start_order: tuple[str, ...] = ()


class FitDocument(Part, frozen=True, kw_only=True):
    """How many more requests of one length an engine can take now."""

    context: str
    context_tokens: int
    requests: int


class TrafficDocument(Part, frozen=True, kw_only=True):
    """How long an engine's finished requests were."""

    mean_tokens: int
    requests: int
    p95_tokens: int | None = None


class CacheDocument(Part, frozen=True, kw_only=True):
    """One engine's KV pool."""

    layout: str
    blocks: int
    usable_blocks: int
    block_tokens: int | None = None
    tokens: int | None = None
    tokens_source: str | None = None
    bytes: int | None = None
    bytes_per_block: int | None = None
    max_model_len: int | None = None
    used_ratio: float | None = None
    used_blocks: int | None = None
    used_bytes: int | None = None
    free_blocks: int | None = None
    free_tokens: int | None = None
    free_bytes: int | None = None


class EngineDocument(Part, frozen=True, kw_only=True):
    """One vLLM engine (one data-parallel rank)."""

    engine: str
    target: str
    model: str | None = None
    vllm_version: str | None = None
    requests_running: float | None = None
    requests_waiting: float | None = None
    waiting_by_reason: dict[str, float] = {}
    requests_preempted: int | None = None
    preemptions_total: float | None = None
    preemptions_inferred_total: int | None = None
    max_num_seqs: int | None = None
    restarts: int = 0
    asleep: bool | None = None
    stalled: bool | None = None
    stall_evidence: str | None = None
    cache: CacheDocument | None = None
    headroom: tuple[FitDocument, ...] = ()
    limit: str | None = None
    limit_evidence: str | None = None
    exhaustion_seconds: float | None = None
    drift_ratio: float | None = None
    drift_reason: str | None = None
    boot_change: str | None = None
    budget_problem: str | None = None
    traffic: TrafficDocument | None = None
    advice: tuple[str, ...] = ()


class NodeDocument(Part, frozen=True, kw_only=True):
    """The whole node at one moment."""

    version: str
    complete: bool
    driver_version: str | None = None
    sources: tuple[SourceDocument, ...] = ()
    discovered: tuple[DiscoveredDocument, ...] = ()
    servers: tuple[ServerDocument, ...] = ()
    gpus: tuple[GpuDocument, ...] = ()
    engines: tuple[EngineDocument, ...] = ()


_PART = TypeVar("_PART", bound=Part)
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(NodeDocument)


def encode(document: Part) -> bytes:
    """Return *document* as JSON."""
    return _ENCODER.encode(document)


def decode_node(body: bytes) -> NodeDocument:
    """Return the node that *body* describes; fields of a newer kvheadroom are passed over.

    Raises:
        ConfigError: It is not this API's JSON.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"not the JSON of /api/v1/snapshot: {error}") from error


def decode(body: bytes, kind: type[_PART], *, path: str) -> _PART:
    """Return the record that *body* describes; fields of a newer kvheadroom are passed over.

    Raises:
        KvHeadroomError: It is not the JSON of *path*.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KvHeadroomError(f"not the JSON of {path}: {error}") from error
