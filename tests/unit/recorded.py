"""Pages of a real server recorded one a second, as readings."""

import gzip
import json
from pathlib import Path
from typing import NamedTuple

from kvheadroom.node.page_reader import PageReader
from kvheadroom.node.vllm_names import MEANING_OF
from kvheadroom.node.vllm_page import read_server_page
from kvheadroom.readings import EngineReading

_FOLDER = Path(__file__).parent.parent / "evidence"


class Recorded(NamedTuple):
    """One page and when it was fetched."""

    at_seconds: float
    reading: EngineReading


def recorded(name: str) -> list[Recorded]:
    """Return every page of ``tests/evidence/<name>.jsonl.gz``, the first engine of each."""
    reader = PageReader(MEANING_OF)
    lines = gzip.decompress((_FOLDER / f"{name}.jsonl.gz").read_bytes()).splitlines()
    pages = [json.loads(line) for line in lines]
    return [
        Recorded(page["t"], read_server_page(page["page"].encode(), reader).engines[0])
        for page in pages
    ]
