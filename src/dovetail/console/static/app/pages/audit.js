/** Changes that were made through the console and the HTTP API of this node. */

import { address, read } from "../api.js";
import { ago, button, empty, field, filters, head, table, tag } from "../parts.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { search } from "../list.js";

const TONES = { done: "good", refused: "warn", failed: "bad" };

export const page = {
  title: () => "Audit log",
  watch: () => ["audit"],
  view({ audit }, at) {
    const text = (at.query.get("filter") ?? "").toLowerCase();
    const outcome = at.query.get("outcome") ?? "";
    const more = at.local.more ?? [];
    const next = at.local.more ? at.local.next : audit.next;
    const entries = [...audit.entries, ...more];
    const shown = entries.filter(
      (row) =>
        (!outcome || row.outcome === outcome) &&
        (!text ||
          `${row.action} ${row.target} ${row.who} ${row.from}`.toLowerCase().includes(text)),
    );
    return [
      head("Audit log", {
        note:
          `${plural(shown.length, "change")} through the console and the HTTP API of this ` +
          "node, newest first",
        tools: [at.live()],
      }),
      filters(
        search(at, "Contains"),
        field(
          "Outcome",
          { value: outcome, onchange: (event) => at.set({ outcome: event.target.value }) },
          {
            options: [
              ["", "All"],
              ["done", "Done"],
              ["refused", "Refused"],
              ["failed", "Failed"],
            ],
          },
        ),
      ),
      shown.length > 0
        ? list(shown, at)
        : empty(
            "No changes",
            entries.length > 0
              ? "No entry matches the filter."
              : "Every change made here or through the HTTP API is recorded: when, by whom, from " +
                  "where, with which outcome.",
          ),
      next ? button("Show older", () => older(next, at)) : null,
    ];
  },
};

async function older(next, at) {
  const answer = await read(address(["audit"], { before: next }));
  at.local.more = [...(at.local.more ?? []), ...answer.entries];
  at.local.next = answer.next;
  at.draw();
}

function list(rows, at) {
  return h(
    "div",
    { key: "entries" },
    table(at, {
      label: "Changes",
      rows: rows.map((row, index) => ({ ...row, index })),
      key: (row) => `${row.at_ms} ${row.action} ${row.target} ${rows.length - row.index}`,
      columns: [
        { name: "at", label: "When", kind: "tight", cell: (row) => ago(row.at_ms, at.nowMs) },
        {
          name: "action",
          label: "Action",
          kind: "tight",
          cell: (row) => h("code", null, row.action),
        },
        { name: "target", label: "Target", kind: "name", cell: (row) => row.target },
        {
          name: "outcome",
          label: "Outcome",
          kind: "tight",
          cell: (row) => tag(row.outcome, TONES[row.outcome] ?? "", { dot: true }),
        },
        { name: "who", label: "Who", kind: "tight", cell: (row) => `${row.who} from ${row.from}` },
        { name: "detail", label: "Detail", cell: (row) => detail(row) },
      ],
    }),
  );
}

function detail(row) {
  const text = Object.entries(row.detail ?? {})
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
  return h(
    "span",
    { class: "soft" },
    text,
    row.error ? h("span", { class: "bad-text" }, `${text ? ". " : ""}${row.error}`) : null,
  );
}
