"""The dashboards against the types that Grafana itself is written with."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.grafana.boards import BOARDS, Board, load, panels_of
from tests.grafana.node_parts import NODE_MODULES, npm_part

pytestmark = pytest.mark.parts

# Enums are written as their values in JSON. What Grafana's schema does not have (an annotation's
# expr, fields of variables, the queries of a data source) is stated here.
TYPES = """
import type { Dashboard as Whole, Panel as OnePanel, RowPanel } from '@grafana/schema';
import type { GraphFieldConfig } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Loose<T> = T extends string ? `${T}` : T extends number ? (number extends T ? T : `${T}` extends `${infer N extends number}` ? N : T)
  : T extends (infer One)[] ? Loose<One>[] : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;
interface Query { refId: string; expr: string; datasource: { type: 'prometheus'; uid: string };
  legendFormat?: string; instant?: boolean; range?: boolean; format?: 'table' | 'time_series'; }
type Base = Omit<Loose<OnePanel>, 'type' | 'options' | 'fieldConfig' | 'targets'> & { targets: Query[] };
type Custom<T> = Omit<Loose<OnePanel>['fieldConfig'] & {}, 'defaults'> & {
  defaults: Omit<NonNullable<Loose<OnePanel>['fieldConfig']>['defaults'], 'custom'> & { custom?: Loose<T> } };
type Known =
  | (Base & { type: 'timeseries'; options: Loose<timeseries.Options>; fieldConfig: Custom<GraphFieldConfig> })
  | (Base & { type: 'stat'; options: Loose<Partial<stat.Options>>; fieldConfig: Custom<Record<string, never>> })
  | (Base & { type: 'table'; options: Loose<Partial<table.Options>>; fieldConfig: Custom<Partial<table.FieldConfig>> });
type Heading = Omit<Loose<RowPanel>, 'panels'> & { panels: Known[] };
type Note = NonNullable<NonNullable<Loose<Whole>['annotations']>['list']>[number];
type Variable = NonNullable<NonNullable<Loose<Whole>['templating']>['list']>[number];
export type Board = Omit<Loose<Whole>, 'panels' | 'annotations' | 'templating'> & {
  templating: { list: (Variable & { auto?: boolean; auto_count?: number; auto_min?: string; definition?: string })[] };
  panels: (Known | Heading)[];
  annotations: { list: (Omit<Note, 'target'> & { expr: string; titleFormat: string; textFormat: string;
    target: Query })[] };
};
"""


def compile_boards(folder: Path, boards: dict[str, Board]) -> str:
    """Return what the compiler has to say of *boards*."""
    compiler = npm_part(".bin/tsc")
    (folder / "node_modules").symlink_to(NODE_MODULES)
    (folder / "types.ts").write_text(TYPES)
    for name, board in boards.items():
        literal = f"import type {{ Board }} from './types';\nexport const board: Board = "
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
