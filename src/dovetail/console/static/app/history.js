/**
 * The last minutes of a few figures, kept in this tab for the small charts.
 *
 * A document is sent when it changed, so between two points the figure stayed as it was.
 */

const SPAN_MS = 5 * 60_000;
const POINTS_MAX = 600;

const FIGURES = {
  overview: (doc) => ({
    rate: doc.totals?.records_per_s,
    lag: doc.totals?.lag,
    due: doc.totals?.due,
  }),
  topic: (doc) => ({ rate: doc.records_per_s }),
  group: (doc) => ({ lag: doc.lag, rate: doc.consumed_per_s }),
  timeline: (doc) => ({
    due: doc.due,
    rate: doc.done_per_second,
    arrivals: doc.arrivals_per_second,
  }),
  pipeline: (doc) => ({ rate: sum(doc.teams, "jobs_per_s"), lag: sum(doc.teams, "lag") }),
};

const series = new Map();

function sum(rows, name) {
  return (rows ?? []).reduce((total, row) => total + (row[name] ?? 0), 0);
}

/** Notes the figures of a document that has just arrived. */
export function note(watch, doc, nowMs) {
  const figures = FIGURES[watch.split(":")[0]];
  if (!figures) return;
  for (const [name, value] of Object.entries(figures(doc))) {
    if (value === null || value === undefined) continue;
    const key = `${watch} ${name}`;
    const points = series.get(key) ?? [];
    points.push([nowMs, value]);
    while (points.length > POINTS_MAX || (points.length > 1 && points[1][0] < nowMs - SPAN_MS))
      points.shift();
    series.set(key, points);
  }
}

/** Points [time, value] of a figure, oldest first. */
export function points(watch, name) {
  return series.get(`${watch} ${name}`) ?? [];
}
