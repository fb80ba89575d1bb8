/** One pipeline: the graph of its teams with what flows, waits and fails. */

import { address, post } from "../api.js";
import { ago, button, field, head, note, section, table, tag, tile, tiles } from "../parts.js";
import { brief, count, plural, rate, span } from "../format.js";
import { deadLetters, figure } from "../columns.js";
import { drawing } from "../graph.js";
import { form } from "../dialog.js";
import { h } from "../dom.js";
import { points } from "../history.js";
import { reasons } from "../reasons.js";
import { say } from "../said.js";
import { share, spark } from "../charts.js";
import { stateTag } from "./pipelines.js";
import { to } from "../router.js";

const watchOf = (at) => `pipeline:${at.params.pipeline}`;
const failuresOf = (at) => `failures:${at.params.pipeline}`;
const TEAM_TONES = { working: "good", retrying: "warn", failing: "bad", failed: "bad" };

/** Where there is no room for columns of teams, they stand one below the other. */
const narrow = matchMedia("(max-width: 60rem)");

const sum = (teams, name) => teams.reduce((total, team) => total + (team[name] ?? 0), 0);

export const page = {
  title: (at) => at.params.pipeline,
  watch: (at) => [watchOf(at), failuresOf(at)],
  without: ["failures"],
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
        tools: [
          pipeline.ui
            ? h("a", { class: "button", href: pipeline.ui, rel: "noreferrer" }, "Spark UI")
            : null,
          button("Cancel a job", () => cancel(pipeline.pipeline, "")),
          at.live(),
        ],
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
      inHand(pipeline, at),
      reasons(docs[failuresOf(at)], { source: "topic" }, at, { title: "Failures by reason" }),
    ];
  },
};

/** A report names a job by so much of its id. */
const ID_CHARACTERS = 80;

/** Jobs that say how far they are, the ones that take the longest in front. */
function inHand(pipeline, at) {
  const jobs = pipeline.teams.flatMap((team) =>
    (team.jobs ?? []).map((job) => ({ ...job, team: team.team })),
  );
  if (jobs.length === 0) return null;
  return section(
    "Jobs in hand",
    {
      note:
        "Some of the jobs that report their progress. The age counts from the first report that " +
        "named the job.",
    },
    table(at, {
      label: "Jobs in hand",
      rows: jobs,
      key: (row) => `${row.team} ${row.id}`,
      name: "jobs",
      sort: "first",
      columns: [
        {
          name: "id",
          label: "Job",
          kind: "name",
          sort: (row) => row.id,
          cell: (row) => h("span", { class: "mono" }, row.id),
        },
        { name: "team", label: "Team", sort: (row) => row.team, cell: (row) => row.team },
        {
          name: "first",
          label: "Age",
          kind: "tight",
          sort: (row) => row.first_ms,
          cell: (row) => (row.first_ms ? span(Math.max(0, at.nowMs - row.first_ms)) : "–"),
        },
        {
          name: "part",
          label: "Done",
          sort: (row) => row.part,
          cell: (row) => {
            const part = `${Math.round(row.part * 100)} %`;
            return h("span", null, share(row.part, part), " ", part);
          },
        },
        { name: "text", label: "Says", cell: (row) => row.text || "–" },
        {
          name: "act",
          label: "",
          kind: "tight",
          cell: (row) =>
            row.id.length < ID_CHARACTERS
              ? button("Cancel", () => cancel(pipeline.pipeline, row.id), {
                  kind: "small danger",
                  label: `Cancel job ${row.id}`,
                })
              : null,
        },
      ],
    }),
  );
}

async function cancel(pipeline, job) {
  const done = await form({
    title: `Cancel a job of ${pipeline}`,
    text:
      "It ends as cancelled, whether it waits, is delayed or runs; a job that runs is ended. " +
      "A job that has ended stays as it is.",
    fields: (bound) => [
      field("Job id", bound("job", job, { required: true, autocomplete: "off" })),
      field("Reason", bound("reason", "", { autocomplete: "off", maxlength: 500 })),
    ],
    submit: (values) => post(address(["pipelines", pipeline, "cancel"]), values),
    confirm: "Cancel job",
    tone: "danger sure",
  });
  if (done) say("The cancel is stored. The job's outcome tells what became of it.");
}

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
