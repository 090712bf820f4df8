"""What an engine's pool would hold after a restart with one setting changed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kvheadroom.engine.capacity import Allocation, steady_blocks
from kvheadroom.engine.dtypes import is_quantized
from kvheadroom.engine.refusal import Refusal
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.known_pool import KnownPool, known_pool, resident_requests
from kvheadroom.live.larger_share import LargerShare, larger_share

SHARE_FLAG: Final = "--gpu-memory-utilization"
LENGTH_FLAG: Final = "--max-model-len"
FP8_CHANGE: Final = "--kv-cache-dtype fp8"

# Ada and Hopper; before them numbers of 8 bits are widened first.
_FP8_CAPABILITY: Final = (8, 9)
# Kernels of different GPUs round blocks up differently.
_SAME_RATIO: Final = 0.01


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One changed setting and what comes of it.

    Attributes:
        change: The flag and its value; the flag alone where no value could be found.
        tokens: "KV cache size" as vLLM would print it; ``None`` where not known.
        tokens_now: The same of today.
        requests: Requests of the length asked about that would be resident at once, as far as
            ``max_num_seqs`` lets them.
        requests_now: The same of today, the pool taken as empty.
        gain_ratio: Pool after ÷ pool today - 1, in requests of that length, not rounded.
        more_requests: How many could be admitted beside today's load, running and waiting.
        fits: Whether those asked about could; ``None`` where not known.
        reason: Why that is not known, or why vLLM would not start, one line; ``None`` where it is
            known.
        evidence: What allows the change, one line; ``None`` where nothing needs to.
    """

    change: str
    tokens: int | None = None
    tokens_now: int | None = None
    requests: int | None = None
    requests_now: int | None = None
    gain_ratio: float | None = None
    more_requests: int | None = None
    fits: bool | None = None
    reason: str | None = None
    evidence: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has taken on.

    Attributes:
        used_blocks: Blocks its requests hold.
        running: Requests that run.
        waiting: Requests that wait.
        waiting_tokens: What each of those is reckoned to come to, tokens.
    """

    used_blocks: int
    running: int
    waiting: int
    waiting_tokens: int


def load_of(view: EngineView, context_tokens: int) -> Load | None:
    """Return the load of *view*; ``None`` while its page does not tell it.

    Args:
        view: The engine.
        context_tokens: Taken for the length of waiting requests where the traffic tells none.
    """
    reading, capacity, headroom = view.reading, view.capacity, view.headroom
    if capacity is None or reading.requests_running is None or reading.requests_waiting is None:
        return None
    if headroom is None and capacity.layout != "none":
        return None
    tokens = view.traffic.mean_tokens if view.traffic else context_tokens
    longest = capacity.max_model_len
    return Load(
        used_blocks=headroom.used_blocks if headroom else 0,
        running=int(reading.requests_running),
        waiting=int(reading.requests_waiting),
        waiting_tokens=tokens if longest is None else min(tokens, longest),
    )


def what_ifs(
    view: EngineView,
    cards: Sequence[CardView],
    engines: Sequence[EngineView],
    *,
    context_tokens: int,
    requests: int,
) -> tuple[WhatIf, ...]:
    """Return what each change that may help would come to.

    A quantized cache is not told to be quantized, and a longest request is changed only where the
    length asked about is beyond it, or layers of different kinds share the pool.

    Args:
        view: The engine.
        cards: Every GPU of the node.
        engines: Every engine of the node.
        context_tokens: Length of a request, prompt and answer.
        requests: How many of them are asked about.
    """
    if view.capacity is None or view.capacity.layout == "none":
        return ()
    pool = known_pool(view)
    if isinstance(pool, str):
        return tuple(WhatIf(change, reason=pool) for change in (FP8_CHANGE, SHARE_FLAG))
    asked = _Asked(view, pool, context_tokens, requests, load_of(view, context_tokens))
    return tuple(asked.changes(larger_share(view, cards, engines)))


def fp8_what_if(view: EngineView, *, context_tokens: int, requests: int) -> WhatIf | None:
    """Return what an fp8 cache would come to; ``None`` where that is not known, or it is one."""
    pool = known_pool(view)
    if isinstance(pool, str):
        return None
    asked = _Asked(view, pool, context_tokens, requests, load_of(view, context_tokens))
    return asked.with_fp8()


def share_what_if(
    view: EngineView, share: LargerShare, *, context_tokens: int, requests: int
) -> WhatIf | None:
    """Return what *share* would come to; ``None`` where that is not known."""
    pool = known_pool(view)
    if isinstance(pool, str):
        return None
    asked = _Asked(view, pool, context_tokens, requests, load_of(view, context_tokens))
    return asked.with_share(share)


@dataclass(frozen=True, slots=True)
class _Asked:
    view: EngineView
    pool: KnownPool
    context_tokens: int
    requests: int
    load: Load | None

    def changes(self, share: LargerShare | str) -> Iterator[WhatIf]:
        if self.context_tokens > self.pool.today.max_model_len:
            # No memory helps a request that is refused for its length.
            yield self._with_length()
            return
        fp8 = self.with_fp8()
        if fp8 is not None:
            yield fp8
        if self.context_tokens < self.pool.today.max_model_len and len(self.pool.today.groups) > 1:
            yield self._with_length()
        if isinstance(share, str):
            yield WhatIf(SHARE_FLAG, reason=share)
        else:
            yield self.with_share(share)

    def with_fp8(self) -> WhatIf | None:
        layers, options = self.pool.layers, self.pool.options
        asked = options.kv_cache_dtype
        stored = layers.prescribed_kv_dtype if asked == "auto" else asked
        if is_quantized(stored or "auto"):
            return None
        if layers.ignores_kv_cache_dtype:
            return WhatIf(FP8_CHANGE, reason="the model's code ignores the cache dtype")
        backend = options.attention_backend
        if backend is not None and backend.lower() != "auto":
            return WhatIf(FP8_CHANGE, reason=f"whether {backend} serves such a cache is not known")
        told = self.view.facts.options
        evidence = _fp8_evidence(told.device.capability if told else None)
        return replace(self._outcome(FP8_CHANGE, kv_cache_dtype="fp8"), evidence=evidence)

    def with_share(self, share: LargerShare) -> WhatIf:
        made = self._outcome(share.change, more_bytes=share.more_bytes)
        return replace(made, evidence=share.evidence)

    def _with_length(self) -> WhatIf:
        limit = self.pool.layers.max_position
        change = f"{LENGTH_FLAG} {self.context_tokens}"
        if limit is not None and self.context_tokens > limit:
            return WhatIf(change, reason=f"the model was made for {limit:,} tokens at most")
        return self._outcome(change, max_model_len=self.context_tokens)

    def _outcome(self, change: str, *, more_bytes: int = 0, **settings: Any) -> WhatIf:  # noqa: ANN401
        found = self.pool.with_settings(more_bytes=more_bytes, **settings)
        for other in self.pool.elsewhere:
            if not _agree(found, other.with_settings(more_bytes=more_bytes, **settings)):
                return WhatIf(change, reason="that hangs on the GPU, and which one is not known")
        if isinstance(found, Refusal):
            return WhatIf(change, fits=False, reason=f"vLLM would not start: {found.message}")
        today = self.pool.today
        now = resident_requests(today, self.context_tokens)
        then = resident_requests(found, self.context_tokens)
        more = self._beside_load(found)
        return WhatIf(
            change=change,
            tokens=found.tokens,
            tokens_now=today.tokens,
            requests=self._in_places(int(then)),
            requests_now=self._in_places(int(now)),
            gain_ratio=then / now - 1 if now else None,
            more_requests=more,
            fits=None if more is None else more >= self.requests,
        )

    def _in_places(self, requests: int) -> int:
        places = self.view.facts.rules.max_num_seqs
        return requests if places is None else min(requests, places)

    def _beside_load(self, found: Allocation) -> int | None:
        """Return how many requests fit beside today's load, in blocks as they would be then."""
        load = self.load
        if load is None:
            return None
        if self.context_tokens > found.max_model_len:
            return 0
        each = steady_blocks(found, self.context_tokens)
        # A block may hold more tokens than before: what runs takes fewer of them.
        before = steady_blocks(self.pool.today, self.context_tokens)
        if not each or not before:
            return None
        running = -(-load.used_blocks * each // before)
        waiting = load.waiting * steady_blocks(found, load.waiting_tokens)
        free = max(0, found.num_blocks - 1 - running - waiting)
        places = self.view.facts.rules.max_num_seqs
        left = None if places is None else max(0, places - load.running - load.waiting)
        return free // each if left is None else min(left, free // each)


def _agree(one: Allocation | Refusal, other: Allocation | Refusal) -> bool:
    """Return whether two GPUs would give about the same."""
    if isinstance(one, Refusal) or isinstance(other, Refusal):
        return isinstance(one, Refusal) and isinstance(other, Refusal)
    tokens, others = one.tokens or 0, other.tokens or 0
    return abs(tokens - others) <= _SAME_RATIO * tokens


def has_fp8_units(capability: tuple[int, int] | None) -> bool:
    """Return whether a GPU is known to compute with 8-bit numbers."""
    return capability is not None and capability >= _FP8_CAPABILITY


def _fp8_evidence(capability: tuple[int, int] | None) -> str | None:
    if has_fp8_units(capability):
        return None
    this = "is not known" if capability is None else f"is {capability[0]}.{capability[1]}"
    return f"GPUs have units for it from compute capability 8.9 on; this one's {this}"
