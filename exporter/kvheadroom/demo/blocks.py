"""A pool of KV blocks that shares full prefixes and reuses the least recently used block."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

Content = tuple[str, int]
"""What a full block holds: whose tokens, and which block of them."""


class BlockPool:
    """Blocks with a reference count each; a block without references is free, cached or not.

    Source:
        vLLM 0.32: a cached block nobody refers to counts as free, and the
        first block (the null block) is never handed out.
    """

    def __init__(self, total_blocks: int) -> None:
        self.usable_blocks = total_blocks - 1
        self._references = [0] * total_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total_blocks))
        self._block_of: dict[Content, int] = {}
        self._content_of: dict[int, Content] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks no request refers to."""
        return len(self._free)

    @property
    def used_ratio(self) -> float:
        """Share of usable blocks that requests refer to, 0-1; 0 for a pool without any."""
        return 1 - len(self._free) / self.usable_blocks if self.usable_blocks else 0.0

    def cached_run(self, contents: Iterable[Content]) -> list[int]:
        """Return the blocks that hold the longest cached run of *contents*, from its start."""
        run = []
        for content in contents:
            block = self._block_of.get(content)
            if block is None:
                break
            run.append(block)
        return run

    def fits(self, new_blocks: int, shared: Sequence[int]) -> bool:
        """Whether *new_blocks* and the free ones among *shared* can all be taken now."""
        revived = sum(not self._references[block] for block in shared)
        return new_blocks + revived <= len(self._free)

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of *blocks*."""
        for block in blocks:
            if not self._references[block]:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Hand out *count* blocks, those freed longest ago first; their old content is gone.

        Raises:
            IndexError: Fewer than *count* blocks are free.
        """
        if count > len(self._free):
            raise IndexError(f"take {count} blocks: {len(self._free)} are free")
        taken = []
        for _ in range(count):
            block, _nothing = self._free.popitem(last=False)
            content = self._content_of.pop(block, None)
            if content is not None:
                del self._block_of[content]
            self._references[block] = 1
            taken.append(block)
        return taken

    def remember(self, block: int, content: Content) -> None:
        """Note that *block* is full and holds *content*, unless another block is known to."""
        if content not in self._block_of and block not in self._content_of:
            self._block_of[content] = block
            self._content_of[block] = content

    def release(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each of *blocks*.

        The last block of a sequence is reused first: a prefix is worth more than its tail.
        """
        for block in reversed(blocks):
            self._references[block] -= 1
            if not self._references[block]:
                self._free[block] = None
