// Panel plugins over Grafana's own visualization components; the plugins proper are not published.
import {
  FieldColorModeId,
  PanelPlugin,
  getFieldDisplayValues,
  identityOverrideProcessor,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
} from '@grafana/data';
import { BigValue, Table, TimeSeries, useTheme2 } from '@grafana/ui';

const property = (id, path = id, isCustom = false) => ({
  id,
  path,
  name: id,
  isCustom,
  editor: () => null,
  override: () => null,
  process: identityOverrideProcessor,
  shouldApply: () => true,
  getItemsCount: () => 0,
});

const STANDARD = [
  'displayName', 'unit', 'decimals', 'min', 'max', 'noValue', 'color', 'thresholds', 'mappings',
  'links', 'fieldMinMax', 'filterable',
];

export function registerStandards() {
  standardEditorsRegistry.setInit(() => []);
  standardFieldConfigEditorRegistry.setInit(() => STANDARD.map((id) => property(id)));
}

const GRAPH = [
  'drawStyle', 'lineInterpolation', 'lineWidth', 'fillOpacity', 'gradientMode', 'lineStyle',
  'showPoints', 'pointSize', 'stacking', 'axisPlacement', 'axisSoftMin', 'axisSoftMax',
  'axisLabel', 'axisColorMode', 'axisBorderShow', 'axisCenteredZero', 'scaleDistribution',
  'thresholdsStyle', 'hideFrom', 'spanNulls', 'insertNulls', 'barAlignment', 'barWidthFactor',
];
const TABLE = ['cellOptions', 'align', 'width', 'minWidth', 'filterable', 'inspect', 'hidden'];

function plugin(Component, custom, defaults) {
  const made = new PanelPlugin(Component);
  made.useFieldConfig({
    standardOptions: { color: { defaultValue: { mode: FieldColorModeId.PaletteClassic } } },
    useCustomConfig: (builder) => {
      for (const name of custom) {
        builder.addCustomEditor({
          ...property(name),
          defaultValue: defaults[name],
        });
      }
    },
  });
  return made;
}

function Graph({ data, width, height, timeRange, options }) {
  if (!data.series.some((frame) => frame.length)) {
    return <div>No data</div>;
  }
  return (
    <TimeSeries
      frames={data.series}
      structureRev={data.structureRev}
      width={width}
      height={height}
      timeRange={timeRange}
      timeZone="utc"
      legend={{ calcs: [], ...options.legend }}
      options={options}
    />
  );
}

function Stat({ data, width, height, options, fieldConfig, replaceVariables, timeZone }) {
  const theme = useTheme2();
  const values = getFieldDisplayValues({
    fieldConfig,
    reduceOptions: options.reduceOptions,
    replaceVariables,
    theme,
    data: data.series,
    timeZone,
  });
  if (!values.length || !data.series.length) {
    return <div>No data</div>;
  }
  const each = width / values.length;
  return (
    <div style={{ display: 'flex' }}>
      {values.map((value, place) => (
        <BigValue
          key={place}
          value={value.display}
          width={each}
          height={height}
          theme={theme}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          textMode={options.textMode}
          count={values.length}
        />
      ))}
    </div>
  );
}

function Rows({ data, width, height, options, timeRange }) {
  const [frame] = data.series;
  if (!frame?.length) {
    return <div>No data</div>;
  }
  return (
    <Table
      data={frame}
      width={width}
      height={height}
      initialSortBy={options.sortBy}
      showTypeIcons={false}
      timeRange={timeRange}
      cellHeight="sm"
    />
  );
}

export const plugins = {
  timeseries: plugin(Graph, GRAPH, {
    drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0,
    showPoints: 'auto', pointSize: 5, axisPlacement: 'auto',
    stacking: { mode: 'none', group: 'A' }, scaleDistribution: { type: 'linear' },
    hideFrom: { tooltip: false, viz: false, legend: false },
  }),
  stat: plugin(Stat, [], {}),
  table: plugin(Rows, TABLE, { cellOptions: { type: 'auto' }, align: 'auto', inspect: false }),
};
