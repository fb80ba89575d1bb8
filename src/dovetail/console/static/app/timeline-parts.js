/** Parts of a timeline's page: who holds what, one message in full, schedules. */

import { ago, button, facts, section, table } from "./parts.js";
import { body, headers } from "./body.js";
import { count, exact, plural, span } from "./format.js";
import { figure } from "./columns.js";
import { h } from "./dom.js";

const soft = (content) => h("span", { class: "soft" }, content);

/** Consumers with the messages that they have leased. */
export function holders(held, at) {
  if (!held || held.holders.length === 0) return null;
  return section(
    "Who holds what",
    {
      note: held.complete
        ? "Messages that consumers have leased. One whose lease ends is given to another."
        : "Among the thousand messages that change hands next.",
    },
    table(at, {
      label: "Who holds what",
      rows: held.holders,
      key: (row) => row.consumer,
      name: "held",
      columns: [
        {
          name: "consumer",
          label: "Consumer",
          kind: "name",
          cell: (row) => h("span", { class: "mono" }, row.consumer || "–"),
        },
        figure("messages", "Messages"),
        {
          name: "end",
          label: "First lease ends",
          kind: "tight",
          cell: (row) => ago(row.first[0]?.lease_end_ms, at.nowMs),
        },
        { name: "first", label: "Which", cell: (row) => which(row, at) },
      ],
    }),
  );
}

function which(row, at) {
  const shown = row.first.slice(0, 5);
  const more = row.messages - shown.length;
  return h(
    "span",
    { class: "tags" },
    shown.map((one) =>
      button(
        one.key ? `${one.id} (${one.key})` : String(one.id),
        () => at.set({ id: String(one.id), key: null, open: String(one.id) }),
        {
          kind: "small",
          label: `Look up message ${one.id}`,
          title: `attempt ${one.attempts}, lease ends ${exact(one.lease_end_ms)}`,
        },
      ),
    ),
    more > 0 ? soft(`and ${plural(more, "other")}`) : null,
  );
}

/** What the store knows of a message's attempts: how many, and where it is now. */
function attempts(row, timeline, at) {
  const most = timeline.config.attempts_max;
  const made = most ? `${count(row.attempts)} of ${count(most)}` : count(row.attempts);
  const now = {
    waiting: () => ["next attempt ", ago(row.visible_ms, at.nowMs)],
    due: () => ["waits for a consumer since ", ago(row.visible_ms, at.nowMs)],
    leased: () => [`with ${row.holder ?? "?"}, lease ends `, ago(row.visible_ms, at.nowMs)],
    dead: () => ["given up ", ago(row.died_ms, at.nowMs)],
  }[row.state];
  const late = row.visible_ms - row.due_ms;
  const moved = row.attempts > 0 && row.state === "waiting" && late > 0;
  return h(
    "span",
    null,
    made,
    ", ",
    now ? now() : row.state,
    moved ? soft(`, ${span(late)} after it was due`) : null,
  );
}

/** A message in full, as a row below its own. */
export function whole(row, width, timeline, at) {
  return h(
    "tr",
    { class: "whole", role: "row", key: `open ${row.id}` },
    h(
      "td",
      { role: "cell", class: "bare", colspan: width, "data-label": "" },
      h(
        "div",
        { class: "section" },
        facts(
          ["Due", exact(row.due_ms)],
          ["Visible", exact(row.visible_ms)],
          ["Attempts", attempts(row, timeline, at)],
          ["Bucket", count(row.bucket)],
          ["Priority", count(row.priority)],
          row.order_key ? ["Order key", row.order_key] : null,
          row.holder ? ["Leased by", row.holder] : null,
          row.reason ? ["Reason", row.reason] : null,
        ),
        headers(row.headers),
        body("Body", row.body, at.query.get("as"), (kind) => at.set({ as: kind })),
      ),
    ),
  );
}

/** Recurring schedules; `unschedule` removes one. */
export function schedules(timeline, at, unschedule) {
  const list = timeline.schedules ?? [];
  if (list.length === 0) {
    return h("p", { class: "soft" }, "None. A schedule sends a message by cron or at an interval.");
  }
  return table(at, {
    label: "Schedules",
    rows: list,
    key: (row) => row.name,
    name: "schedules",
    columns: [
      { name: "name", label: "Schedule", kind: "name", cell: (row) => row.name },
      {
        name: "when",
        label: "When",
        cell: (row) =>
          h("code", null, row.cron ? `${row.cron} (${row.zone})` : `every ${span(row.every_ms)}`),
      },
      {
        name: "next",
        label: "Next times",
        cell: (row) =>
          h(
            "ul",
            null,
            (row.next_times ?? [row.next_ms]).map((time) =>
              h("li", { key: time }, exact(time).slice(0, 19), " ", soft(ago(time, at.nowMs))),
            ),
          ),
      },
      {
        name: "act",
        label: "",
        kind: "tight",
        cell: (row) =>
          button("Remove", () => unschedule(timeline, row, at), {
            kind: "small danger",
            label: `Remove schedule ${row.name}`,
          }),
      },
    ],
  });
}
