"""The dashboards against the types that Grafana itself is written with."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.grafana.boards import BOARDS, Board, load, panels_of
from tests.grafana.node_parts import HERE, NODE_MODULES, npm_part

pytestmark = pytest.mark.parts


def compile_boards(folder: Path, boards: dict[str, Board]) -> str:
    """Return what the compiler has to say of *boards*."""
    compiler = npm_part(".bin/tsc")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    shutil.copy(HERE / "types.ts", folder)
    for name, board in boards.items():
        literal = "import type { Board } from './types';\nexport const board: Board = "
        (folder / f"{name}.ts").write_text(literal + json.dumps(board, indent=1) + ";\n")
    options = {
        "strict": True, "noEmit": True, "skipLibCheck": True, "module": "esnext",
        "moduleResolution": "bundler", "target": "esnext", "types": [],
    }  # fmt: skip
    files = [f"{name}.ts" for name in boards]
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": files}))
    compiled = subprocess.run(
        [compiler, "-p", "."], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return compiled.stdout + compiled.stderr


def test_grafana_s_types_take_every_board(tmp_path: Path) -> None:
    """No key is misspelled, no value of the wrong kind."""
    assert compile_boards(tmp_path, {name: load(name) for name in BOARDS}) == ""


def first(board: Board, kind: str) -> dict[str, Any]:
    return next(panel for panel in panels_of(board) if panel["type"] == kind)


def misspell_unit(board: Board) -> None:
    defaults = first(board, "stat")["fieldConfig"]["defaults"]
    defaults["units"] = defaults.pop("unit")


def wrong_threshold_style(board: Board) -> None:
    custom = first(board, "timeseries")["fieldConfig"]["defaults"]["custom"]
    custom["thresholdsStyle"] = {"mode": "dotted"}


def wrong_color_mode(board: Board) -> None:
    first(board, "stat")["options"]["colorMode"] = "text"


def misspell_legend(board: Board) -> None:
    target = first(board, "timeseries")["targets"][0]
    target["legend_format"] = target.pop("legendFormat")


def unknown_kind(board: Board) -> None:
    first(board, "stat")["type"] = "single-stat"


def place_as_text(board: Board) -> None:
    first(board, "table")["gridPos"]["w"] = "24"


def wrong_legend_mode(board: Board) -> None:
    first(board, "timeseries")["options"]["legend"]["displayMode"] = "side"


@pytest.mark.parametrize(
    "mistake",
    [
        misspell_unit, wrong_threshold_style, wrong_color_mode, misspell_legend, unknown_kind,
        place_as_text, wrong_legend_mode,
    ],
    ids=lambda mistake: mistake.__name__,
)  # fmt: skip
def test_a_planted_mistake_is_refused(tmp_path: Path, mistake: Callable[[Board], None]) -> None:
    """The test above can fail, in each way that a hand would make a dashboard wrong."""
    board = load("fleet")
    mistake(board)

    assert "error TS" in compile_boards(tmp_path, {"fleet": board})
