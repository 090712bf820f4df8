"""What each layer of a model keeps between tokens, before any server decides how to store it."""

from dataclasses import dataclass
from typing import Literal

StateKind = Literal["mamba1", "mamba2", "gdn", "kda", "linear_attention", "short_conv"]


@dataclass(frozen=True, slots=True)
class AttentionLayer:
    """A layer that caches a key and a value per token.

    Attributes:
        kv_heads: Key-value heads of the whole model.
        head_dim: Elements of one head's key.
        value_head_dim: Elements of one head's value.
        window: Tokens a sliding window keeps; ``None`` keeps all.
        chunk: Tokens of a chunk that is attended locally; ``None`` keeps all.
        sink: Attends to a learned sink as well, which not every kernel can.
        sink_tokens: Learned keys and values that stand before those of every request.
    """

    kv_heads: int
    head_dim: int
    value_head_dim: int
    window: int | None = None
    chunk: int | None = None
    sink: bool = False
    sink_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LatentLayer:
    """A layer of multi-head latent attention: one vector per token, the same on every rank.

    Attributes:
        latent_dim: ``kv_lora_rank``.
        rope_dim: ``qk_rope_head_dim``.
        indexer_dim: Elements of the sparse indexer's key per token; ``None`` without an indexer.
        window: Tokens a sliding window keeps; ``None`` keeps all.
        compress_ratio: Tokens that one stored row stands for (DeepSeek-V4); 1 elsewhere.
        compressed: The layer is one of DeepSeek-V4: a window of packed rows and, above ratio 1,
            rows that stand for several tokens beside it.
        stored_dim: Elements of a row, where it is padded to another layer's; 0 where it is not.
    """

    latent_dim: int
    rope_dim: int
    indexer_dim: int | None = None
    window: int | None = None
    compress_ratio: int = 1
    compressed: bool = False
    stored_dim: int = 0

    @property
    def row_dim(self) -> int:
        """Elements of one stored row."""
        return self.stored_dim or self.latent_dim + self.rope_dim


@dataclass(frozen=True, slots=True)
class SourceLayer:
    """A layer of DeepSeek-V4.1: a window of its own, and rows that later layers read as well.

    Attributes:
        row_dim: Elements of a row.
        window: Tokens of the window.
        source_ratio: Tokens that one of the rows it stores beside the window stands for; 0 when it
            stores none and reads those of an earlier layer.
        indexer_dim: Elements of the indexer's key per row; ``None`` without an indexer.
    """

    row_dim: int
    window: int
    source_ratio: int = 0
    indexer_dim: int | None = None


@dataclass(frozen=True, slots=True)
class KeyLayer:
    """Keys that a sparse indexer scores, beside the attention itself; the same on every rank.

    Attributes:
        dim: Elements of one key.
        tokens_per_key: Tokens that one key stands for.
        quantized: Stored in 8 bits with scales; otherwise in 16.
        kernel_keys: Keys of a page that the scoring kernel takes; empty where any number will do.
    """

    dim: int
    tokens_per_key: int = 1
    quantized: bool = False
    kernel_keys: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RingLayer:
    """Rows of the tokens that are not folded into a key yet: one block per request.

    Attributes:
        row_bytes: Bytes of one token.
        group_tokens: Tokens that are folded into one key.
        doubles: The groups it holds are a power of two.
    """

    row_bytes: int
    group_tokens: int
    doubles: bool = False


@dataclass(frozen=True, slots=True)
class ConvolutionLayer:
    """The inputs that short convolutions still need, kept as a window of tokens (Inkling).

    Attributes:
        kv_heads: Heads that they are divided by, of the whole model.
        head_dim: Elements of one head's part.
        taps: Of the convolution: the window.
    """

    kv_heads: int
    head_dim: int
    taps: int


@dataclass(frozen=True, slots=True)
class StateLayer:
    """A layer with a state of fixed size per request.

    Attributes:
        kind: Which recurrence.
        conv_channels: Channels of the convolution state of the whole model; 0 without one.
        conv_kernel: Taps of the convolution.
        heads: Heads of the recurrent state of the whole model; 0 without one.
        state_shape: Elements of one head's recurrent state, as a shape.
        groups: State-space groups, replicated when ranks do not divide them.
        state_dim: Elements per group that the convolution carries twice (Mamba 2).
        recurrent_dtype: What the model prescribes for the recurrent state; ``None`` follows the
            server's setting.
        checkpointed: A kernel of newer GPUs exports the state in the middle of a prefill.
        replicated: Every rank keeps the whole state.
    """

    kind: StateKind
    conv_channels: int = 0
    conv_kernel: int = 0
    heads: int = 0
    state_shape: tuple[int, ...] = ()
    groups: int = 0
    state_dim: int = 0
    recurrent_dtype: str | None = None
    checkpointed: bool = False
    replicated: bool = False


@dataclass(frozen=True, slots=True)
class CrossAttentionLayer:
    """A layer that caches keys and values of an encoder's output.

    Attributes:
        kv_heads: Key-value heads of the whole model.
        head_dim: Elements of one head.
    """

    kv_heads: int
    head_dim: int


Layer = (
    AttentionLayer
    | LatentLayer
    | SourceLayer
    | KeyLayer
    | RingLayer
    | ConvolutionLayer
    | StateLayer
    | CrossAttentionLayer
)
Block = tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """What decides which attention kernel serves the model, beside its layers.

    Attributes:
        query_heads: Query heads of the whole model.
        kv_heads: Key-value heads of the whole model, as the config names them: what a server
            sizes its blocks by before it looks at the layers.
        head_dim: Elements of the largest head, for the same purpose.
        nope_dim: ``qk_nope_head_dim`` of latent attention; ``None`` without.
        value_dim: ``v_head_dim`` of latent attention; ``None`` without.
        index_topk: Tokens a sparse indexer selects; ``None`` without one.
        image_prefix: The tokens of one image see each other both ways.
        mixed_head_dims: Heads differ in size from layer to layer.
        looks_ahead: Some tokens of a batch see those behind them, others do not.
        looks_back: Chunks of tokens see the chunk before.
    """

    query_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    nope_dim: int | None = None
    value_dim: int | None = None
    index_topk: int | None = None
    image_prefix: bool = False
    mixed_head_dims: bool = False
    looks_ahead: bool = False
    looks_back: bool = False


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """A model as far as its cache is concerned.

    Attributes:
        architecture: Class name in ``architectures``.
        blocks: One entry per decoder layer, in order, since pipeline stages are cut between them:
            what that layer caches. Several records for a layer that keeps several things
            (Falcon-H1: attention and a state), none for one that keeps nothing of its own.
        dtype: The checkpoint's dtype, ``"bfloat16"``; ``None`` when it does not say.
        max_position: Longest context the config allows, rope scaling included, tokens.
        prescribed_kv_dtype: What the checkpoint says ``auto`` must mean; ``None`` leaves it to the
            model's dtype.
        is_encoder: Nothing is cached: every layer sees all tokens at once.
        draft_blocks: What the model's own draft head adds per module when it speculates for itself.
        traits: What decides about kernels.
        ignores_kv_cache_dtype: The model's code keeps its cache in the model's dtype, whatever is
            asked for.
        attention_first: The attention layers are built before the others, shared blocks that
            several decoder layers use (Zamba 2).
        block_outermost: Its kernels want the pages of all layers of a block side by side, so that
            pages may differ in size.
    """

    architecture: str
    blocks: tuple[Block, ...]
    dtype: str | None
    max_position: int | None
    prescribed_kv_dtype: str | None = None
    is_encoder: bool = False
    draft_blocks: tuple[Block, ...] = ()
    traits: KernelTraits = KernelTraits()
    ignores_kv_cache_dtype: bool = False
    attention_first: bool = False
    block_outermost: bool = False

    def __hash__(self) -> int:
        # Of what tells models apart: the layers of a large one take longer than all else to hash.
        return hash((self.architecture, len(self.blocks), self.blocks[:1], self.traits))
