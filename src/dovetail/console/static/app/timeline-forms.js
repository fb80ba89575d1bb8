/** Dialogs of a timeline: schedule a message, move one, put a schedule. */

import { address, patch, post, put } from "./api.js";
import { exact, span } from "./format.js";
import { field } from "./parts.js";
import { form } from "./dialog.js";
import { h } from "./dom.js";
import { headersOf } from "./produce.js";
import { say } from "./said.js";

const UNITS = [
  ["1000", "seconds"],
  ["60000", "minutes"],
  ["3600000", "hours"],
  ["86400000", "days"],
];

/** A time in the future, as the fields of a dialog say it. */
function when(bound, values) {
  return [
    field("Due", bound("how", "delay"), {
      options: [
        ["delay", "after a while"],
        ["time", "at a time"],
      ],
    }),
    values.how === "time"
      ? field("Time", bound("time", "", { type: "datetime-local", step: 1, required: true }))
      : h(
          "div",
          { class: "pair" },
          field(
            "From now",
            bound("number", "10", { type: "number", min: 0, step: "any", required: true }),
          ),
          field("Unit", bound("unit", "60000"), { options: UNITS }),
        ),
  ];
}

function dueOf(values, nowMs) {
  if (values.how === "delay")
    return Math.round(nowMs + Number(values.number) * Number(values.unit));
  const due = new Date(values.time).getTime();
  if (Number.isNaN(due)) throw new Error("Choose a date and a time.");
  return due;
}

export async function schedule(timeline) {
  const made = await form({
    title: `Schedule a message on ${timeline}`,
    wide: true,
    confirm: "Schedule",
    fields: (bound, values) => [
      when(bound, values),
      h(
        "div",
        { class: "pair" },
        field("Key", bound("key", "", { autocomplete: "off" }), {
          note: "Unique among the messages that wait. Empty: no key.",
        }),
        field("Priority", bound("priority", "0", { type: "number", min: 0, max: 9 })),
      ),
      field("Body", bound("body", "", { rows: 6, spellcheck: "false" })),
      field(
        "Headers",
        bound("headers", "", { rows: 2, spellcheck: "false", placeholder: "name: value" }),
      ),
    ],
    submit: (values) =>
      post(address(["timelines", timeline, "messages"]), {
        body: values.body,
        headers: headersOf(values.headers),
        priority: Number(values.priority),
        ...(values.how === "delay"
          ? { delay_ms: Math.round(Number(values.number) * Number(values.unit)) }
          : { due_ms: dueOf(values, 0) }),
        ...(values.key === "" ? {} : { key: values.key }),
      }),
  });
  if (made)
    say(
      made.created
        ? `Message ${made.id} is scheduled.`
        : `Message ${made.id} has this key already; it stays as it is.`,
    );
  return made;
}

export async function move(timeline, message) {
  const moved = await form({
    title: `Move message ${message.id}`,
    text: h("p", null, `Now due ${exact(message.due_ms)}.`),
    confirm: "Move",
    fields: (bound, values) => when(bound, values),
    submit: (values) =>
      patch(address(["timelines", timeline, "messages", message.id]), {
        due_ms: dueOf(values, Date.now()),
      }),
  });
  if (moved) say(`Message ${message.id} is due ${exact(moved.due_ms)}.`);
  return moved;
}

export async function putSchedule(timeline) {
  const made = await form({
    title: `Add a schedule to ${timeline}`,
    wide: true,
    confirm: "Add",
    fields: (bound, values) => [
      field("Name", bound("name", "", { required: true, autocomplete: "off" })),
      field("When", bound("how", "every"), {
        options: [
          ["every", "at an interval"],
          ["cron", "by cron"],
        ],
      }),
      values.how === "cron"
        ? h(
            "div",
            { class: "pair" },
            field("Cron", bound("cron", "0 3 * * *", { required: true, autocomplete: "off" }), {
              note: "Minute, hour, day, month, weekday.",
            }),
            field(
              "Zone",
              bound("zone", Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", {
                required: true,
              }),
            ),
          )
        : h(
            "div",
            { class: "pair" },
            field("Every", bound("number", "10", { type: "number", min: 1, required: true })),
            field("Unit", bound("unit", "60000"), { options: UNITS }),
          ),
      field("Body", bound("body", "", { rows: 4, spellcheck: "false" })),
    ],
    submit: async (values) => {
      const rule =
        values.how === "cron"
          ? { cron: values.cron, zone: values.zone }
          : { every_ms: Math.round(Number(values.number) * Number(values.unit)) };
      await put(address(["timelines", timeline, "schedules", values.name]), {
        body: values.body,
        ...rule,
      });
      return {
        name: values.name,
        text: values.how === "cron" ? values.cron : `every ${span(rule.every_ms)}`,
      };
    },
  });
  if (made) say(`Schedule ${made.name} is there: ${made.text}.`);
  return made;
}
