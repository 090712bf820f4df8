// A data source for Grafana's scenes that asks a real Prometheus, as Grafana's own would.
import { FieldType, LoadingState } from '@grafana/data';
import { RuntimeDataSource, sceneGraph } from '@grafana/scenes';
import { from } from 'rxjs';

const SCRAPE_SECONDS = 15;

/** What queries came to grief over, for the report. */
export const failures = [];

const inRegex = (text) => String(text).replace(/[\\^$*+?.()|[\]{}]/g, '\\\\$&');
const inString = (text) => String(text).replaceAll('\\', '\\\\').replaceAll("'", "\\'");

/** How Prometheus' data source writes a variable: one that can have several values is a regex. */
const written = (value, { multi, includeAll } = {}) => {
  if (!multi && !includeAll) {
    return inString(value);
  }
  const values = Array.isArray(value) ? value : [value];
  return values.length === 1 ? inRegex(values[0]) : `(${values.map(inRegex).join('|')})`;
};

export class Prometheus extends RuntimeDataSource {
  constructor(uid, url, now) {
    super('prometheus', uid);
    this.url = url;
    this.now = now;
  }

  async get(path, parameters) {
    const answer = await fetch(`${this.url}/api/v1/${path}?${new URLSearchParams(parameters)}`);
    const body = await answer.json();
    if (body.status !== 'success') {
      throw new Error(`${body.error}: ${parameters.query ?? parameters['match[]']}`);
    }
    return body.data;
  }

  async query(request) {
    const origin = request.scopedVars.__sceneObject.value.valueOf();
    const step = Math.max(SCRAPE_SECONDS, Math.round(request.intervalMs / 1000));
    const rate = Math.max(step + SCRAPE_SECONDS, 4 * SCRAPE_SECONDS);
    const frames = await Promise.all(
      request.targets.map(async (target) => {
        const own = target.expr.replaceAll('$__rate_interval', `${rate}s`);
        const query = sceneGraph.interpolate(origin, own, request.scopedVars, written);
        const end = request.range.to.unix();
        if (target.instant) {
          const { result } = await this.get('query', { query, time: end });
          return target.format === 'table' ? table(target, result) : series(target, result);
        }
        const start = request.range.from.unix();
        const { result } = await this.get('query_range', { query, start, end, step });
        return series(target, result, step * 1000);
      }),
    );
    return { data: frames.flat(), state: LoadingState.Done };
  }

  async metricFindQuery(query, options) {
    const text = typeof query === 'string' ? query : query.query;
    const origin = options.scopedVars.__sceneObject.value.valueOf();
    const filled = sceneGraph.interpolate(origin, text, options.scopedVars, written);
    const [, selector, label] = filled.match(/^label_values\((.+), (\w+)\)$/);
    const values = await this.get(`label/${label}/values`, {
      'match[]': selector,
      start: this.now - 900,
      end: this.now,
    });
    return values.map((value) => ({ text: value }));
  }
}

function named(target, metric) {
  if (target.legendFormat) {
    return target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => metric[label] ?? '');
  }
  return undefined;
}

function series(target, result, interval) {
  return result.map(({ metric, values, value }) => {
    const points = values ?? [value];
    const displayNameFromDS = named(target, metric) ?? JSON.stringify(metric);
    return {
      refId: target.refId,
      length: points.length,
      fields: [
        {
          name: 'Time',
          type: FieldType.time,
          config: { interval },
          values: points.map((p) => p[0] * 1000),
        },
        {
          name: 'Value',
          type: FieldType.number,
          labels: metric,
          config: { displayNameFromDS },
          values: points.map((p) => finite(p[1])),
        },
      ],
    };
  });
}

function table(target, result) {
  const labels = [...new Set(result.flatMap((row) => Object.keys(row.metric)))];
  const column = (name, type, values) => ({ name, type, config: {}, values });
  return [
    {
      refId: target.refId,
      length: result.length,
      fields: [
        column('Time', FieldType.time, result.map((row) => row.value[0] * 1000)),
        ...labels.map((label) =>
          column(label, FieldType.string, result.map((row) => row.metric[label])),
        ),
        column(
          target.valueName ?? 'Value',
          FieldType.number,
          result.map((row) => finite(row.value[1])),
        ),
      ],
    },
  ];
}

const finite = (text) => (Number.isFinite(Number(text)) ? Number(text) : null);

export const runRequest = (source, request) =>
  from(
    source.query(request).then(
      ({ data }) => ({ series: data, state: LoadingState.Done, timeRange: request.range, request }),
      (error) => {
        failures.push(error.message);
        return {
          series: [],
          state: LoadingState.Error,
          errors: [{ message: error.message }],
          timeRange: request.range,
          request,
        };
      },
    ),
  );
