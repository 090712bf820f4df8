// Panel plugins over Grafana's own visualization components; the plugins proper are not published.
import {
  FieldColorModeId,
  PanelPlugin,
  formattedValueToString,
  getFieldDisplayName,
  getFieldDisplayValues,
  identityOverrideProcessor,
  standardEditorsRegistry,
  standardFieldConfigEditorRegistry,
} from '@grafana/data';
import { BigValue, TimeSeries, useTheme2 } from '@grafana/ui';

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

function plugin(Component, custom, defaults, color = FieldColorModeId.Thresholds) {
  const made = new PanelPlugin(Component);
  made.useFieldConfig({
    standardOptions: { color: { defaultValue: { mode: color } } },
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

const CELL = { padding: '5px 10px', whiteSpace: 'nowrap', textAlign: 'left' };

/** A plain table: values, units, words and colors are Grafana's, the drawing is not. */
function Rows({ data, height, options }) {
  const theme = useTheme2();
  const [frame] = data.series;
  if (!frame?.length) {
    return <div>No data</div>;
  }
  const fields = frame.fields.map((field) => ({ field, name: getFieldDisplayName(field, frame) }));
  const [{ displayName, desc } = {}] = options.sortBy ?? [];
  const by = fields.find(({ name }) => name === displayName);
  if (!by) {
    throw new Error(`sorted by ${displayName}, which is none of ${fields.map(({ name }) => name)}`);
  }
  const worth = (row) => by.field.values[row] ?? Infinity;
  const order = [...Array(frame.length).keys()].sort((a, b) => (desc ? -1 : 1) * (worth(a) - worth(b)));
  return (
    <div style={{ height, overflow: 'hidden' }}>
      <table style={{ width: '100%', borderCollapse: 'collapse' }}>
        <thead>
          <tr>{fields.map(({ name }) => <th key={name} style={{ ...CELL, color: theme.colors.text.link }}>{name}</th>)}</tr>
        </thead>
        <tbody>
          {order.map((row) => (
            <tr key={row} style={{ borderTop: `1px solid ${theme.colors.border.weak}` }}>
              {fields.map(({ name, field }) => {
                const value = field.values[row];
                const shown = field.display(value);
                const colored = field.config.custom?.cellOptions?.type === 'color-text';
                return (
                  <td key={name} style={{ ...CELL, color: colored ? shown.color : undefined }}>
                    {value == null ? '' : formattedValueToString(shown)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export const plugins = {
  timeseries: plugin(Graph, GRAPH, {
    drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0,
    showPoints: 'auto', pointSize: 5, axisPlacement: 'auto',
    stacking: { mode: 'none', group: 'A' }, scaleDistribution: { type: 'linear' },
    hideFrom: { tooltip: false, viz: false, legend: false },
  }, FieldColorModeId.PaletteClassic),
  stat: plugin(Stat, [], {}),
  table: plugin(Rows, TABLE, { cellOptions: { type: 'auto' }, align: 'auto', inspect: false }),
};
