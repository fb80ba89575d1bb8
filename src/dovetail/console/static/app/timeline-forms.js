/** Dialogs of a timeline: its settings, a message, one that moves, a schedule, many by filter. */

import { address, patch, post, put } from "./api.js";
import { exact, plural, span } from "./format.js";
import { field } from "./parts.js";
import { danger, form } from "./dialog.js";
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
      field("Name", bound("name", "", { required: true, autocomplete: "off" }), {
        note: "One that has this name is replaced.",
      }),
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
  if (made) say(`Schedule ${made.name} is set: ${made.text}.`);
  return made;
}

/** Settings that have a button of their own, or never change. */
const FIXED = ["buckets", "paused", "topic"];
const CHOICES = { dealer: ["racks", "ranges"], when_busy: ["go_on", "stop"] };

export async function alter({ timeline, config }) {
  const rows = Object.entries(config).filter(([name]) => !FIXED.includes(name));
  const done = await form({
    title: `Settings of ${timeline}`,
    wide: true,
    fields: (bound) =>
      rows.map(([name, value]) => {
        const kind = typeof value === "number" ? { type: "number", min: 0, required: true } : {};
        const options = CHOICES[name]?.map((one) => [one, one]);
        const input = bound(name, String(value), { autocomplete: "off", ...kind });
        return field(name, input, { options });
      }),
    submit: (values) => {
      const changed = rows.filter(([name, value]) => values[name] !== String(value));
      if (changed.length === 0)
        throw new Error("Nothing has changed. Change a value, or choose Cancel.");
      return patch(address(["timelines", timeline]), {
        config: Object.fromEntries(changed.map(([name]) => [name, values[name]])),
      });
    },
  });
  if (done) say(`Changed the settings of ${timeline}.`);
  return done;
}

/** What can be done to all that fit: of messages that wait, or of dead letters. */
const ACTIONS = {
  cancel: { label: "Cancel messages", verb: "cancelled", noun: "message", dead: false },
  move: { label: "Move messages", verb: "moved", noun: "message", dead: false },
  replay: { label: "Replay dead letters", verb: "replayed", noun: "dead letter", dead: true },
  drop: { label: "Drop dead letters", verb: "dropped", noun: "dead letter", dead: true },
};

function whereOf(values, dead) {
  const header = values.header.trim();
  const where = {
    ...(values.key_prefix === "" ? {} : { key_prefix: values.key_prefix }),
    ...(header === "" ? {} : { header }),
    ...(header === "" || values.header_value === "" ? {} : { header_value: values.header_value }),
    ...(dead && values.reason ? { reason: values.reason } : {}),
    ...(Number(values.older) > 0
      ? { older_ms: Math.round(Number(values.older) * Number(values.older_unit)) }
      : {}),
  };
  if (Object.keys(where).length === 0 && values.action !== "replay")
    throw new Error("Say which ones: give a key, a header, an age or a reason.");
  return where;
}

/** Does it a thousand at a time, until all were looked at. */
async function selectAll(timeline, wish) {
  const sum = { matched: 0, done: 0 };
  for (let after = 0, more = true; more; ) {
    const page = await post(address(["timelines", timeline, "select"]), { ...wish, after });
    sum.matched += page.matched;
    sum.done += page.done;
    ({ after, more } = page);
  }
  return sum;
}

export async function byFilter(timeline) {
  const wish = await form({
    title: `Change messages of ${timeline} by filter`,
    text: h(
      "p",
      null,
      "All conditions must match. Nothing changes before you have seen how many do.",
    ),
    wide: true,
    confirm: "Count them",
    fields: (bound, values) => [
      field("What", bound("action", "cancel"), {
        options: Object.entries(ACTIONS).map(([name, { label }]) => [name, label]),
      }),
      values.action === "move" ? when(bound, values) : null,
      field("Key begins with", bound("key_prefix", "", { autocomplete: "off" })),
      h(
        "div",
        { class: "pair" },
        field("Header", bound("header", "", { autocomplete: "off" })),
        field("Its value", bound("header_value", "", { autocomplete: "off" }), {
          note: "Empty: any value.",
        }),
      ),
      h(
        "div",
        { class: "pair" },
        field("Older than", bound("older", "", { type: "number", min: 0, step: "any" }), {
          note: "Since it was due, or dead.",
        }),
        field("Age in", bound("older_unit", "60000"), { options: UNITS }),
      ),
      ACTIONS[values.action].dead
        ? field("Reason holds", bound("reason", "", { autocomplete: "off" }))
        : null,
    ],
    submit: async (values) => {
      const { dead, noun } = ACTIONS[values.action];
      const where = whereOf(values, dead);
      const due = values.action === "move" ? { due_ms: dueOf(values, Date.now()) } : {};
      const { matched } = await selectAll(timeline, { action: "preview", where, dead });
      if (matched === 0) throw new Error(`No ${noun} fits.`);
      return { action: values.action, where, matched, due };
    },
  });
  if (!wish) return null;

  const { label, verb, noun } = ACTIONS[wish.action];
  const done = await danger({
    title: `${label} of ${timeline}?`,
    lost: h(
      "p",
      null,
      h("strong", null, plural(wish.matched, noun)),
      ` will be ${verb}. What a consumer has in hand stays.`,
    ),
    confirm: label,
    act: () => selectAll(timeline, { action: wish.action, where: wish.where, ...wish.due }),
  });
  if (done) {
    const left = done.matched - done.done;
    const rest = left > 0 ? ` ${left} could not be.` : "";
    say(`${plural(done.done, noun)} ${verb}.${rest}`, left > 0 ? "bad" : undefined);
  }
  return done;
}
