"""Group layers so that all groups draw blocks of one size from one pool."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvheadroom.engine.packing import packed_groups
from kvheadroom.engine.specs import (
    CacheSpec,
    Demand,
    GroupKind,
    Placed,
    blocks_for_request,
    ceil_div,
)
from kvheadroom.engine.versions import Version
from kvheadroom.errors import ConfigError

_FULL_KINDS: Final = frozenset({"FullAttentionSpec", "MLAAttentionSpec", "SinkFullAttentionSpec"})
_LOCAL_KINDS: Final = frozenset({"SlidingWindowSpec", "ChunkedLocalAttentionSpec"})
_NEVER_FULL: Final = frozenset({"SlidingWindowMLASpec", "ChunkedLocalAttentionSpec"})
# Kinds of little difference in number are padded to the larger one instead of split up.
_PAD_SINCE: Final[Version] = (0, 12, 0)
_PAD_WIDER_SINCE: Final[Version] = (0, 18, 0)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that share a block table.

    Attributes:
        members: The layers, with the stage each is on.
        uniform: One type of several page sizes: each keeps its own page.
    """

    members: tuple[Placed, ...]
    uniform: bool = False

    @property
    def first(self) -> CacheSpec:
        """The first member's spec, which speaks for all unless the group is uniform."""
        return self.members[0][1]

    @property
    def kind(self) -> GroupKind:
        """The name vLLM gives the kind."""
        return "UniformTypeKVCacheSpecs" if self.uniform else self.first.kind

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer's page; of all of them in a uniform group."""
        if not self.uniform:
            return self.first.page_bytes
        return sum(spec.page_bytes for _, spec in self.members)

    def stage_bytes(self, stage: int) -> int:
        """Return the bytes of this group's layers on *stage* for one block."""
        return sum(spec.page_bytes for own, spec in self.members if own == stage)

    def blocks_for(self, demand: Demand) -> int:
        """Return the blocks of this group one request of *demand* may hold."""
        return max(blocks_for_request(spec, demand) for spec in self.specs())

    def specs(self) -> Iterable[CacheSpec]:
        """Return the specs that speak for the members: one, or each one's of a uniform group."""
        if not self.uniform:
            return (self.first,)
        # Layers alike share one record, and its identity is quicker to compare than its fields.
        return {id(spec): spec for _, spec in self.members}.values()


def group_layers(
    layers: Sequence[Placed], *, version: Version, hybrid: bool, block_outermost: bool
) -> tuple[LayerGroup, ...]:
    """Return the groups that vLLM's *version* makes of *layers*, in its order.

    Args:
        layers: Every layer that caches something, in the model's order.
        version: vLLM's version.
        hybrid: The hybrid manager is on; off, windows are allocated like full attention.
        block_outermost: The layout keeps all layers of a block together, so that pages may differ.

    Raises:
        ConfigError: The kinds cannot share a pool: vLLM refuses to start.
    """
    if not layers:
        return ()
    if not hybrid:
        layers = _promoted(layers)
    if _is_uniform_spec(layers):
        return (LayerGroup(tuple(layers)),)
    if is_uniform_type(spec for _, spec in layers):
        return (LayerGroup(tuple(layers), uniform=True),)
    if block_outermost and len({spec.page_bytes for _, spec in layers}) > 1:
        buckets = packed_groups(_uniform_buckets(layers))
        return tuple(LayerGroup(tuple(bucket), uniform=True) for bucket in buckets)
    try:
        unified = unify_pages(layers)
    except ConfigError:
        return _all_in_full(layers)
    return _equal_groups(unified, version)


def _all_in_full(layers: Sequence[Placed]) -> tuple[LayerGroup, ...]:
    """Return one group of latent layers and windows whose pages cannot be made equal.

    Raises:
        ConfigError: Something else is among them.
    """
    kinds = {spec.kind for _, spec in layers}
    if not {"MLAAttentionSpec", "SlidingWindowSpec"} <= kinds or kinds & _NEVER_FULL:
        raise ConfigError("the pages of a latent layer and of another kind cannot be made equal")
    return (LayerGroup(tuple(_promoted(layers)), uniform=True),)


def is_uniform_type(specs: Iterable[CacheSpec]) -> bool:
    """Return whether all *specs* always need the same number of token slots."""
    distinct = set(specs)
    first = next(iter(distinct))
    if len({spec.block_size for spec in distinct}) > 1:
        return False
    if first.kind in _FULL_KINDS:
        return all(spec.kind in _FULL_KINDS for spec in distinct)
    if any(spec.kind != first.kind for spec in distinct):
        return False
    if first.kind == "MambaSpec":
        return (
            len({(spec.page_bytes, spec.state_blocks, spec.replicated) for spec in distinct}) == 1
        )
    return len({(spec.window, spec.chunk) for spec in distinct}) == 1


def _is_uniform_spec(layers: Sequence[Placed]) -> bool:
    """Return whether all *layers* share one spec.

    Raises:
        ConfigError: Layers allocated like full attention have windows of several sizes.
    """
    distinct = {spec for _, spec in layers}
    if all(spec.kind == "FullAttentionSpec" for spec in distinct):
        windows = {spec.window for spec in distinct if spec.window}
        chunks = {spec.chunk for spec in distinct if spec.chunk}
        if max(len(windows), len(chunks)) > 1:
            raise ConfigError("layers of one group must have the same window size")
    return len(distinct) == 1 or _mergeable(distinct)


def _mergeable(specs: set[CacheSpec]) -> bool:
    """Return whether full-attention *specs* differ in one window or chunk size only."""
    if any(spec.kind != "FullAttentionSpec" for spec in specs):
        return False
    shapes = {(spec.block_size, spec.page_bytes, spec.content) for spec in specs}
    windows = {spec.window for spec in specs if spec.window}
    chunks = {spec.chunk for spec in specs if spec.chunk}
    return len(shapes) == 1 and len(windows) + len(chunks) <= 1


def _promoted(layers: Sequence[Placed]) -> Sequence[Placed]:
    """Return *layers* with windows and chunks allocated like full attention.

    Raises:
        ConfigError: Something is left that is neither.
    """
    if _is_uniform_spec(layers) or is_uniform_type(spec for _, spec in layers):
        return layers
    full_sizes = {spec.block_size for _, spec in layers if spec.kind in _FULL_KINDS}
    promoted = [
        (stage, _as_full(spec, full_sizes) if full_sizes else spec) for stage, spec in layers
    ]
    if not (_is_uniform_spec(promoted) or is_uniform_type(spec for _, spec in promoted)):
        raise ConfigError("Failed to promote local KV cache specs to one unified type.")
    return promoted


def _as_full(spec: CacheSpec, full_sizes: set[int]) -> CacheSpec:
    if spec.kind not in _LOCAL_KINDS:
        return spec
    tokens = next(iter(full_sizes)) if len(full_sizes) == 1 else spec.block_size
    return replace(
        spec,
        kind="FullAttentionSpec",
        block_size=tokens,
        page_bytes=spec.page_bytes * tokens // spec.block_size,
    )


def unify_pages(layers: Sequence[Placed]) -> Sequence[Placed]:
    """Return *layers* with pages of one size: longer blocks where that works, else padding.

    Raises:
        ConfigError: A latent page does not divide the largest.
    """
    largest = max(spec.page_bytes for _, spec in layers)
    unified = {spec: _with_page(spec, largest) for spec in {spec for _, spec in layers}}
    return [(stage, unified[spec]) for stage, spec in layers]


def _with_page(spec: CacheSpec, page_bytes: int) -> CacheSpec:
    if spec.page_bytes == page_bytes:
        return spec
    if spec.kind == "MambaSpec" or (
        page_bytes % spec.page_bytes and spec.kind != "MLAAttentionSpec"
    ):
        return replace(spec, page_bytes=page_bytes)
    if page_bytes % spec.page_bytes:
        raise ConfigError("the pages of a latent layer and of another kind cannot be made equal")
    ratio = page_bytes // spec.page_bytes
    return replace(spec, page_bytes=page_bytes, block_size=spec.block_size * ratio)


def _equal_groups(layers: Sequence[Placed], version: Version) -> tuple[LayerGroup, ...]:
    """Return groups of one layer count each, padded where a kind does not divide."""
    buckets = _mergeable_buckets(layers)
    size = _group_size([len(bucket) for bucket in buckets], version)
    groups: list[LayerGroup] = []
    for bucket in buckets:
        count = ceil_div(len(bucket), size)
        # Dealt out in turn, so that each stage of a pipeline gets its share of every group.
        groups += [LayerGroup(tuple(bucket[index::count])) for index in range(count)]
    return tuple(groups)


def _group_size(counts: Sequence[int], version: Version) -> int:
    smallest, largest = min(counts), max(counts)
    if version >= _PAD_WIDER_SINCE:
        return largest if largest < smallest * 1.5 else smallest
    if version >= _PAD_SINCE:
        return largest if largest < smallest * 1.25 else smallest
    return smallest


def _mergeable_buckets(layers: Sequence[Placed]) -> list[list[Placed]]:
    alike: defaultdict[CacheSpec, list[Placed]] = defaultdict(list)
    for placed in layers:
        alike[placed[1]].append(placed)
    buckets: list[tuple[set[CacheSpec], list[Placed]]] = []
    for spec, members in alike.items():
        for specs, bucket in buckets:
            if _mergeable(specs | {spec}):
                specs.add(spec)
                bucket.extend(members)
                break
        else:
            buckets.append(({spec}, list(members)))
    return [bucket for _, bucket in buckets]


def _uniform_buckets(layers: Sequence[Placed]) -> list[list[Placed]]:
    buckets: list[tuple[set[CacheSpec], list[Placed]]] = []
    for placed in layers:
        for specs, bucket in buckets:
            if placed[1] in specs or is_uniform_type(specs | {placed[1]}):
                specs.add(placed[1])
                bucket.append(placed)
                break
        else:
            buckets.append(({placed[1]}, [placed]))
    return [bucket for _, bucket in buckets]
