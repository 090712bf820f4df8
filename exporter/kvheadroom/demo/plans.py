"""What a simulated node is built from: cards, servers and what they are asked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvheadroom.demo.engine import StepCost
from kvheadroom.demo.scheduler import Limits
from kvheadroom.demo.traffic import Traffic

# vLLM's default block on NVIDIA GPUs.
BLOCK_TOKENS: Final = 16

_MODELS: Final = Path(__file__).parent / "models"


@dataclass(frozen=True, slots=True)
class CardPlan:
    """One GPU.

    Attributes:
        name: Marketing name.
        total_bytes: Memory of the device.
        reserved_bytes: What driver and firmware keep of it.
        idle_watts: Board power with nothing to do.
        limit_watts: Board power limit.
        compute_capability: CUDA's.
        tenant_bytes: Held by a process that is no engine, 0 for none.
    """

    name: str
    total_bytes: int
    reserved_bytes: int
    idle_watts: float
    limit_watts: float
    compute_capability: tuple[int, int]
    tenant_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One vLLM server. Bytes are per GPU.

    Attributes:
        name: Served model name.
        model: Hub id of the model.
        config_name: Its config.json among this package's models, without ``.json``.
        ranks: Indices of the GPUs of each data-parallel rank.
        utilization: ``--gpu-memory-utilization``.
        weights_bytes: Weights as loaded.
        runtime_bytes: Peak activation, CUDA graphs and the rest inside ``utilization``.
        context_bytes: CUDA context and communication buffers, outside of it.
        block_bytes: KV of one block of 16 tokens; 0 for an encoder, which holds none.
        max_model_len: ``--max-model-len``, tokens.
        max_num_seqs: ``--max-num-seqs``.
        max_num_batched_tokens: ``--max-num-batched-tokens``.
        cost: Duration of its steps.
        traffic: What each rank is asked.
        flags: Further flags of its command line.
    """

    name: str
    model: str
    config_name: str
    ranks: tuple[tuple[int, ...], ...]
    utilization: float
    weights_bytes: int
    runtime_bytes: int
    context_bytes: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    cost: StepCost
    traffic: Traffic
    flags: tuple[str, ...] = ()

    @property
    def config_path(self) -> Path:
        """Where the model's config.json lies."""
        return _MODELS / f"{self.config_name}.json"

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that would start it."""
        parallel = {
            "--tensor-parallel-size": len(self.ranks[0]),
            "--data-parallel-size": len(self.ranks),
        }
        return (
            *("vllm", "serve", self.model, "--served-model-name", self.name),
            *("--gpu-memory-utilization", f"{self.utilization:g}"),
            *("--max-model-len", str(self.max_model_len)),
            *("--max-num-seqs", str(self.max_num_seqs)),
            *("--max-num-batched-tokens", str(self.max_num_batched_tokens)),
            *(part for flag, count in parallel.items() if count > 1 for part in (flag, str(count))),
            *self.flags,
        )

    @property
    def cache_dtype(self) -> str:
        """Value of ``--kv-cache-dtype``."""
        flag = "--kv-cache-dtype"
        return self.flags[self.flags.index(flag) + 1] if flag in self.flags else "auto"

    def blocks(self, card: CardPlan) -> int:
        """Return the KV blocks of one rank on cards like *card*: what the rest leaves, as in vLLM.

        The null block is among them. An encoder has one block, which stands for none.
        """
        if not self.block_bytes:
            return 1
        managed_bytes = round(card.total_bytes * self.utilization)
        return (managed_bytes - self.weights_bytes - self.runtime_bytes) // self.block_bytes

    def process_bytes(self, card: CardPlan) -> int:
        """Return what one of its processes holds on *card*."""
        pool_bytes = self.blocks(card) * self.block_bytes
        return self.context_bytes + self.weights_bytes + self.runtime_bytes + pool_bytes

    def limits(self, card: CardPlan) -> Limits:
        """Return what bounds each rank's scheduler."""
        return Limits(
            total_blocks=self.blocks(card),
            block_tokens=BLOCK_TOKENS,
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A whole node.

    Attributes:
        cards: GPUs by index.
        servers: vLLM servers.
    """

    cards: tuple[CardPlan, ...]
    servers: tuple[ServerPlan, ...]
