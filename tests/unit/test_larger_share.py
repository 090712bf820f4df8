from collections.abc import Sequence

import pytest
from tests.unit.engine_views import cards, engine, facts, options

from kvheadroom.engine.options import EngineOptions
from kvheadroom.live.card_view import CardView
from kvheadroom.live.engine_view import EngineView
from kvheadroom.live.larger_share import LargerShare, larger_share
from kvheadroom.units import GIB


def share_of(
    view: EngineView, on: Sequence[CardView], engines: Sequence[EngineView] = ()
) -> LargerShare | str:
    return larger_share(view, on, engines or (view,))


def utilization(found: LargerShare | str) -> float:
    assert isinstance(found, LargerShare), found
    flag, value = found.change.split()
    assert flag == "--gpu-memory-utilization"
    return float(value)


def test_what_others_claim_stays_theirs() -> None:
    """Shares of 0.5 and 0.3 of 80 GiB, contexts of 300 MiB and a margin of 2 % leave 0.17."""
    first = engine(target="127.0.0.1:8000")
    second = engine(target="127.0.0.1:8001", known=facts(settings=_with_share(0.3)))
    # The second holds less than it claims, and may take the rest at any time.
    on = cards((first, second), held_gib={first.engine: 40.3, second.engine: 12.0})

    assert utilization(share_of(first, on, (first, second))) == pytest.approx(0.67)
    assert utilization(share_of(second, on, (first, second))) == pytest.approx(0.47)


def test_what_other_programs_hold_stays_theirs() -> None:
    """Half is claimed and 24 GiB (0.30) are held by a program: 0.17 are left beside the margin."""
    view = engine()
    on = cards((view,), held_gib={view.engine: 40.3}, others_gib=24.0)

    assert utilization(share_of(view, on)) == pytest.approx(0.67)


def test_a_full_gpu_has_nothing_to_spare() -> None:
    """A share of 0.97, 77.6 of 80 GiB, leaves what contexts and peaks may need."""
    view = engine(known=facts(settings=_with_share(0.97)))
    on = cards((view,), held_gib={view.engine: 77.9})

    assert share_of(view, on) == "GPU 0 has nothing to spare"


def test_a_share_above_its_step_is_not_rounded_up() -> None:
    """A share of 0.50 with 0.7 GiB to spare, less than a hundredth of 80, cannot become 0.51."""
    view = engine()
    on = cards((view,), held_gib={view.engine: 40.3}, others_gib=37.4)

    assert share_of(view, on) == "GPU 0 has nothing to spare"


def test_a_pool_in_bytes_grows_in_bytes() -> None:
    """The share says nothing about a server whose pool is given in bytes."""
    settings = options(kv_cache_memory_bytes=20 * GIB)
    view = engine(known=facts(settings=settings))
    on = cards((view,), held_gib={view.engine: 40.3})

    found = share_of(view, on)

    assert isinstance(found, LargerShare)
    assert found.change == f"--kv-cache-memory-bytes {20 * GIB + found.more_bytes}"
    assert found.more_bytes < 38.2 * GIB


def test_a_gpu_out_of_sight_leaves_it_unknown() -> None:
    """Of two tensor-parallel ranks one is on another node: its GPU may be full."""
    view = engine(known=facts(settings=options(tensor_parallel=2)))
    on = cards((view,), held_gib={view.engine: 40.3})

    assert share_of(view, on) == "not all of its GPUs are known"


def test_a_command_that_is_not_known_leaves_it_unknown() -> None:
    """Without its flags, what an engine claims is not known."""
    view = engine(known=facts(settings=None))

    assert share_of(view, cards((view,), held_gib={view.engine: 40.3})) == (
        "the server's command is not known"
    )


def test_a_server_that_could_not_start_again_is_not_told_to_claim_more() -> None:
    """Half of 80 GiB is claimed and 38 are held by another program: nothing is left over."""
    view = engine()
    on = cards((view,), held_gib={view.engine: 40.3}, others_gib=39.0)

    assert share_of(view, on) == "GPU 0 has nothing to spare"


def _with_share(ratio: float) -> EngineOptions:
    return options(gpu_memory_utilization=ratio)
