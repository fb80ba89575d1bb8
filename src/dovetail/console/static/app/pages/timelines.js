/** All timelines: what waits, what is due, what is late. */

import { address, post } from "../api.js";
import { button, empty, field, filters, head, note, table, tag } from "../parts.js";
import { count, plural, rate, span } from "../format.js";
import { form } from "../dialog.js";
import { h } from "../dom.js";
import { say } from "../said.js";
import { to } from "../router.js";

export const page = {
  title: () => "Timelines",
  watch: () => ["timelines"],
  view({ timelines: doc }, at) {
    if (!doc.enabled) {
      return [
        head("Timelines", { tools: [at.live()] }),
        note(
          "warn",
          "This node serves no timelines",
          doc.reason ?? "Ask a node with the role broker.",
        ),
      ];
    }
    const text = at.query.get("filter") ?? "";
    const shown = doc.timelines.filter((row) => row.timeline.includes(text));
    const waiting = shown.reduce((sum, row) => sum + (row.waiting ?? 0), 0);
    return [
      head("Timelines", {
        note: `${plural(shown.length, "timeline")}, ${plural(waiting, "message")} waiting`,
        tools: [button("Create timeline", () => create(at), { kind: "primary" }), at.live()],
      }),
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
      ),
      shown.length > 0 ? list(shown, at) : nothing(text),
    ];
  },
};

function nothing(text) {
  return text
    ? empty("No timeline has this in its name", "Clear the filter to see all.")
    : empty(
        "There are no timelines yet",
        "A timeline holds messages that are due at a time: reminders, retries, timeouts. To " +
          "make one:",
        {
          command: "dovetail timeline create reminders",
        },
      );
}

function list(rows, at) {
  const figure = (name, label) => ({
    name,
    label,
    kind: "number",
    sort: (row) => row[name],
    cell: (row) => count(row[name]),
  });
  return table(at, {
    label: "Timelines",
    rows,
    key: (row) => row.timeline,
    sort: "timeline",
    columns: [
      {
        name: "timeline",
        label: "Timeline",
        kind: "name",
        sort: (row) => row.timeline,
        cell: (row) =>
          h(
            "span",
            null,
            h("a", { href: to("timelines", row.timeline) }, row.timeline),
            " ",
            row.state && row.state !== "ready" ? tag(row.state, "warn") : null,
          ),
      },
      figure("waiting", "Waiting"),
      figure("due", "Due"),
      figure("leased", "Leased"),
      {
        name: "dead",
        label: "Dead",
        kind: "number",
        sort: (row) => row.dead,
        cell: (row) =>
          row.dead
            ? h(
                "a",
                {
                  class: "bad-text",
                  href: `/dead?source=timeline&name=${encodeURIComponent(row.timeline)}`,
                },
                count(row.dead),
              )
            : count(row.dead),
      },
      figure("consumers", "Consumers"),
      {
        name: "late",
        label: "Late (p99)",
        kind: "number",
        sort: (row) => row.late_ms_p99,
        cell: (row) => span(row.late_ms_p99),
      },
      {
        name: "arrivals",
        label: "In",
        kind: "number",
        sort: (row) => row.arrivals_per_s,
        cell: (row) => rate(row.arrivals_per_s),
      },
      {
        name: "done",
        label: "Done",
        kind: "number",
        sort: (row) => row.done_per_s,
        cell: (row) => rate(row.done_per_s),
      },
    ],
  });
}

async function create(at) {
  const made = await form({
    title: "Create a timeline",
    confirm: "Create",
    fields: (bound) => [
      field("Name", bound("timeline", "", { required: true, maxlength: 249, autocomplete: "off" })),
      field("Attempts", bound("attempts", "10", { type: "number", min: 1, required: true }), {
        note: "A message that failed so often becomes a dead letter.",
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
    say(`Timeline ${made} is there.`);
    at.go(to("timelines", made));
  }
}
