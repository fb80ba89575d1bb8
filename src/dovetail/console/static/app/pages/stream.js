/** One shared stream: members, leader, positions, elections. */

import { ago, empty, head, note, section, table, tag, tile, tiles } from "../parts.js";
import { count, plural } from "../format.js";
import { figure } from "../columns.js";
import { h } from "../dom.js";
import { heard } from "./streams.js";
import { to } from "../router.js";

const watchOf = (at) => `stream:${at.params.log}/${at.params.environment}`;

export const page = {
  title: (at) => at.params.log,
  watch: (at) => [watchOf(at)],
  view(docs, at) {
    const stream = docs[watchOf(at)];
    const counted = stream.members.filter((row) => row.counted).length;
    return [
      head(stream.log, {
        crumbs: [["Streams", "/streams"]],
        note: `Environment ${stream.environment}`,
        tools: [at.live()],
      }),
      stream.leader
        ? null
        : note(
            "bad",
            "Nobody leads",
            `${plural(counted, "member")} of ${count(stream.members.length)} count. With ` +
              "MAJORITY more than half of them must reach each other; events wait meanwhile.",
          ),
      tiles(
        tile(
          "Leader",
          stream.leader
            ? h("span", { class: "mono tile-text", title: stream.leader }, hostOf(stream.leader))
            : "none",
          { note: `heard ${heard(stream.leader_heard_s_ago)}`, tone: stream.leader ? "" : "bad" },
        ),
        tile("Term", count(stream.term), {
          note: plural(stream.elections.length, "election", "elections"),
        }),
        tile("Members", `${count(counted)} of ${count(stream.members.length)}`, {
          note: "counted",
        }),
        tile("Lag", count(stream.lag), {
          note: stream.source ? h("a", { href: to("topics", stream.source) }, stream.source) : null,
        }),
      ),
      section("Members", {}, members(stream, at)),
      section("Positions", {}, positions(stream, at)),
      section("Elections", { note: "Newest first" }, elections(stream, at)),
    ];
  },
};

function members(stream, at) {
  return table(at, {
    label: "Members",
    rows: stream.members,
    key: (row) => row.member,
    sort: "member",
    columns: [
      {
        name: "member",
        label: "Member",
        kind: "name",
        sort: (row) => row.member,
        cell: (row) => h("span", { class: "mono" }, row.member),
      },
      {
        name: "role",
        label: "Role",
        cell: (row) => (row.leads ? tag("leads", "accent", { dot: true }) : tag("follows")),
      },
      {
        name: "counted",
        label: "Counted",
        cell: (row) =>
          row.counted
            ? tag("yes", "good")
            : tag("no", "warn", { title: "It was challenged and has not answered" }),
      },
      {
        name: "challenged",
        label: "Challenged",
        cell: (row) => (row.challenged ? tag("now", "warn") : h("span", { class: "faint" }, "no")),
      },
      figure("heard", "Heard", { field: "heard_s_ago", show: heard }),
    ],
  });
}

function positions(stream, at) {
  if (stream.positions.length === 0) {
    return empty(
      "No position is committed",
      "The leader commits one with its first batch of events.",
    );
  }
  return table(at, {
    label: "Positions",
    rows: stream.positions,
    key: (row) => row.partition,
    name: "positions",
    columns: [
      { name: "partition", label: "Partition", kind: "tight", cell: (row) => count(row.partition) },
      figure("committed", "Committed"),
      figure("end", "End"),
      figure("lag", "Lag"),
    ],
  });
}

function elections(stream, at) {
  if (stream.elections.length === 0)
    return empty("No election yet", "The first member that the shared log accepts leads.");
  return table(at, {
    label: "Elections",
    rows: stream.elections,
    key: (row) => row.term,
    name: "elections",
    columns: [
      { name: "term", label: "Term", kind: "tight", cell: (row) => count(row.term) },
      {
        name: "leader",
        label: "Leader",
        kind: "name",
        cell: (row) => h("span", { class: "mono" }, row.leader),
      },
      { name: "at", label: "When", kind: "tight", cell: (row) => ago(row.at_ms, at.nowMs) },
    ],
  });
}

/** A member's name is its address; where it is reached tells it from the others. */
function hostOf(name) {
  return URL.canParse(name) ? new URL(name).host : name;
}
