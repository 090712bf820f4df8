"""vLLM's version as a number that compares, and the versions at which its reports changed."""

import re
from typing import Final

Version = tuple[int, int, int]

# The ``block_size`` label is the worker's own value again from here on (vLLM 0.23.0) …
BLOCK_SIZE_LABEL_SYNCED: Final[Version] = (0, 23, 0)
# … and was, after the platform's rules, until the worker began to choose (vLLM 0.18.0).
BLOCK_SIZE_CHOSEN_BY_WORKER: Final[Version] = (0, 18, 0)
# ``num_gpu_blocks`` is the sum over data-parallel engines from here on.
BLOCKS_SUMMED_OVER_ENGINES: Final[Version] = (0, 9, 0)
# Up to 0.10.1.1 the usage gauge counted the null block as used.
USAGE_WITHOUT_NULL_BLOCK: Final[Version] = (0, 10, 2)

_LEADING: Final = re.compile(r"v?(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str | None) -> Version | None:
    """Return ``(0, 10, 1)`` for ``"0.10.1.1+cpu"``; ``None`` for what starts with no version.

    Builds between releases ("0.11.1rc2.dev7") count as the release they lead to.
    """
    match = _LEADING.match(text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
