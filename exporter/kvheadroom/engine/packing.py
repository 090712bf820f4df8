"""Group layers whose pages differ, where a block holds the pages of all its layers side by side."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kvheadroom.engine.specs import Placed, ceil_div


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers of one type.

    Attributes:
        members: The layers, in order.
        by_page: The same by page size, bytes.
    """

    members: Sequence[Placed]
    by_page: dict[int, list[Placed]]

    @property
    def repeats(self) -> int:
        """Most layers of one page size."""
        return max(len(alike) for alike in self.by_page.values())

    @property
    def balanced(self) -> bool:
        """Whether there are equally many layers of each page size: a pattern that repeats."""
        return len({len(alike) for alike in self.by_page.values()}) == 1

    def widest_bytes(self, groups: int) -> int:
        """Return the page bytes of the largest of *groups* that the layers are dealt to."""
        return sum(ceil_div(len(alike), groups) * page for page, alike in self.by_page.items())


def packed_groups(buckets: Sequence[Sequence[Placed]]) -> list[list[Placed]]:
    """Return *buckets* of one type each, split so that their groups fill a block alike.

    The largest balanced bucket of several page sizes stays whole; the other balanced ones are split
    towards it. States are split further, so that they never widen the block.
    """
    known = [_Bucket(members, _by_page(members)) for members in buckets]
    floor = max(
        (bucket.repeats for bucket in known if bucket.balanced and len(bucket.by_page) > 1),
        default=0,
    )
    repeats = _least_padding([b.repeats for b in known if b.balanced], floor) if floor else None
    numbers = [
        ceil_div(bucket.repeats, repeats) if bucket.balanced and repeats else 1 for bucket in known
    ]
    anchor_bytes = max(
        bucket.widest_bytes(len(bucket.members) if _is_state(bucket, repeats) else number)
        for bucket, number in zip(known, numbers, strict=True)
    )
    groups: list[list[Placed]] = []
    for bucket, number in zip(known, numbers, strict=True):
        if _is_state(bucket, repeats):
            fitting = max(anchor_bytes // bucket.members[0][1].page_bytes, 1)
            groups += _dealt(bucket, max(number, ceil_div(len(bucket.members), fitting)))
        else:
            groups += _dealt(bucket, number)
    return groups


def _is_state(bucket: _Bucket, repeats: int | None) -> bool:
    """Return whether one layer of *bucket* may make a group."""
    kind = bucket.members[0][1].kind
    windowed = kind in {"SlidingWindowSpec", "SlidingWindowMLASpec"}
    return kind == "MambaSpec" or (repeats is None and windowed)


def _dealt(bucket: _Bucket, number: int) -> list[list[Placed]]:
    if number == 1:
        return [list(bucket.members)]
    pattern = list(zip(*bucket.by_page.values(), strict=False))
    return [
        [placed for repeat in pattern[index::number] for placed in repeat]
        for index in range(number)
    ]


def _by_page(members: Sequence[Placed]) -> dict[int, list[Placed]]:
    pages: defaultdict[int, list[Placed]] = defaultdict(list)
    for placed in members:
        pages[placed[1].page_bytes].append(placed)
    return dict(pages)


def _least_padding(counts: Sequence[int], floor: int) -> int:
    """Return the group size from *floor* up that pads *counts* least; the larger of equals."""
    return min(
        range(floor, max(*counts, floor) + 1),
        key=lambda size: (sum(-count % size for count in counts), -size),
    )
