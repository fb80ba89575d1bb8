/** Pipelines that have told of themselves: do they run, how far behind are they. */

import { ago, empty, head, table, tag } from "../parts.js";
import { count, plural, rate } from "../format.js";
import { h } from "../dom.js";
import { to } from "../router.js";

const TONES = { running: "good", stopped: "", silent: "warn", retrying: "warn", failed: "bad" };

export const stateTag = (state) =>
  tag(state, TONES[state] ?? "", {
    dot: true,
    title:
      state === "silent"
        ? "Its driver has said nothing for 30 seconds: it died, or cannot reach the cluster"
        : null,
  });

export const page = {
  title: () => "Pipelines",
  watch: () => ["pipelines"],
  view({ pipelines: { pipelines } }, at) {
    return [
      head("Pipelines", {
        note: `${plural(pipelines.length, "pipeline")} of teams on Spark`,
        tools: [at.live()],
      }),
      pipelines.length > 0
        ? list(pipelines, at)
        : empty(
            "No pipeline has run here",
            "A pipeline shows up as soon as its driver starts. To run the example shop:",
            {
              command: "dovetail pipeline run examples.orders.shop:orders",
            },
          ),
    ];
  },
};

function list(rows, at) {
  return table(at, {
    label: "Pipelines",
    rows,
    key: (row) => row.pipeline,
    sort: "pipeline",
    columns: [
      {
        name: "pipeline",
        label: "Pipeline",
        kind: "name",
        sort: (row) => row.pipeline,
        cell: (row) => h("a", { href: to("pipelines", row.pipeline) }, row.pipeline),
      },
      {
        name: "state",
        label: "State",
        sort: (row) => row.state,
        cell: (row) => stateTag(row.state),
      },
      { name: "teams", label: "Teams", kind: "number", cell: (row) => count(row.teams) },
      {
        name: "rate",
        label: "Works",
        kind: "number",
        sort: (row) => row.jobs_per_s,
        cell: (row) => rate(row.jobs_per_s),
      },
      {
        name: "lag",
        label: "Lag",
        kind: "number",
        sort: (row) => row.lag,
        cell: (row) => count(row.lag),
      },
      {
        name: "failures",
        label: "Restarts",
        kind: "number",
        sort: (row) => row.failures,
        cell: (row) => count(row.failures),
      },
      {
        name: "dead",
        label: "Dead letters",
        kind: "number",
        sort: (row) => row.dead,
        cell: (row) => count(row.dead),
      },
      {
        name: "reported",
        label: "Last report",
        kind: "tight",
        cell: (row) => ago(row.reported_ms, at.nowMs),
      },
    ],
  });
}
