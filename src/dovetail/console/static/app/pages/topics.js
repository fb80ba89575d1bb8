/** All topics: how much lies in each, how fast it grows. */

import { brief, bytes, count, plural, rate } from "../format.js";
import { address, post } from "../api.js";
import { button, empty, field, filters, head, table, tag } from "../parts.js";
import { form } from "../dialog.js";
import { h } from "../dom.js";
import { say } from "../said.js";
import { to } from "../router.js";

export const page = {
  title: () => "Topics",
  watch: () => ["topics"],
  view({ topics: { topics } }, at) {
    const text = at.query.get("filter") ?? "";
    const internal = at.query.get("internal") === "1";
    const shown = topics.filter((row) => (internal || !row.internal) && row.topic.includes(text));
    const create = button("Create topic", () => createTopic(at), { kind: "primary" });
    return [
      head("Topics", { note: totals(shown), tools: [create, at.live()] }),
      filters(
        field(
          "Name contains",
          {
            type: "search",
            value: text,
            autocomplete: "off",
            oninput: (event) => at.set({ filter: event.target.value }, { typing: true }),
          },
          { kind: "wide" },
        ),
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: internal,
            onchange: (event) => at.set({ internal: event.target.checked ? "1" : null }),
          }),
          "Internal topics",
        ),
      ),
      shown.length > 0 ? list(shown, at) : nothing(text),
    ];
  },
};

function totals(rows) {
  const records = rows.reduce((sum, row) => sum + (row.records ?? 0), 0);
  return `${plural(rows.length, "topic")} with ${plural(records, "record")}`;
}

function nothing(text) {
  return text
    ? empty(
        "No topic has this in its name",
        `Nothing contains “${text}”. Clear the filter, or show internal topics too.`,
      )
    : empty(
        "There are no topics yet",
        "A topic begins to exist when a client first names it, or by:",
        {
          command: "dovetail topic create orders --partitions 4",
        },
      );
}

function list(rows, at) {
  return table(at, {
    label: "Topics",
    rows,
    key: (row) => row.topic,
    sort: "topic",
    columns: [
      {
        name: "topic",
        label: "Topic",
        kind: "name",
        sort: (row) => row.topic,
        cell: (row) =>
          h("span", null, h("a", { href: to("topics", row.topic) }, row.topic), " ", marks(row)),
      },
      {
        name: "partitions",
        label: "Partitions",
        kind: "number",
        sort: (row) => row.partitions,
        cell: (row) => count(row.partitions),
      },
      {
        name: "records",
        label: "Records",
        kind: "number",
        sort: (row) => row.records,
        cell: (row) => count(row.records),
      },
      {
        name: "bytes",
        label: "Size",
        kind: "number",
        sort: (row) => row.bytes,
        cell: (row) => bytes(row.bytes),
      },
      {
        name: "rate",
        label: "In",
        kind: "number",
        sort: (row) => row.records_per_s,
        cell: (row) => rate(row.records_per_s),
      },
      {
        name: "browse",
        label: "",
        kind: "tight",
        cell: (row) =>
          h(
            "a",
            {
              class: "button small",
              href: `/messages?topic=${encodeURIComponent(row.topic)}`,
              "aria-label": `Messages of ${row.topic}`,
            },
            "Messages",
          ),
      },
    ],
  });
}

function marks(row) {
  return [
    row.internal ? tag("internal") : null,
    row.state && row.state !== "ready" ? tag(row.state, "warn") : null,
    row.partitions_without_owner > 0
      ? tag(`${brief(row.partitions_without_owner)} without owner`, "bad", { dot: true })
      : null,
  ];
}

/** Asks for a new topic, makes it and goes there. */
async function createTopic(at) {
  const made = await form({
    title: "Create a topic",
    confirm: "Create",
    fields: (bound) => [
      field(
        "Name",
        bound("topic", "", {
          required: true,
          maxlength: 249,
          pattern: "[a-zA-Z0-9._\\-]+",
          autocomplete: "off",
        }),
        { note: "Letters, digits, dot, dash and underscore." },
      ),
      h(
        "div",
        { class: "pair" },
        field("Partitions", bound("partitions", "1", { type: "number", min: 1, required: true }), {
          note: "More can be added later, never fewer.",
        }),
        field("Keep messages for", bound("retention", ""), {
          options: [
            ["", "as the node's settings say"],
            ["3600000", "1 hour"],
            ["86400000", "1 day"],
            ["604800000", "7 days"],
            ["2592000000", "30 days"],
            ["-1", "for ever"],
          ],
        }),
      ),
    ],
    submit: async (values) => {
      const config = values.retention ? { "retention.ms": values.retention } : {};
      await post(address(["topics"]), {
        topic: values.topic,
        partitions: Number(values.partitions),
        config,
      });
      return values.topic;
    },
  });
  if (made) {
    say(`Topic ${made} is there.`);
    at.go(to("topics", made));
  }
}
