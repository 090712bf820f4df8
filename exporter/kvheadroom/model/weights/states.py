"""Parameters of recurrent layers: Mamba 1 and 2, gated delta nets, short convolutions."""

from collections.abc import Callable
from dataclasses import dataclass

from kvheadroom.model.weights.fields import Fields, Rule
from kvheadroom.model.weights.parts import (
    FLOAT32,
    Block,
    Linear,
    Part,
    Ranks,
    Tensor,
    column,
    norm,
    replicated,
    row,
    share,
)


@dataclass(frozen=True, slots=True)
class Mamba1:
    """A selective state-space layer.

    Attributes:
        inner: Channels.
        state: State elements per channel.
        kernel: Taps of the convolution.
        time_rank: Rank of the time step's projection.
        conv_bias: The convolution has a bias.
        bias: The projections in and out have biases.
        norms: Time step and state projections are normalized with learned scales.
    """

    inner: int
    state: int
    kernel: int
    time_rank: int
    conv_bias: bool
    bias: bool
    norms: bool


def mamba1(describe: Callable[[Fields], Mamba1], *, name: str) -> Block:
    """Describe a Mamba 1 mixer."""

    def block(c: Fields, r: Ranks, _layer: int) -> list[Part]:
        m = describe(c)
        own = share(m.inner, r.tensor, "mamba channels")
        parts: list[Part] = [
            Tensor(own * m.state, FLOAT32),
            Tensor(own + own * (m.kernel + m.conv_bias)),
            column(r, f"{name}.in_proj", c.hidden, m.inner, m.inner, bias=m.bias),
            row(r, f"{name}.x_proj", m.inner, m.time_rank + 2 * m.state),
            column(r, f"{name}.dt_proj", m.time_rank, m.inner, bias=True),
            row(r, f"{name}.out_proj", m.inner, c.hidden, bias=m.bias),
        ]
        return [*parts, norm(m.time_rank + 2 * m.state)] if m.norms else parts

    return block


@dataclass(frozen=True, slots=True)
class Mamba2:
    """A state-space layer with heads.

    Attributes:
        inner: Channels.
        heads: Heads.
        groups: Groups that share the state's projections.
        state: State elements per head and channel.
        kernel: Taps of the convolution.
        conv_bias: The convolution has a bias.
        bias: The projections in and out have biases.
        normed: A gated norm precedes the output.
    """

    inner: int
    heads: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool
    bias: bool
    normed: bool = True


def mamba2(describe: Callable[[Fields], Mamba2], *, name: str) -> Block:
    """Describe a Mamba 2 mixer; groups are added until the ranks divide them."""

    def block(c: Fields, r: Ranks, _layer: int) -> list[Part]:
        m = describe(c)
        own = share(m.inner, r.tensor, "mamba channels")
        heads = share(m.heads, r.tensor, "mamba heads")
        # One group is given to every rank; several that the ranks do not divide are refused.
        groups = 1 if m.groups == 1 else share(m.groups, r.tensor, "mamba groups")
        states = 2 * groups * m.state
        parts: list[Part] = [
            Tensor(heads, FLOAT32),
            Tensor(2 * heads + (own + states) * (m.kernel + m.conv_bias)),
            Linear(f"{name}.in_proj", c.hidden, (2 * own + states + heads,), m.bias),
            row(r, f"{name}.out_proj", m.inner, c.hidden, bias=m.bias),
        ]
        return [*parts, Tensor(own)] if m.normed else parts

    return block


def gated_delta_net(c: Fields, r: Ranks, _layer: int) -> list[Part]:
    """Return the linear attention of Qwen3-Next and later."""
    key_heads, value_heads = c.whole("linear_num_key_heads"), c.whole("linear_num_value_heads")
    key_dim, value_dim = c.whole("linear_key_head_dim"), c.whole("linear_value_head_dim")
    keys, values = key_heads * key_dim, value_heads * value_dim
    own_heads = share(value_heads, r.tensor, "linear attention heads")
    channels = share(2 * keys + values, r.tensor, "linear attention channels")
    return [
        Tensor(own_heads),
        Tensor(own_heads, FLOAT32),
        Tensor(channels * c.whole("linear_conv_kernel_dim")),
        column(r, "linear_attn.in_proj_qkvz", c.hidden, keys, keys, values, values),
        column(r, "linear_attn.in_proj_ba", c.hidden, value_heads, value_heads),
        norm(value_dim),
        row(r, "linear_attn.out_proj", values, c.hidden),
    ]


def full_rank_delta_net(c: Fields, r: Ranks, _layer: int) -> list[Part]:
    """Return the linear attention of OLMo-Hybrid, its gates apart from the fused matrix."""
    key_heads, value_heads = c.whole("linear_num_key_heads"), c.whole("linear_num_value_heads")
    key_dim = c.whole("linear_key_head_dim", default=int(0.75 * c.hidden / key_heads))
    value_dim = c.whole("linear_value_head_dim", default=2 * key_dim)
    keys, values = key_heads * key_dim, value_heads * value_dim
    own_heads = share(value_heads, r.tensor, "linear attention heads")
    channels = share(2 * keys + values, r.tensor, "linear attention channels")
    return [
        Tensor(2 * own_heads),
        Tensor(channels * c.whole("linear_conv_kernel_dim", default=4)),
        column(r, "linear_attn.in_proj_qkvg", c.hidden, keys, keys, values, values),
        column(r, "linear_attn.b_proj", c.hidden, value_heads),
        column(r, "linear_attn.a_proj", c.hidden, value_heads),
        norm(value_dim),
        row(r, "linear_attn.o_proj", values, c.hidden),
    ]


def short_convolution(*, name: str, bias: Rule) -> Block:
    """Describe the gated short convolution of LFM2."""

    def block(c: Fields, r: Ranks, _layer: int) -> list[Part]:
        inner = c.whole("conv_dim", default=c.hidden)
        biased = c.says(bias)
        own = share(inner, r.tensor, "convolution channels")
        return [
            Tensor(own * (c.whole("conv_L_cache") + biased)),
            column(r, f"{name}.in_proj", c.hidden, inner, inner, inner, bias=biased),
            row(r, f"{name}.out_proj", inner, c.hidden, bias=biased),
        ]

    return block


def delta_state(r: Ranks, heads: int, dim: int, kernel: int) -> list[Part]:
    """Return what a delta attention keeps beside its matrices: decay, convolutions, a norm."""
    own = share(heads, r.tensor, "delta attention heads") * dim
    return [Tensor(own + own // dim + 3 * own * kernel, FLOAT32), norm(dim)]


def kimi_delta_attention(c: Fields, r: Ranks, _layer: int) -> list[Part]:
    """Return the delta attention of Kimi Linear, its two gates through a low rank."""
    k = c.part("linear_attn_config")
    return delta_attention(
        c,
        r,
        heads=k.whole("num_heads"),
        dim=k.whole("head_dim"),
        taps=k.whole("short_conv_kernel_size"),
    )


def delta_attention(c: Fields, r: Ranks, *, heads: int, dim: int, taps: int) -> list[Part]:
    """Return delta attention of *heads* and a convolution of *taps*."""
    width = heads * dim
    return [
        column(r, "self_attn.qkv_proj", c.hidden, width, width, width),
        column(r, "self_attn.b_proj", c.hidden, heads),
        replicated("self_attn.f_a_proj", c.hidden, dim),
        column(r, "self_attn.f_b_proj", dim, width),
        replicated("self_attn.g_a_proj", c.hidden, dim),
        column(r, "self_attn.g_b_proj", dim, width),
        *delta_state(r, heads, dim, taps),
        row(r, "self_attn.o_proj", width, c.hidden),
    ]
