"""The house: every module has a floor, and imports point down only."""

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "exporter" / "kvheadroom"

# Lowest first. A module may import from its own floor and from any below it.
FLOORS = (
    {"__init__", "defaults", "errors", "own_words", "redaction", "units"},
    {"model"},
    {"engine"},
    {"readings"},
    {"continuity"},
    {"live"},
    {"node"},
    {"poll"},
    {"faces"},
    {"demo"},
    {"plan"},
    {"strict_yaml"},
    {"settings", "settings_file"},
    {"logs", "fit_command", "health_check", "plan_command", "watched", "web_config"},
    {"daemon", "top_command"},
    {"cli_options"},
    {"cli"},
    {"__main__"},
)
# Floors that a notebook may import: nothing but the standard library and lower floors.
DOMAIN = {
    "defaults",
    "errors",
    "redaction",
    "units",
    "model",
    "engine",
    "readings",
    "continuity",
    "live",
}
# Not simply downwards: what the design allows each of these to see.
NARROWER = {
    "node": {
        "__init__",
        "errors",
        "own_words",
        "redaction",
        "units",
        "readings",
        "continuity",
        "node",
    },
    # Simulated sources give what the real ones give: a look at the processes tells of servers.
    "demo": {"__init__", "errors", "units", "engine", "readings", "live", "node", "poll", "demo"},
    "faces": {"__init__", "errors", "units", "readings", "live", "faces"},
    # Offline commands read files, and nothing that runs.
    "plan": {
        "__init__",
        "defaults",
        "errors",
        "units",
        "model",
        "engine",
        "readings",
        "node",
        "plan",
    },
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def floor_name(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "kvheadroom":
                names |= {f"kvheadroom.{alias.name}" for alias in node.names}
            else:
                names.add(node.module)
    return names


def _without_type_checking(tree: ast.Module) -> ast.Module:
    """Drop what only a type checker imports: nothing of it runs."""
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    return tree


def imported_floors(path: Path) -> set[str]:
    inside = {name for name in imported_modules(path) if name.startswith("kvheadroom")}
    found = {name.split(".")[1] if "." in name else "__init__" for name in inside}
    return {"__init__" if name.startswith("__version") else name for name in found}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    """A module imports from its own floor or a lower one, and every module has a floor."""
    height = {name: number for number, names in enumerate(FLOORS) for name in names}

    own = floor_name(path)

    assert own in height, f"give {own} a floor in {Path(__file__).name}"
    upward = {name for name in imported_floors(path) if height[name] > height[own]}
    assert not upward


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_floor_sees_only_what_the_design_gives_it(path: Path) -> None:
    """The outside world knows no meaning, and the faces know no sources."""
    allowed = NARROWER.get(floor_name(path))

    assert allowed is None or imported_floors(path) <= allowed


def test_the_domain_is_standard_library_only() -> None:
    """What a notebook imports pulls in no third-party library."""
    allowed = sys.stdlib_module_names | {"kvheadroom"}

    for path in modules():
        if floor_name(path) in DOMAIN:
            roots = {name.split(".")[0] for name in imported_modules(path)}
            assert roots <= allowed, path


def test_no_floor_is_empty() -> None:
    """What the house names is there; a floor that has gone is struck out here too."""
    assert set().union(*FLOORS) <= {floor_name(path) for path in modules()}
