/** All topics: how much lies in each, how fast it grows. */

import { address, post } from "../api.js";
import { brief, bytes, plural, rate } from "../format.js";
import { button, field, tag } from "../parts.js";
import { figure, named } from "../columns.js";
import { form } from "../dialog.js";
import { h } from "../dom.js";
import { listing, partOf } from "../list.js";
import { say } from "../said.js";
import { to } from "../router.js";

export const page = {
  title: () => "Topics",
  watch: (at) => [partOf("topics", at, { sorts: SORTS, more: { internal: shows(at) && "true" } })],
  view({ topics: { topics, total, records } }, at) {
    return listing(at, {
      title: "Topics",
      rows: topics,
      total,
      name: "topic",
      note: () => `${plural(total, "topic")} with ${plural(records, "record")}`,
      tools: [button("Create topic", () => createTopic(at), { kind: "primary" })],
      controls: h(
        "label",
        { class: "check" },
        h("input", {
          type: "checkbox",
          checked: shows(at),
          onchange: (event) => at.set({ internal: event.target.checked ? "1" : null, from: null }),
        }),
        "Internal topics",
      ),
      columns: COLUMNS,
      noMatch: ["No topic matches", "Clear the filter, or show internal topics too."],
      nothing: [
        "There are no topics yet",
        "A client that first names a topic creates it, and so does:",
        { command: "dovetail topic create orders --partitions 4" },
      ],
    });
  },
};

/** Whether topics are shown that the node keeps for itself. */
const shows = (at) => at.query.get("internal") === "1";

/** The node's name of each column that it sorts by. */
const SORTS = {
  topic: "topic",
  partitions: "partitions",
  records: "records",
  bytes: "bytes",
  rate: "records_per_s",
};

const COLUMNS = [
  named("topic", "Topic", (row) => to("topics", row.topic), { marks }),
  figure("partitions", "Partitions"),
  figure("records", "Records"),
  figure("bytes", "Size", { show: bytes }),
  figure("rate", "In", { field: "records_per_s", show: rate }),
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
];

function marks(row) {
  return [
    row.internal ? tag("internal") : null,
    row.state && row.state !== "ready" ? tag(row.state, "warn") : null,
    row.partitions_without_owner > 0
      ? tag(`${brief(row.partitions_without_owner)} without owner`, "bad", { dot: true })
      : null,
  ];
}

/** Asks for a new topic, creates it and goes there. */
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
    say(`Topic ${made} was created.`);
    at.go(to("topics", made));
  }
}
