// The dashboards' JSON in the types of Grafana's schema. Enums are written as their values. What
// the schema does not have is stated here: an annotation's expr, the fields by which the SDK tells
// kinds of variables apart, and the queries of a data source.
import type { Dashboard as Whole, GraphFieldConfig, Panel as Any, RowPanel } from '@grafana/schema';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

type Numeric<T extends number> = number extends T
  ? T
  : `${T}` extends `${infer N extends number}` ? N : T;
type Loose<T> = T extends string
  ? `${T}`
  : T extends number
    ? Numeric<T>
    : T extends (infer One)[]
      ? Loose<One>[]
      : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;

interface Query {
  refId: string;
  expr: string;
  datasource: { type: 'prometheus'; uid: string };
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  format?: 'table' | 'time_series';
}
type Fields = NonNullable<Loose<Any>['fieldConfig']>;
type Custom<T> = Omit<Fields, 'defaults'> & {
  defaults: Omit<Fields['defaults'], 'custom'> & { custom?: Loose<T> };
};
type Base = Omit<Loose<Any>, 'type' | 'options' | 'fieldConfig' | 'targets'> & { targets: Query[] };
type Known =
  | (Base & {
      type: 'timeseries';
      options: Loose<timeseries.Options>;
      fieldConfig: Custom<GraphFieldConfig>;
    })
  | (Base & {
      type: 'stat';
      options: Loose<Partial<stat.Options>>;
      fieldConfig: Custom<Record<string, never>>;
    })
  | (Base & {
      type: 'table';
      options: Loose<Partial<table.Options>>;
      fieldConfig: Custom<Partial<table.FieldConfig>>;
    });
type Heading = Omit<Loose<RowPanel>, 'panels'> & { panels: Known[] };
type Note = NonNullable<NonNullable<Loose<Whole>['annotations']>['list']>[number];
type Noted = Omit<Note, 'target'> & {
  expr: string;
  titleFormat: string;
  textFormat: string;
  target: Query;
};
type Variable = NonNullable<NonNullable<Loose<Whole>['templating']>['list']>[number] & {
  auto?: boolean;
  auto_count?: number;
  auto_min?: string;
  definition?: string;
};
export type Board = Omit<Loose<Whole>, 'panels' | 'annotations' | 'templating'> & {
  templating: { list: Variable[] };
  panels: (Known | Heading)[];
  annotations: { list: Noted[] };
};
