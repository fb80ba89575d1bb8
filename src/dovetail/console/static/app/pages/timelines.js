/** All timelines: what waits, what is due, what is late. */

import { address, post } from "../api.js";
import { button, field, head, note, tag } from "../parts.js";
import { deadLetters, figure, named } from "../columns.js";
import { plural, rate, span } from "../format.js";
import { form } from "../dialog.js";
import { listing } from "../list.js";
import { say } from "../said.js";
import { to } from "../router.js";

export const page = {
  title: () => "Timelines",
  watch: () => ["timelines"],
  view({ timelines: doc }, at) {
    if (!doc.enabled) {
      const why = doc.reason ?? "Ask a node with the role broker.";
      return [
        head("Timelines", { tools: [at.live()] }),
        note("warn", "This node serves no timelines", why),
      ];
    }
    return listing(at, {
      title: "Timelines",
      rows: doc.timelines,
      name: "timeline",
      note: totals,
      tools: [button("Create timeline", () => create(at), { kind: "primary" })],
      columns: COLUMNS,
      noMatch: ["No timeline matches", "Clear the filter to see all."],
      nothing: [
        "There are no timelines yet",
        "A timeline holds messages that are due at a time: reminders, retries, timeouts. To " +
          "create one:",
        { command: "dovetail timeline create reminders" },
      ],
    });
  },
};

function totals(rows) {
  const waiting = rows.reduce((sum, row) => sum + (row.waiting ?? 0), 0);
  return `${plural(rows.length, "timeline")}, ${plural(waiting, "message")} waiting`;
}

const COLUMNS = [
  named("timeline", "Timeline", (row) => to("timelines", row.timeline), {
    marks: (row) => (row.state && row.state !== "ready" ? tag(row.state, "warn") : null),
  }),
  figure("waiting", "Waiting"),
  figure("due", "Due"),
  figure("leased", "Leased"),
  deadLetters("timeline", (row) => row.timeline, { label: "Dead" }),
  figure("consumers", "Consumers"),
  figure("late", "Late (p99)", { field: "late_ms_p99", show: span }),
  figure("arrivals", "In", { field: "arrivals_per_s", show: rate }),
  figure("done", "Done", { field: "done_per_s", show: rate }),
];

async function create(at) {
  const made = await form({
    title: "Create a timeline",
    confirm: "Create",
    fields: (bound) => [
      field("Name", bound("timeline", "", { required: true, maxlength: 249, autocomplete: "off" })),
      field("Attempts", bound("attempts", "10", { type: "number", min: 1, required: true }), {
        note: "After this many failed attempts, a message becomes a dead letter.",
      }),
    ],
    submit: async (values) => {
      await post(address(["timelines"]), {
        timeline: values.timeline,
        config: { attempts_max: Number(values.attempts) },
      });
      return values.timeline;
    },
  });
  if (made) {
    say(`Timeline ${made} was created.`);
    at.go(to("timelines", made));
  }
}
