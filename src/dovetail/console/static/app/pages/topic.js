/** One topic: its partitions with owners and terms, its readers, its settings. */

import { address, patch } from "../api.js";
import { brief, bytes, count, exact, plural, rate, span } from "../format.js";
import {
  ago,
  button,
  empty,
  field,
  head,
  note,
  section,
  table,
  tag,
  tile,
  tiles,
} from "../parts.js";
import { deletion, form } from "../dialog.js";
import { figure } from "../columns.js";
import { groupColumns } from "./groups.js";
import { h } from "../dom.js";
import { points } from "../history.js";
import { produce } from "../produce.js";
import { say } from "../said.js";
import { spark } from "../charts.js";
import { to } from "../router.js";

const watchOf = (at) => `topic:${at.params.topic}`;

export const page = {
  title: (at) => at.params.topic,
  watch: (at) => [watchOf(at), `groups?${new URLSearchParams({ topic: at.params.topic })}`],
  view(docs, at) {
    const topic = docs[watchOf(at)];
    const groups = docs.groups.groups.filter((row) => row.topics.includes(topic.topic));
    const orphans = topic.partitions.filter((row) => row.leader === null);
    return [
      head(topic.topic, {
        crumbs: [["Topics", "/topics"]],
        note: noteOf(topic),
        tools: tools(topic, groups, at),
      }),
      orphans.length > 0
        ? note(
            "bad",
            `${plural(orphans.length, "partition")} without an owner`,
            "They can be neither written nor read until a broker claims them. If it lasts, " +
              "look at the overview for nodes that are down.",
          )
        : null,
      tiles(
        tile("Messages in", rate(topic.records_per_s), {
          chart: spark(
            points(watchOf(at), "rate"),
            at.nowMs,
            `Messages in, now ${rate(topic.records_per_s)}`,
          ),
        }),
        tile("Records", brief(topic.records), { title: count(topic.records) }),
        tile("Size", bytes(topic.bytes), {
          note: topic.partitions.every((row) => row.bytes_complete)
            ? null
            : "open ledgers of other nodes left out",
        }),
        tile("Partitions", count(topic.partitions.length)),
        tile("Groups reading", count(groups.length)),
      ),
      section("Partitions", {}, partitions(topic, at)),
      topic.compaction.length > 0 ? section("Compaction", {}, compaction(topic, at)) : null,
      section("Groups that read it", {}, readers(topic, groups, at)),
      section(
        "Settings",
        { tools: topic.internal ? null : [button("Change", () => alter(topic, at))] },
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: showsIdle(at),
            onchange: (event) => at.set({ settings: event.target.checked ? "all" : null }),
          }),
          "Settings without effect too",
        ),
        settings(topic, at),
      ),
    ];
  },
};

function noteOf(topic) {
  return h(
    "span",
    null,
    topic.internal ? [tag("internal"), " "] : null,
    topic.state === "ready" ? null : [tag(topic.state, "warn"), " "],
    topic.created_ms ? h("span", null, `Created ${exact(topic.created_ms)}`) : null,
  );
}

function tools(topic, groups, at) {
  const numbers = topic.partitions.map((row) => row.partition);
  return [
    h(
      "a",
      { class: "button primary", href: `/messages?topic=${encodeURIComponent(topic.topic)}` },
      "Messages",
    ),
    topic.internal ? null : button("Produce", () => produce(topic.topic, numbers)),
    topic.internal
      ? null
      : button("Delete", () => deleteTopic(topic, groups, at), { kind: "danger" }),
    at.live(),
  ];
}

function partitions(topic, at) {
  return table(at, {
    label: "Partitions",
    rows: topic.partitions,
    key: (row) => row.partition,
    sort: "partition",
    columns: [
      {
        name: "partition",
        label: "Partition",
        kind: "tight",
        sort: (row) => row.partition,
        cell: (row) =>
          h(
            "a",
            {
              href: `/messages?topic=${encodeURIComponent(topic.topic)}&partition=${row.partition}`,
            },
            row.partition,
          ),
      },
      {
        name: "leader",
        label: "Owner",
        sort: (row) => row.leader,
        cell: (row) =>
          row.leader === null ? tag("none", "bad", { dot: true }) : `node ${row.leader}`,
      },
      figure("term", "Term"),
      figure("first", "First"),
      figure("end", "End"),
      figure("records", "Records"),
      figure("rate", "In", { field: "records_per_s", show: rate }),
      figure("bytes", "Size", { show: bytes }),
      figure("ledgers", "Ledgers"),
      {
        name: "ensemble",
        label: "Storage nodes",
        cell: (row) =>
          h(
            "span",
            { title: `write quorum ${row.write_quorum}, ack quorum ${row.ack_quorum}` },
            (row.ensemble ?? []).join(", ") || "–",
            h("span", { class: "faint" }, ` (${row.ack_quorum} of ${row.write_quorum})`),
          ),
      },
    ],
  });
}

function compaction(topic, at) {
  return table(at, {
    label: "Compaction",
    rows: topic.compaction,
    key: (row) => row.partition,
    name: "compaction",
    sort: "partition",
    columns: [
      figure("partition", "Partition"),
      figure("cleaned_to", "Compacted up to"),
      figure("dirty_bytes", "Dirty", { show: bytes }),
      figure("dirty_ratio", "Dirty part", { show: (part) => `${Math.round(part * 100)} %` }),
      {
        name: "last_ms",
        label: "Last pass",
        sort: (row) => row.last_ms,
        cell: (row) => (row.last_ms === null ? "–" : ago(row.last_ms, at.nowMs)),
      },
      figure("bytes_per_s", "Read a second", { show: bytes }),
    ],
  });
}

function readers(topic, groups, at) {
  if (groups.length === 0) {
    return empty(
      "No group has read from it",
      "A consumer with a group id shows up here as soon as it commits.",
      {
        command: `dovetail consume ${topic.topic} --group billing`,
      },
    );
  }
  return table(at, {
    label: "Groups",
    rows: groups,
    key: (row) => row.group,
    name: "groups",
    sort: "group",
    columns: groupColumns("Lag of all its topics"),
  });
}

/** What Kafka's clients ask for and this broker needs nothing of, unless somebody set it. */
const idle = (row) => row.default && (row.doc ?? "").startsWith("No effect");

const showsIdle = (at) => at.query.get("settings") === "all";

function settings(topic, at) {
  return table(at, {
    label: "Settings",
    rows: showsIdle(at) ? topic.config : topic.config.filter((row) => !idle(row)),
    key: (row) => row.name,
    name: "settings",
    columns: [
      { name: "name", label: "Setting", kind: "tight", cell: (row) => h("code", null, row.name) },
      {
        name: "value",
        label: "Value",
        cell: (row) =>
          h(
            "span",
            null,
            h("code", null, row.value),
            " ",
            h("span", { class: "faint" }, inUnits(row)),
            " ",
            row.default ? h("span", { class: "faint" }, "default") : tag("set", "accent"),
          ),
      },
      {
        name: "doc",
        label: "What it does",
        cell: (row) => h("span", { class: "soft" }, row.doc ?? ""),
      },
    ],
  });
}

/** The largest of 64 bits: how Kafka writes that there is no limit. */
const NO_LIMIT = "9223372036854775807";

/** 604800000 of a setting in milliseconds → "7 d". */
function inUnits({ name, value }) {
  if (value === NO_LIMIT) return "no limit";
  if (Number(value) < 1000) return "";
  if (name.endsWith(".ms")) return span(Number(value));
  return name.endsWith(".bytes") ? bytes(Number(value)) : "";
}

async function alter(topic, at) {
  const done = await form({
    title: `Settings of ${topic.topic}`,
    wide: true,
    fields: (bound) => [
      field(
        "Partitions",
        bound("partitions", String(topic.partitions.length), {
          type: "number",
          min: topic.partitions.length,
        }),
        { note: "Only more, never fewer. Keys may go to other partitions afterwards." },
      ),
      topic.config.map((row) =>
        field(
          row.name,
          bound(`set ${row.name}`, row.default ? "" : row.value, {
            placeholder: row.value,
            autocomplete: "off",
          }),
          { note: row.doc || null },
        ),
      ),
    ],
    submit: (values) => patch(address(["topics", topic.topic]), changes(topic, values)),
  });
  if (done) {
    say(`Changed the settings of ${topic.topic}.`);
    at.reload();
  }
}

/** What differs between the form and the topic. Throws if nothing does. */
function changes(topic, values) {
  const config = {};
  const unset = [];
  for (const row of topic.config) {
    const wish = values[`set ${row.name}`];
    if (wish === "" && !row.default) unset.push(row.name);
    else if (wish !== "" && (row.default || wish !== row.value)) config[row.name] = wish;
  }
  const body = {};
  if (Number(values.partitions) !== topic.partitions.length)
    body.partitions = Number(values.partitions);
  if (Object.keys(config).length > 0) body.config = config;
  if (unset.length > 0) body.unset = unset;
  if (Object.keys(body).length === 0)
    throw new Error("Nothing has changed. Change a value, or choose Cancel.");
  return body;
}

function deleteTopic(topic, groups, at) {
  const readers = groups.map((row) => row.group).join(", ");
  return deletion(at, {
    what: "topic",
    name: topic.topic,
    path: ["topics", topic.topic],
    back: "/topics",
    sure: true,
    lost: [
      h(
        "strong",
        null,
        `${plural(topic.records ?? 0, "record")} (${bytes(topic.bytes)}) in ` +
          `${plural(topic.partitions.length, "partition")}`,
      ),
      readers ? `, and the positions of ${readers} in it.` : ".",
      " This cannot be undone.",
    ],
  });
}
