/** One pipeline: the graph of its teams with what flows, waits and fails. */

import { ago, head, note, section, table, tag, tile, tiles } from "../parts.js";
import { brief, count, plural, rate, span } from "../format.js";
import { deadLetters, figure } from "../columns.js";
import { drawing } from "../graph.js";
import { h } from "../dom.js";
import { points } from "../history.js";
import { spark } from "../charts.js";
import { stateTag } from "./pipelines.js";
import { to } from "../router.js";

const watchOf = (at) => `pipeline:${at.params.pipeline}`;
const TEAM_TONES = { working: "good", retrying: "warn", failing: "bad", failed: "bad" };

/** Where there is no room for columns of teams, they stand one below the other. */
const narrow = matchMedia("(max-width: 60rem)");

const sum = (teams, name) => teams.reduce((total, team) => total + (team[name] ?? 0), 0);

export const page = {
  title: (at) => at.params.pipeline,
  watch: (at) => [watchOf(at)],
  view(docs, at) {
    const pipeline = docs[watchOf(at)];
    const { teams, edges } = pipeline;
    const chart = (name) => spark(points(watchOf(at), name), at.nowMs, name);
    return [
      head(pipeline.pipeline, {
        crumbs: [["Pipelines", "/pipelines"]],
        note: h(
          "span",
          null,
          stateTag(pipeline.state),
          " ",
          h("span", { class: "soft" }, "last report ", ago(pipeline.reported_ms, at.nowMs)),
        ),
        tools: [at.live()],
      }),
      pipeline.state === "silent"
        ? note(
            "warn",
            "Its driver is silent",
            `The last report came ${span(pipeline.silent_ms)} ago, and this page shows it. Check ` +
              "whether the driver's process is alive; a standby would have taken over.",
          )
        : null,
      teams
        .filter((team) => team.last_error)
        .map((team) => note("bad", `Team ${team.team}`, team.last_error)),
      tiles(
        tile("Jobs", rate(sum(teams, "jobs_per_s")), { chart: chart("rate") }),
        tile("Lag", brief(sum(teams, "lag")), { chart: chart("lag") }),
        tile("Dead letters", brief(sum(teams, "dead_letters")), {
          href: "/dead?source=topic",
          tone: sum(teams, "dead_letters") ? "bad" : "",
          note: "since the driver started",
        }),
        tile("Term", count(pipeline.term), { note: pipeline.driver }),
        tile("Running for", pipeline.started_ms ? span(at.nowMs - pipeline.started_ms) : "–"),
      ),
      section(
        "Graph",
        { note: plural(teams.length, "team") },
        h(
          "div",
          { class: "card flush" },
          h(
            "div",
            { class: "graph" },
            drawing(teams, edges, { label: inWords(edges), down: narrow.matches }),
          ),
        ),
      ),
      section("Teams", {}, list(teams, at)),
    ];
  },
};

const inWords = (edges) =>
  edges.length > 0
    ? `Jobs flow ${edges.map((edge) => `from ${edge.from} to ${edge.to}`).join(", ")}`
    : "Teams without connections";

function list(teams, at) {
  return table(at, {
    label: "Teams",
    rows: teams,
    key: (row) => row.team,
    columns: [
      {
        name: "team",
        label: "Team",
        kind: "name",
        sort: (row) => row.team,
        cell: (row) => row.team,
      },
      {
        name: "state",
        label: "State",
        sort: (row) => row.state,
        cell: (row) => tag(row.state, TEAM_TONES[row.state] ?? "", { dot: true }),
      },
      figure("rate", "Jobs", { field: "jobs_per_s", show: rate }),
      figure("lag", "Lag"),
      figure("workers", "Workers"),
      figure("failures", "Restarts"),
      deadLetters("topic", (row) => row.dead, { field: "dead_letters" }),
      {
        name: "topics",
        label: "Topics",
        cell: (row) =>
          h(
            "span",
            { class: "tags" },
            [
              ["input", row.input],
              ["results", row.results],
            ]
              .filter(([, name]) => name)
              .map(([label, name]) =>
                h(
                  "a",
                  { class: "button small", href: to("topics", name), title: name, key: label },
                  label,
                ),
              ),
          ),
      },
    ],
  });
}
