"""Writes every dashboard to ``dashboards/json``."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from dashboards.kvheadroom_dashboards.engine import engine
from dashboards.kvheadroom_dashboards.fleet import fleet
from dashboards.kvheadroom_dashboards.node import node
from dashboards.kvheadroom_dashboards.planning import planning

FOLDER: Final = Path(__file__).resolve().parents[1] / "json"
BOARDS: Final[Mapping[str, Callable[[], str]]] = {
    "fleet": fleet,
    "node": node,
    "engine": engine,
    "planning": planning,
}
"""Name of the file, without ``.json``, to what writes it."""


def main() -> None:
    """Write them; the same catalogue gives the same bytes."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in BOARDS.items():
        (FOLDER / f"{name}.json").write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
