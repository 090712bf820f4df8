"""Does it fit: the budget of one GPU that one or several vLLM servers are to share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from kvheadroom.engine import budget
from kvheadroom.engine.budget import CardBudget, Demand, Estimate, InstanceBudget, exactly
from kvheadroom.engine.capacity import Allocation, allocate, steady_requests
from kvheadroom.engine.defaults import resolve_options
from kvheadroom.engine.flags import ServeCommand
from kvheadroom.engine.options import Device, EngineOptions, Loading
from kvheadroom.engine.rank_weights import even_bytes, rank_weights
from kvheadroom.engine.refusal import Refusal
from kvheadroom.engine.request_bytes import request_bytes
from kvheadroom.engine.unknown_options import unknown_option_warnings
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ModelConfigError
from kvheadroom.model.config import read_model
from kvheadroom.model.facts import read_facts
from kvheadroom.model.layers import ModelLayers
from kvheadroom.plan.checkpoint import Checkpoint

# From here on vLLM sets the graphs' estimate aside before it sizes the cache.
_GRAPHS_SET_ASIDE: Final[Version] = (0, 20, 0)


Verdict = Literal["fits", "depends", "does not fit"]


@dataclass(frozen=True, slots=True)
class Pins:
    """What is known better than by the table; ``None`` estimates."""

    weights: Estimate | None = None
    activation: Estimate | None = None
    non_torch: Estimate | None = None
    cuda_graphs: Estimate | None = None
    context: Estimate | None = None

    def over(self, other: "Pins") -> "Pins":
        """Return these pins, with those of *other* where there is none."""
        return Pins(
            weights=self.weights or other.weights,
            activation=self.activation or other.activation,
            non_torch=self.non_torch or other.non_torch,
            cuda_graphs=self.cuda_graphs or other.cuda_graphs,
            context=self.context or other.context,
        )


@dataclass(frozen=True, slots=True)
class Service:
    """One server to plan for.

    Attributes:
        name: What to call it.
        command: What starts it.
        config: Its model's config.json.
        pins: What is known of its memory.
        checkpoint: Tensors in the model's files; ``None`` where they are not at hand.
        version: Its own vLLM's version; ``None`` is the plan's.
    """

    name: str
    command: ServeCommand
    config: Mapping[str, Any]
    pins: Pins
    checkpoint: Checkpoint | None = None
    version: Version | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What in its command was not understood."""
        return unknown_option_warnings(self.command)


@dataclass(frozen=True, slots=True)
class PlannedService:
    """One server's place on the GPU.

    Attributes:
        name: What to call it.
        options: Its settings, defaults filled in.
        budget: Its memory.
        outcome: What it allocates, or why it refuses; ``None`` for an encoder, which caches
            nothing.
        resident: Requests of the asked length that are resident at once; ``None`` without a
            cache, or when it refuses.
        request_bytes: The ideal payload of one such request, before blocks and padding; ``None``
            where it has no simple form.
        stage_weights: Weights of one rank of each pipeline stage; the heaviest is in *budget*.
        warnings: What in its command was not understood.
        starts_at_best: Whether it would start with the least of everything that is estimated.
        overrun_bytes: What the blocks it is told to make take beyond what is left; vLLM believes
            such an order and runs out of memory.
    """

    name: str
    options: EngineOptions
    budget: InstanceBudget
    outcome: Allocation | Refusal | None
    resident: int | None = None
    request_bytes: int | None = None
    stage_weights: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    starts_at_best: bool = True
    overrun_bytes: int = 0

    @property
    def gpus(self) -> int:
        """How many GPUs it spreads over, each of them with this place."""
        options = self.options
        ranks = options.tensor_parallel * options.pipeline_parallel * options.data_parallel
        return ranks * options.prefill_context_parallel

    @property
    def verdict(self) -> Verdict:
        """Whether it starts on the memory that is left to it."""
        if self.overrun_bytes > 0:
            return "does not fit"
        if isinstance(self.outcome, Refusal):
            return "depends" if self.starts_at_best else "does not fit"
        return "fits"


@dataclass(frozen=True, slots=True)
class Plan:
    """All servers on one GPU, and on as many more like it as one of them spreads over.

    Attributes:
        device: The GPU.
        card: The sum of their memory.
        services: Each of them, in the order of their start.
        refused: Positions of those that find too little memory free at their start.
        context_tokens: The length asked about.
        requests: How many of that length each server should hold at once; ``None`` asks nothing.
        cards: How many such GPUs there are; ``None`` is as many as it takes.
    """

    device: Device
    card: CardBudget
    services: tuple[PlannedService, ...]
    refused: tuple[int, ...]
    context_tokens: int | None
    requests: int | None = None
    cards: int | None = None

    @property
    def gpus(self) -> int:
        """How many GPUs it takes: servers share the first ones."""
        return max((service.gpus for service in self.services), default=1)

    @property
    def verdict(self) -> Verdict:
        """Whether every server starts, in this order."""
        too_few = self.cards is not None and self.gpus > self.cards
        if too_few or self.refused or self.card.unallocated_bytes < 0:
            return "does not fit"
        verdicts = {service.verdict for service in self.services}
        worse: tuple[Verdict, ...] = ("does not fit", "depends")
        return next((verdict for verdict in worse if verdict in verdicts), "fits")

    @property
    def fits(self) -> bool:
        """Whether every server starts and holds as many requests as were asked for."""
        return self.verdict == "fits" and all(self.holds(service) for service in self.services)

    def holds(self, service: PlannedService) -> bool:
        """Return whether *service* holds as many requests at once as were asked for."""
        if self.requests is None or service.resident is None:
            return True
        return service.resident >= self.requests


def make_plan(
    device: Device,
    services: Sequence[Service],
    *,
    version: Version,
    context_tokens: int | None = None,
    requests: int | None = None,
    reserved_bytes: int = 0,
    cards: int | None = None,
) -> Plan:
    """Return how *services* share one GPU.

    Args:
        device: The GPU; its total must be known.
        services: The servers, in the order of their start.
        version: vLLM's version.
        context_tokens: Request length to count residents of; ``None`` counts each server's
            longest.
        requests: How many of them each server should hold at once.
        reserved_bytes: What a desktop or another tenant holds.
        cards: How many such GPUs there are; ``None`` is as many as it takes.

    Raises:
        ConfigError: vLLM would refuse the flags.
        ModelConfigError: A model is not known.
    """
    total_bytes = device.total_bytes or 0
    prepared = [_prepare(service, device, version) for service in services]
    card = budget.budget_card(
        total_bytes, [one.demand for one in prepared], reserved_bytes=reserved_bytes
    )
    planned = tuple(
        replace(
            _place(service.name, one, instance, context_tokens),
            stage_weights=one.stage_weights,
            warnings=service.warnings,
        )
        for service, one, instance in zip(services, prepared, card.instances, strict=True)
    )
    refused = budget.fails_to_start(card, reserved_bytes=reserved_bytes)
    return Plan(device, card, planned, refused, context_tokens, requests, cards)


@dataclass(frozen=True, slots=True)
class _Prepared:
    layers: ModelLayers
    options: EngineOptions
    demand: Demand
    stage_weights: tuple[int, ...]


def _prepare(service: Service, device: Device, version: Version) -> _Prepared:
    layers = read_model(service.config)
    options = resolve_options(
        service.command,
        read_facts(service.config),
        version=service.version or version,
        device=device,
    )
    stages = _weights(service, options)
    # The stage with the most weights has the least left.
    pins, weights = service.pins, max(stages, key=lambda stage: stage.bytes)
    demand = Demand(
        name=service.name,
        utilization=options.gpu_memory_utilization,
        kv_cache_memory_bytes=options.kv_cache_memory_bytes,
        weights=weights,
        activation=pins.activation or budget.activation_of(weights.bytes),
        non_torch=pins.non_torch or budget.NON_TORCH,
        cuda_graphs=pins.cuda_graphs or _graphs(options),
        context=pins.context or budget.CONTEXT,
        caches_kv=not layers.is_encoder,
    )
    return _Prepared(layers, options, demand, tuple(stage.bytes for stage in stages))


def _weights(service: Service, options: EngineOptions) -> tuple[Estimate, ...]:
    """Return the weights on one rank of each pipeline stage."""
    stages = options.pipeline_parallel
    if service.pins.weights is not None:
        return (service.pins.weights,) * stages
    asked = service.command.options.get("quantization")
    try:
        per_stage = rank_weights(
            service.config, options, quantization=asked if isinstance(asked, str) else None
        )
    except ModelConfigError:
        if service.checkpoint is None or options.loading != Loading():
            raise
        # Near enough where the parameters are not known by name.
        return (exactly(even_bytes(service.checkpoint, options), "files"),) * stages
    return tuple(exactly(count, "computed") for count in per_stage)


def _graphs(options: EngineOptions) -> Estimate:
    set_aside = options.version >= _GRAPHS_SET_ASIDE and not options.enforce_eager
    return budget.CUDA_GRAPHS if set_aside else budget.NO_BYTES


def _place(
    name: str, prepared: _Prepared, instance: InstanceBudget, context_tokens: int | None
) -> PlannedService:
    layers, options = prepared.layers, prepared.options
    if layers.is_encoder:
        return PlannedService(name, options, instance, None)
    left = instance.remainder
    outcome = allocate(layers, options, _per_stage(prepared, instance, left.bytes))
    if isinstance(outcome, Refusal):
        best = allocate(layers, options, _per_stage(prepared, instance, left.high_bytes))
        return PlannedService(
            name, options, instance, outcome, starts_at_best=isinstance(best, Allocation)
        )
    asked = context_tokens or outcome.max_model_len
    return PlannedService(
        name,
        options,
        instance,
        outcome,
        resident=_resident(outcome, options, asked),
        request_bytes=_payload(layers, options, asked),
        overrun_bytes=max(0, outcome.num_blocks * max(outcome.bytes_per_block) - left.bytes)
        if options.num_gpu_blocks_override is not None
        else 0,
    )


def _per_stage(prepared: _Prepared, instance: InstanceBudget, left_bytes: int) -> list[int]:
    """Return what each stage has left where the heaviest has *left_bytes*."""
    if instance.demand.kv_cache_memory_bytes is not None:
        return [left_bytes] * len(prepared.stage_weights)
    heaviest = max(prepared.stage_weights)
    return [max(0, left_bytes + heaviest - own) for own in prepared.stage_weights]


def _resident(outcome: Allocation, options: EngineOptions, tokens: int) -> int | None:
    # vLLM refuses a request that is longer than it was told to serve.
    if tokens > outcome.max_model_len:
        return 0
    by_memory = steady_requests(outcome, tokens)
    return None if by_memory is None else min(by_memory, options.max_num_seqs)


def _payload(layers: ModelLayers, options: EngineOptions, tokens: int) -> int | None:
    try:
        return request_bytes(layers, options, tokens)
    except ModelConfigError:
        return None
