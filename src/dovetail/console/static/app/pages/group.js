/** One consumer group: lag of each partition, members, and setting its positions anew. */

import { address, post } from "../api.js";
import { button, empty, field, head, note, section, table, tag, tile, tiles } from "../parts.js";
import { brief, count, plural, rate } from "../format.js";
import { course, courses, filled } from "../hour.js";
import { danger, deletion, form } from "../dialog.js";
import { figure, named } from "../columns.js";
import { stateTag } from "./groups.js";
import { h } from "../dom.js";
import { points } from "../history.js";
import { say } from "../said.js";
import { spark } from "../charts.js";
import { to } from "../router.js";

const lagOf = (at) => `lag:${at.params.group}`;
const watchOf = (at) => `group:${at.params.group}`;

export const page = {
  title: (at) => at.params.group,
  watch: (at) => [watchOf(at), lagOf(at)],
  without: ["lag"],
  view(docs, at) {
    const group = docs[watchOf(at)];
    const busy = group.members > 0;
    return [
      head(group.group, {
        crumbs: [["Groups", "/groups"]],
        note: [stateTag(group.state), group.shares ? tag("share group") : null],
        tools: [
          button("Reset positions", () => reset(group, at), {
            disabled: busy,
            title: busy ? "Stop its consumers first" : null,
          }),
          button("Delete", () => deleteGroup(group, at), {
            kind: "danger",
            disabled: busy,
            title: busy ? "Stop its consumers first" : null,
          }),
          at.live(),
        ],
      }),
      busy
        ? note(
            "",
            "Positions can be reset while the group has no members",
            "Stop its consumers and reset; they continue from the new positions when they restart.",
          )
        : null,
      tiles(
        tile("Lag", brief(group.lag), {
          title: count(group.lag),
          chart: spark(points(watchOf(at), "lag"), at.nowMs, `Lag, now ${count(group.lag)}`),
        }),
        group.shares
          ? tile("Accepted", rate(group.accepted_per_s))
          : tile("Consumed", rate(group.consumed_per_s), {
              chart: spark(points(watchOf(at), "rate"), at.nowMs, "Consumed a second"),
            }),
        tile("Members", count(group.members)),
        tile("Partitions", count(group.partitions.length)),
      ),
      lagOverTime(docs[lagOf(at)], at),
      section(
        "Positions",
        {},
        group.partitions.length > 0
          ? positions(group, at)
          : empty(
              "No position is committed",
              "The group has members, but they have committed nothing yet.",
            ),
      ),
      group.outcomes ? section("Deliveries", {}, outcomes(group)) : null,
      section(
        "Members",
        {},
        group.member_list.length > 0
          ? members(group, at)
          : empty(
              "The group has no members",
              "Its positions are kept. A new consumer continues where the last one stopped:",
              {
                command:
                  `dovetail consume ${group.partitions[0]?.topic ?? "orders"} --group ` +
                  `${group.group}`,
              },
            ),
      ),
    ];
  },
};

/** One chart for the group, and a small one for each partition, on one scale. */
function lagOverTime(hour, at) {
  if (!hour) return null;
  if (!hour.here || hour.lag.length === 0) {
    const where = `Node ${hour.node_id} coordinates the group, and its console shows the lag.`;
    const why = hour.here
      ? "Nothing is kept of the group yet; a sample is taken every 15 s."
      : hour.node_id === null
        ? "No broker coordinates the group at the moment."
        : where;
    return section("Lag over the last hour", { note: why });
  }
  const top = Math.max(0, ...hour.partitions.flatMap((row) => row.lag.map((value) => value ?? 0)));
  const about = filled(hour, [hour.lag, ...hour.partitions.map((row) => row.lag)]);
  const several = hour.partitions.length + hour.partitions_more > 1;
  const more = `${plural(hour.partitions_more, "partition")} with less lag left out.`;
  return section(
    "Lag over the last hour",
    { note: hour.partitions_more > 0 ? more : null },
    courses(course(at, about, "The group", [{ label: "", values: hour.lag }], brief)),
    several
      ? courses(
          ...hour.partitions.map((row) =>
            course(
              at,
              about,
              `${row.topic} ${row.partition}`,
              [{ label: "", values: row.lag }],
              brief,
              { top },
            ),
          ),
        )
      : null,
  );
}

/** Kafka's protocol writes a host as "/10.0.0.9". */
const hostOf = (row) => (row.host ?? "–").replace(/^\//, "");

const reader = {
  name: "client",
  label: "Read by",
  cell: (row) =>
    row.client ? `${row.client} at ${hostOf(row)}` : h("span", { class: "faint" }, "nobody"),
};

/** Of a share group, whose members read a partition together. */
const sharing = [
  figure("in_flight", "In flight"),
  figure("again", "Again"),
  figure("dying", "To dead letters"),
  figure("deliveries", "Deliveries"),
];

/** What became of the records that a share group handed out, since its brokers count. */
const OUTCOMES = [
  ["acquired", "Acquired"],
  ["accepted", "Accepted"],
  ["released", "Released"],
  ["expired", "Lock ended"],
  ["rejected", "Rejected"],
  ["exhausted", "Delivered too often"],
  ["dead_letters", "Dead letters"],
];

function outcomes(group) {
  return tiles(
    ...OUTCOMES.map(([name, label]) =>
      tile(label, brief(group.outcomes[name]), { title: count(group.outcomes[name]) }),
    ),
  );
}

function positions(group, at) {
  return table(at, {
    label: "Positions",
    rows: group.partitions,
    key: (row) => `${row.topic} ${row.partition}`,
    sort: "topic",
    columns: [
      named("topic", "Topic", (row) => to("topics", row.topic)),
      figure("partition", "Partition"),
      figure("committed", "Committed"),
      figure("end", "End"),
      figure("lag", "Lag"),
      ...(group.shares ? sharing : [reader]),
    ],
  });
}

function members(group, at) {
  return table(at, {
    label: "Members",
    rows: group.member_list,
    key: (row) => row.member,
    name: "members",
    columns: [
      { name: "client", label: "Client", kind: "name", cell: (row) => row.client || "–" },
      { name: "host", label: "Host", cell: hostOf },
      {
        name: "partitions",
        label: "Partitions",
        kind: "number",
        cell: (row) => count(row.partitions.length),
      },
      {
        name: "member",
        label: "Member id",
        cell: (row) => h("span", { class: "mono soft" }, row.member),
      },
    ],
  });
}

const TARGETS = [
  ["earliest", "The beginning"],
  ["latest", "The end"],
  ["offset", "An offset"],
  ["time", "A time"],
];

function target(values) {
  if (values.to === "offset") return `offset:${values.offset}`;
  if (values.to === "time") {
    const at = new Date(values.time).getTime();
    if (Number.isNaN(at)) throw new Error("Choose a date and a time.");
    return `time:${at}`;
  }
  return values.to;
}

/** Two steps: what would change, as the node says, and then the change itself. */
async function reset(group, at) {
  const topics = [...new Set(group.partitions.map((row) => row.topic))].sort();
  const wish = await form({
    title: `Reset positions of ${group.group}`,
    confirm: "Show what changes",
    fields: (bound, values) => [
      field("Topic", bound("topic", ""), {
        options: [["", "All topics"], ...topics.map((name) => [name, name])],
      }),
      field("Go to", bound("to", "earliest"), { options: TARGETS }),
      values.to === "offset"
        ? field("Offset", bound("offset", "0", { type: "number", min: 0, required: true }))
        : null,
      values.to === "time"
        ? field("Time", bound("time", "", { type: "datetime-local", step: 1, required: true }))
        : null,
    ],
    submit: async (values) => {
      const body = { to: target(values), ...(values.topic ? { topics: [values.topic] } : {}) };
      return {
        body,
        preview: await post(address(["groups", group.group, "reset"]), { ...body, dry_run: true }),
      };
    },
  });
  if (!wish) return;
  const done = await danger({
    title: `Reset ${group.group}?`,
    lost: h(
      "div",
      { class: "section" },
      h("p", null, effect(wish.preview.partitions)),
      preview(wish.preview.partitions),
    ),
    confirm: "Reset positions",
    act: () => post(address(["groups", group.group, "reset"]), wish.body),
  });
  if (done) {
    say(`Reset the positions of ${group.group}.`);
    at.reload();
  }
}

function effect(rows) {
  let again = 0;
  let skipped = 0;
  for (const row of rows) {
    const step = row.after - (row.before ?? row.after);
    if (step < 0) again -= step;
    else skipped += step;
  }
  return h(
    "strong",
    null,
    [
      again > 0 ? `${plural(again, "record")} will be read again. ` : "",
      skipped > 0
        ? `${plural(skipped, "record")} will be skipped and not read by this group. `
        : "",
      again === 0 && skipped === 0 ? "No position moves." : "",
    ].join(""),
  );
}

function preview(rows) {
  const shown = rows.slice(0, 12);
  return h(
    "ul",
    { class: "mono" },
    shown.map((row) =>
      h(
        "li",
        { key: `${row.topic} ${row.partition}` },
        `${row.topic} ${row.partition}: ${row.before ?? "none"} → ${row.after}`,
      ),
    ),
    rows.length > shown.length
      ? h("li", { class: "faint" }, `and ${rows.length - shown.length} more`)
      : null,
  );
}

function deleteGroup(group, at) {
  return deletion(at, {
    what: "group",
    name: group.group,
    path: ["groups", group.group],
    back: "/groups",
    lost: [
      h("strong", null, `the positions in ${plural(group.partitions.length, "partition")}`),
      ". Consumers that restart begin where their settings say, not where they stopped.",
    ],
  });
}
