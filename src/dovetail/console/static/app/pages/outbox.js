/** The outbox of an application's database: what waits to be sent, and who sends it. */

import { ago, empty, head, note, section, table, tile, tiles } from "../parts.js";
import { brief, plural, rate, span } from "../format.js";
import { deadLetters, figure } from "../columns.js";
import { h } from "../dom.js";

export const page = {
  title: () => "Outbox",
  watch: () => ["outbox"],
  view({ outbox }, at) {
    if (!outbox.configured) {
      return [
        head("Outbox", { tools: [at.live()] }),
        empty(
          "No outbox is configured",
          "An outbox lets an application publish inside its own database transaction. Tell " +
            "this node where the database is, and its tables show up here:",
          { command: "dovetail up --set outbox.database=postgresql://app@db/app" },
        ),
      ];
    }
    const { topics } = outbox;
    const sum = (name) => topics.reduce((total, row) => total + (row[name] ?? 0), 0);
    const oldest = Math.max(0, ...topics.map((row) => row.oldest_ms ?? 0));
    return [
      head("Outbox", { note: plural(topics.length, "topic"), tools: [at.live()] }),
      outbox.trouble ? note("bad", "The database does not answer", outbox.trouble) : null,
      tiles(
        tile("Pending", brief(sum("pending"))),
        tile("Oldest pending", sum("pending") > 0 ? span(oldest) : "none", {
          tone: oldest > 60_000 && sum("pending") > 0 ? "warn" : "",
        }),
        tile("Sent", brief(sum("sent")), { note: rate(sum("sent_per_second")) }),
        tile("Dead letters", brief(sum("dead")), {
          href: "/dead?source=outbox",
          tone: sum("dead") ? "bad" : "",
        }),
      ),
      topics.length === 0 && !outbox.trouble
        ? empty(
            "Nothing was published yet",
            "A topic shows up with its first message. To send what is published, run a relay:",
            { command: "dovetail relay" },
          )
        : null,
      topics.length > 0
        ? [
            section("Topics", {}, list(topics, at)),
            section(
              "Locks",
              {
                note:
                  "A relay sends a shard while it has the lock; the term refuses an older relay.",
              },
              locks(topics, at),
            ),
          ]
        : null,
    ];
  },
};

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
        cell: (row) => row.topic,
      },
      figure("pending", "Pending"),
      {
        name: "oldest",
        label: "Oldest",
        kind: "number",
        sort: (row) => row.oldest_ms,
        cell: (row) => (row.pending ? span(row.oldest_ms) : "none"),
      },
      figure("sent", "Sent"),
      figure("rate", "Rate", { field: "sent_per_second", show: rate }),
      deadLetters("outbox", (row) => row.topic, { label: "Dead" }),
    ],
  });
}

function locks(topics, at) {
  const rows = topics.flatMap((topic) =>
    topic.shards.map((shard) => ({ ...shard, topic: topic.topic })),
  );
  if (rows.length === 0)
    return empty(
      "No relay has run yet",
      "What is published waits in the database until one runs:",
      { command: "dovetail relay" },
    );
  return table(at, {
    label: "Locks",
    rows,
    key: (row) => `${row.topic} ${row.shard}`,
    name: "locks",
    columns: [
      { name: "topic", label: "Topic", kind: "name", cell: (row) => row.topic },
      figure("shard", "Shard"),
      {
        name: "holder",
        label: "Locked by",
        cell: (row) =>
          row.locked_by
            ? h("span", { class: "mono" }, row.locked_by)
            : h("span", { class: "faint" }, "nobody"),
      },
      {
        name: "locked",
        label: "Renewed",
        kind: "tight",
        cell: (row) => ago(row.locked_ms, at.nowMs),
      },
      figure("term", "Term"),
      {
        name: "error",
        label: "Trouble",
        cell: (row) =>
          row.error
            ? h(
                "span",
                { class: "bad-text" },
                `${row.error} (${plural(row.retries ?? 0, "retry", "retries")})`,
              )
            : h("span", { class: "faint" }, "none"),
      },
    ],
  });
}
