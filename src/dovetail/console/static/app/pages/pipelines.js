/** Pipelines whose drivers have reported: do they run, how far behind are they. */

import { ago, tag } from "../parts.js";
import { figure, named } from "../columns.js";
import { listing } from "../list.js";
import { plural, rate } from "../format.js";
import { to } from "../router.js";

const TONES = { running: "good", stopped: "", silent: "warn", retrying: "warn", failed: "bad" };

export const stateTag = (state) =>
  tag(state, TONES[state] ?? "", {
    dot: true,
    title:
      state === "silent"
        ? "No report for 30 seconds: the driver died, or cannot reach the cluster"
        : null,
  });

export const page = {
  title: () => "Pipelines",
  watch: () => ["pipelines"],
  view({ pipelines: { pipelines } }, at) {
    return listing(at, {
      title: "Pipelines",
      rows: pipelines,
      name: "pipeline",
      note: (rows) => `${plural(rows.length, "pipeline")} of teams on Spark`,
      columns: [
        named("pipeline", "Pipeline", (row) => to("pipelines", row.pipeline)),
        {
          name: "state",
          label: "State",
          sort: (row) => row.state,
          cell: (row) => stateTag(row.state),
        },
        figure("teams", "Teams"),
        figure("rate", "Jobs", { field: "jobs_per_s", show: rate }),
        figure("lag", "Lag"),
        figure("failures", "Restarts"),
        figure("dead", "Dead letters"),
        {
          name: "reported",
          label: "Last report",
          kind: "tight",
          cell: (row) => ago(row.reported_ms, at.nowMs),
        },
      ],
      nothing: [
        "No pipeline has run here",
        "A pipeline shows up as soon as its driver starts. To run the example shop:",
        { command: "dovetail pipeline run examples.orders.shop:orders" },
      ],
    });
  },
};
