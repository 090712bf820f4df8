// Draws one committed dashboard from a live Prometheus with Grafana's own libraries.
// The address says which: ?board=fleet&prometheus=http://…&from=…&to=…&instance=…
import { EventBusSrv, standardTransformers, standardTransformersRegistry } from '@grafana/data';
import { setAppEvents, setPluginImportUtils, setRunRequest } from '@grafana/runtime';
import {
  ConstantVariable, EmbeddedScene, QueryVariable, SceneControlsSpacer, SceneDataTransformer,
  SceneGridItem, SceneGridLayout, SceneGridRow, SceneQueryRunner, SceneTimeRange,
  SceneVariableSet, TextBoxVariable, VariableValueSelectors, VizPanel, sceneUtils,
} from '@grafana/scenes';
import { GlobalStyles } from '@grafana/ui';
import { createRoot } from 'react-dom/client';
import { MemoryRouter } from 'react-router-dom';
import { Prometheus, failures, runRequest } from './prometheus.js';
import { plugins, registerStandards } from './plugins.jsx';
import { report } from './report.js';

const UID = 'prometheus-under-test';
const asked = Object.fromEntries(new URLSearchParams(location.search));
const source = new Prometheus(UID, asked.prometheus, Number(asked.to));

function variable(model) {
  const { name, label } = model;
  const value = asked[name];
  switch (model.type) {
    case 'datasource':
      return new ConstantVariable({ name, value: UID, hide: 2 });
    case 'textbox':
      return new TextBoxVariable({ name, label, value: model.query });
    default:
      return new QueryVariable({
        name,
        label,
        datasource: { uid: UID, type: 'prometheus' },
        query: model.query,
        refresh: model.refresh,
        sort: model.sort,
        hide: model.hide,
        isMulti: model.multi,
        includeAll: model.includeAll,
        allValue: model.allValue,
        defaultToAll: model.includeAll,
        ...(value && { value: model.multi ? [value] : value }),
      });
  }
}

function data(panel) {
  const several = panel.targets.length > 1;
  const runner = new SceneQueryRunner({
    datasource: { uid: UID, type: 'prometheus' },
    minInterval: panel.interval,
    maxDataPoints: panel.maxDataPoints ?? 700,
    queries: panel.targets.map((target) => ({
      ...target,
      datasource: undefined,
      valueName: several ? `Value #${target.refId}` : 'Value',
    })),
  });
  return new SceneDataTransformer({ $data: runner, transformations: panel.transformations ?? [] });
}

function item(panel, top) {
  const { x, y, w, h } = panel.gridPos;
  return new SceneGridItem({
    x, y: y + top, width: w, height: h,
    body: new VizPanel({
      title: panel.title,
      description: panel.description,
      pluginId: panel.type,
      options: panel.options ?? {},
      fieldConfig: panel.fieldConfig ?? { defaults: {}, overrides: [] },
      $data: data(panel),
    }),
  });
}

/** Headings with the panels under them, repeated for each value as Grafana does. */
async function sections(board) {
  const found = [];
  for (const panel of board.panels) {
    if (panel.type === 'row') {
      found.push({ row: panel, panels: [...(panel.panels ?? [])] });
    } else {
      found.at(-1).panels.push(panel);
    }
  }
  const repeated = await Promise.all(found.map(async (section) => {
    const over = section.row.repeat;
    if (!over) {
      return [section];
    }
    const model = board.templating.list.find(({ name }) => name === over);
    const query = model.definition.replaceAll(/\$(job|instance)/g, (_, name) => asked[name] ?? '.+');
    const [, selector, label] = query.match(/^label_values\((.+), (\w+)\)$/);
    const values = await source.get(`label/${label}/values`, {
      'match[]': selector, start: Number(asked.to) - 900, end: Number(asked.to),
    });
    const shown = asked[over] ? values.filter((value) => value === asked[over]) : values;
    return shown.map((value) => JSON.parse(JSON.stringify(section).replaceAll(`$${over}`, value)));
  }));
  return repeated.flat();
}

function layout(found) {
  let shift = 0;
  let lastRow = null;
  let bottom = 0;
  const children = found.map(({ row, panels }) => {
    const opened = row.collapsed && asked.open === 'yes';
    const hidden = row.collapsed && !opened;
    const top = row.gridPos.y;
    shift = lastRow === null ? 0 : bottom - top;
    lastRow = row;
    const under = panels.map((panel) => item(panel, shift));
    const height = Math.max(0, ...panels.map(({ gridPos }) => gridPos.y + gridPos.h - top - 1));
    bottom = top + shift + 1 + (hidden ? 0 : height);
    return new SceneGridRow({
      title: row.title, isCollapsed: hidden, isCollapsible: true, x: 0, y: top + shift,
      width: 24, height: 1, children: under,
    });
  });
  return new SceneGridLayout({ children, isLazy: false });
}

async function main() {
  registerStandards();
  standardTransformersRegistry.setInit(() =>
    [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer].map(
      (one) => ({ id: one.id, name: one.name, transformation: async () => one }),
    ),
  );
  setAppEvents(new EventBusSrv());
  setRunRequest(runRequest);
  setPluginImportUtils({
    importPanelPlugin: (id) => Promise.resolve(plugins[id]),
    getPanelPluginFromCache: (id) => plugins[id],
  });
  for (const [id, plugin] of Object.entries(plugins)) {
    plugin.meta = { id, name: id, info: {}, module: '', baseUrl: '', type: 'panel' };
  }
  sceneUtils.registerRuntimeDataSource({ dataSource: source });

  const board = await (await fetch(`./json/${asked.board}.json`)).json();
  const scene = new EmbeddedScene({
    $timeRange: new SceneTimeRange({
      from: new Date(asked.from * 1000).toISOString(),
      to: new Date(asked.to * 1000).toISOString(),
    }),
    $variables: new SceneVariableSet({ variables: board.templating.list.map(variable) }),
    controls: [new VariableValueSelectors({}), new SceneControlsSpacer()],
    body: layout(await sections(board)),
  });
  createRoot(document.getElementById('root')).render(
    <MemoryRouter>
      <GlobalStyles />
      <scene.Component model={scene} />
    </MemoryRouter>,
  );
}

report(failures);
main().catch((error) => {
  document.body.dataset.failed = String(error.stack ?? error);
});
