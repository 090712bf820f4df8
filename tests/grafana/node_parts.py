"""Grafana's own libraries, as ``npm install`` puts them beside these tests."""

from pathlib import Path

from tests.parts.needs import give_up, require

HERE = Path(__file__).parent
NODE_MODULES = HERE / "node_modules"


def npm_part(name: str) -> Path:
    """Return a file of the installed packages, or give the test up."""
    require("node")
    part = NODE_MODULES / name
    if not part.exists():
        give_up(f"{name} is not installed: make grafana-parts")
    return part.absolute()
