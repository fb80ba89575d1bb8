/** Shared streams: who leads each, under which term. */

import { count, plural, span } from "../format.js";
import { figure, named } from "../columns.js";
import { h } from "../dom.js";
import { listing } from "../list.js";
import { tag } from "../parts.js";
import { to } from "../router.js";

export const page = {
  title: () => "Streams",
  watch: () => ["streams"],
  view({ streams: { streams } }, at) {
    return listing(at, {
      title: "Streams",
      rows: streams,
      name: "log",
      key: (row) => `${row.log} ${row.environment}`,
      note: (rows) =>
        `${plural(rows.length, "shared stream")}: one elected consumer among replicas`,
      columns: [
        named("log", "Shared log", (row) => to("streams", row.log, row.environment)),
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
            row.leader
              ? h("span", { class: "mono" }, row.leader)
              : tag("none", "bad", { dot: true }),
        },
        figure("term", "Term"),
        {
          ...figure("members", "Members"),
          cell: (row) => `${count(row.counted)} of ${count(row.members)}`,
        },
        figure("lag", "Lag"),
        figure("heard", "Leader heard", { field: "leader_heard_s_ago", show: heard }),
      ],
      nothing: [
        "There are no shared streams yet",
        "The replicas of an application elect one consumer among them. They show up here when " +
          "one has written to their shared log on this cluster. An example with three replicas:",
        { command: "python -m examples.bot.run" },
      ],
    });
  },
};

/** How long ago somebody was heard. */
export const heard = (seconds) =>
  seconds === null || seconds === undefined ? "–" : `${span(seconds * 1000)} ago`;
