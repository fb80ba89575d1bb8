/** Shared streams: who leads each, under which term. */

import { count, plural, span } from "../format.js";
import { empty, head, table, tag } from "../parts.js";
import { h } from "../dom.js";
import { to } from "../router.js";

export const page = {
  title: () => "Streams",
  watch: () => ["streams"],
  view({ streams: { streams } }, at) {
    return [
      head("Streams", {
        note: `${plural(streams.length, "shared stream")}: one elected consumer among replicas`,
        tools: [at.live()],
      }),
      streams.length > 0
        ? list(streams, at)
        : empty(
            "No shared stream is known",
            "Replicas of an application that elect one consumer among them show up here, as " +
              "soon as one has " +
              "written to its shared log on this cluster. An example with three replicas:",
            { command: "python -m examples.bot.run" },
          ),
    ];
  },
};

function list(rows, at) {
  return table(at, {
    label: "Streams",
    rows,
    key: (row) => `${row.log} ${row.environment}`,
    sort: "log",
    columns: [
      {
        name: "log",
        label: "Shared log",
        kind: "name",
        sort: (row) => row.log,
        cell: (row) => h("a", { href: to("streams", row.log, row.environment) }, row.log),
      },
      {
        name: "environment",
        label: "Environment",
        sort: (row) => row.environment,
        cell: (row) => row.environment,
      },
      {
        name: "leader",
        label: "Leader",
        cell: (row) =>
          row.leader ? h("span", { class: "mono" }, row.leader) : tag("none", "bad", { dot: true }),
      },
      {
        name: "term",
        label: "Term",
        kind: "number",
        sort: (row) => row.term,
        cell: (row) => count(row.term),
      },
      {
        name: "members",
        label: "Members",
        kind: "number",
        sort: (row) => row.members,
        cell: (row) => `${count(row.counted)} of ${count(row.members)}`,
      },
      {
        name: "lag",
        label: "Lag",
        kind: "number",
        sort: (row) => row.lag,
        cell: (row) => count(row.lag),
      },
      {
        name: "heard",
        label: "Leader heard",
        kind: "number",
        sort: (row) => row.leader_heard_s_ago,
        cell: (row) => heard(row.leader_heard_s_ago),
      },
    ],
  });
}

/** How long ago somebody was heard. */
export const heard = (seconds) =>
  seconds === null || seconds === undefined ? "–" : `${span(seconds * 1000)} ago`;
