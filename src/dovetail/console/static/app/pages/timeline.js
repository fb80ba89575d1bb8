/** One timeline: what becomes due when, who serves it, single messages, schedules. */

import { address, patch, post, read, remove } from "../api.js";
import {
  ago,
  button,
  empty,
  facts,
  field,
  filters,
  head,
  loading,
  note,
  section,
  table,
  tag,
  tile,
  tiles,
} from "../parts.js";
import { brief, bytes, count, exact, plural, rate, span } from "../format.js";
import { line } from "../body.js";
import { danger, deletion } from "../dialog.js";
import { figure } from "../columns.js";
import { h } from "../dom.js";
import { histogram, share, spark, strip } from "../charts.js";
import { alter, byFilter, move, putSchedule, schedule } from "../timeline-forms.js";
import { holders, schedules, whole } from "../timeline-parts.js";
import { points } from "../history.js";
import { reasons, reasonsOf } from "../reasons.js";
import { say } from "../said.js";

const watchOf = (at) => `timeline:${at.params.timeline}`;
const heldOf = (at) => `held:${at.params.timeline}`;
const STATE_TONES = { waiting: "", due: "accent", leased: "good", dead: "bad" };

/** Of the next messages, how many are looked at for the picture, and how many are listed. */
const NEXT_MAX = 500;
const LISTED_MAX = 20;

/** Bars of the picture, and how wide one may be in seconds. */
const BARS_MAX = 60;
const STEPS_S = [
  1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400, 604_800, 2_592_000,
  31_536_000,
];

const messagesOf = (at, query) => address(["timelines", at.params.timeline, "messages"], query);

/** What is listed: what is looked up, or the next ones. */
function asked(at) {
  const key = at.query.get("key");
  const id = at.query.get("id");
  return messagesOf(at, key || id ? { key, id } : { limit: LISTED_MAX });
}

export const page = {
  title: (at) => at.params.timeline,
  watch: (at) => [watchOf(at), heldOf(at), reasonsOf("timeline", at.params.timeline)],
  without: ["held", "reasons"],
  loadedBy: asked,
  async load(at) {
    const next = read(messagesOf(at, { limit: NEXT_MAX, value_bytes: 1 }));
    const [ahead, listed] = await Promise.all([next, read(asked(at))]);
    return { ahead: ahead.messages, listed: listed.messages };
  },
  arrived(watch, doc, at) {
    if (watch !== watchOf(at)) return;
    const now = [doc.waiting, doc.due, doc.leased, doc.dead].join(" ");
    const moved = at.local.figures !== undefined && at.local.figures !== now;
    at.local.figures = now;
    if (moved) at.loadIn(2000);
  },
  view(docs, at) {
    const timeline = docs[watchOf(at)];
    return [
      head(timeline.timeline, {
        crumbs: [["Timelines", "/timelines"]],
        note: tag(timeline.condition, timeline.condition === "healthy" ? "good" : "warn", {
          dot: true,
        }),
        tools: [
          button("Schedule message", async () => (await schedule(timeline.timeline)) && at.load(), {
            kind: "primary",
          }),
          button(timeline.config.paused ? "Resume" : "Pause", () => setPaused(timeline, at)),
          button("Purge", () => purge(timeline, at), { kind: "danger" }),
          button("Delete", () => deleteTimeline(timeline, at), { kind: "danger" }),
          at.live(),
        ],
      }),
      timeline.config.paused && note("warn", "Paused", "Nothing is pushed until it is resumed."),
      (timeline.reasons ?? []).map((reason) => note("warn", "Degraded", reason)),
      figures(timeline, at),
      section(
        "What becomes due",
        { note: windows(timeline) },
        docs.loaded ? ahead(docs.loaded.ahead, at) : loading(),
      ),
      section("Consumers and their buckets", {}, consumers(timeline, at)),
      holders(docs[heldOf(at)], at),
      reasons(docs.reasons, { source: "timeline", name: timeline.timeline }, at),
      section(
        "Messages",
        {
          note: "The next ones to become due, or those you look up.",
          tools: [
            button(
              "Change by filter",
              async () => (await byFilter(timeline.timeline)) && at.load(),
            ),
          ],
        },
        lookup(at),
        docs.loaded ? messages(docs.loaded.listed, timeline, at) : loading(),
      ),
      section(
        "Schedules",
        {
          note: "A message for each time, once in the whole cluster.",
          tools: [
            button(
              "Add schedule",
              async () => (await putSchedule(timeline.timeline)) && at.reload(),
            ),
          ],
        },
        schedules(timeline, at, unschedule),
      ),
      section(
        "Settings",
        { tools: [button("Change", async () => (await alter(timeline)) && at.reload())] },
        h(
          "div",
          { class: "card" },
          facts(
            ...Object.entries(timeline.config).map(([name, value]) => [
              h("code", null, name),
              h("code", null, String(value)),
            ]),
          ),
        ),
      ),
    ];
  },
};

function figures(timeline, at) {
  const chart = (name) => spark(points(watchOf(at), name), at.nowMs, name);
  return tiles(
    tile("Waiting", brief(timeline.waiting), { title: count(timeline.waiting) }),
    tile("Due", brief(timeline.due), {
      chart: chart("due"),
      tone: timeline.due > 0 && timeline.consumers === 0 ? "warn" : "",
      note: timeline.oldest_due_ms
        ? h("span", null, "oldest ", ago(timeline.oldest_due_ms, at.nowMs))
        : null,
    }),
    tile("Leased", brief(timeline.leased), { note: plural(timeline.consumers, "consumer") }),
    tile("Late", span(timeline.late_ms?.p99), {
      note: `p99, median ${span(timeline.late_ms?.p50)}`,
    }),
    tile("In", rate(timeline.arrivals_per_second), { chart: chart("arrivals") }),
    tile("Done", rate(timeline.done_per_second), { chart: chart("rate") }),
    tile("Dead letters", brief(timeline.dead), {
      tone: timeline.dead ? "bad" : "",
      href: `/dead?source=timeline&name=${encodeURIComponent(timeline.timeline)}`,
    }),
  );
}

function windows({ next_windows: counts, window_ms: ms }) {
  return counts.length > 0 ? `Next windows of ${span(ms)}: ${counts.map(count).join(", ")}` : null;
}

/** The next messages by time. The list is in order, so up to its last one nothing is left out. */
function ahead(list, at) {
  const times = list
    .filter((row) => row.state === "waiting")
    .map((row) => Math.max(row.visible_ms, at.nowMs));
  if (times.length === 0) return h("p", { class: "soft" }, "Nothing waits.");
  const lastMs = Math.max(...times) - at.nowMs;
  const stepMs =
    1000 * (STEPS_S.find((seconds) => seconds * 1000 * BARS_MAX > lastMs) ?? STEPS_S.at(-1));
  const values = Array(Math.max(12, Math.ceil((lastMs + 1) / stepMs))).fill(0);
  for (const time of times) values[Math.floor((time - at.nowMs) / stepMs)] += 1;
  const all =
    list.length < NEXT_MAX ? "All that waits" : `The next ${plural(times.length, "message")}`;
  const label = `${all}, ${span(stepMs)} a bar, the last at ${exact(Math.max(...times))}`;
  return h(
    "figure",
    { class: "card" },
    histogram(values, stepMs, label),
    h("figcaption", { class: "soft" }, label),
  );
}

function consumers(timeline, at) {
  const list = timeline.consumer_list ?? [];
  if (list.length === 0) {
    return empty(
      "No consumer is connected",
      "Messages wait for a consumer, which gets them by due time. To watch them go by:",
      {
        command: `dovetail timeline consume ${timeline.timeline}`,
      },
    );
  }
  const buckets = list.reduce((sum, row) => sum + row.buckets, 0) || 1;
  return [
    strip(
      list.map((row) => ({
        size: row.buckets,
        title: `${row.id}: ${plural(row.buckets, "bucket")}`,
      })),
      `Buckets by consumer: ${list.map((row) => `${row.id} ${row.buckets}`).join(", ")}`,
    ),
    table(at, {
      label: "Consumers",
      rows: list,
      key: (row) => row.id,
      name: "consumers",
      columns: [
        {
          name: "id",
          label: "Consumer",
          kind: "name",
          cell: (row) => h("span", { class: "mono" }, row.id),
        },
        { name: "rack", label: "Rack", cell: (row) => row.rack || "–" },
        figure("buckets", "Buckets"),
        {
          name: "share",
          label: "Share",
          cell: (row) =>
            share(row.buckets / buckets, `${Math.round((row.buckets / buckets) * 100)} %`),
        },
        figure("leased", "Leased"),
        figure("credit", "Credit"),
        figure("lease", "Lease", { field: "lease_ms", show: span }),
        figure("latency", "Latency", { field: "latency_ms", show: span }),
      ],
    }),
  ];
}

function lookup(at) {
  return filters(
    field("Key is", {
      type: "search",
      value: at.query.get("key") ?? "",
      autocomplete: "off",
      onchange: (event) => at.set({ key: event.target.value, id: null, open: null }),
    }),
    field("Id is", {
      type: "search",
      inputmode: "numeric",
      value: at.query.get("id") ?? "",
      autocomplete: "off",
      onchange: (event) => at.set({ id: event.target.value, key: null, open: null }),
    }),
  );
}

function messages(list, timeline, at) {
  if (list.length === 0) {
    return at.query.get("key") || at.query.get("id")
      ? empty(
          "No such message",
          "It was handled or cancelled, or never existed. Clear the fields to see the next ones.",
        )
      : empty("Nothing is scheduled", "To schedule a message in ten minutes:", {
          command: `dovetail timeline schedule ${timeline.timeline} 'call Ada' --in 10m`,
        });
  }
  const open = at.query.get("open");
  const toggle = (row) => at.set({ open: open === String(row.id) ? null : row.id });
  return table(at, {
    label: "Messages",
    rows: list,
    key: (row) => row.id,
    name: "messages",
    columns: [
      {
        name: "id",
        label: "Id",
        kind: "number tight",
        cell: (row) =>
          h(
            "button",
            {
              type: "button",
              class: "button small",
              "aria-expanded": open === String(row.id) ? "true" : "false",
              "aria-label": `Message ${row.id}`,
              onclick: () => toggle(row),
            },
            String(row.id),
          ),
      },
      {
        name: "state",
        label: "State",
        kind: "tight",
        cell: (row) => tag(row.state, STATE_TONES[row.state] ?? "", { dot: true }),
      },
      { name: "due", label: "Due", kind: "tight", cell: (row) => ago(row.due_ms, at.nowMs) },
      {
        name: "key",
        label: "Key",
        cell: (row) => row.key ?? h("span", { class: "faint" }, "none"),
      },
      figure("attempts", "Attempts"),
      { name: "body", label: "Body", kind: "line", cell: (row) => line(row.body) },
      { name: "act", label: "", kind: "tight", cell: (row) => actions(row, timeline, at) },
    ],
    after: (row, width) => (open === String(row.id) ? whole(row, width, timeline, at) : null),
  });
}

function actions(row, timeline, at) {
  if (row.state === "leased" || row.state === "dead") return null;
  return h(
    "span",
    { class: "buttons" },
    button("Move", async () => (await move(timeline.timeline, row)) && at.load(), {
      kind: "small",
      label: `Move message ${row.id}`,
    }),
    button("Cancel", () => cancel(timeline, row, at), {
      kind: "small danger",
      label: `Cancel message ${row.id}`,
    }),
  );
}

async function cancel(timeline, row, at) {
  const done = await danger({
    title: `Cancel message ${row.id}?`,
    lost: h(
      "p",
      null,
      "Lost for good: ",
      h("strong", null, row.key ? `the message with the key ${row.key}` : `message ${row.id}`),
      ` of ${timeline.timeline}, due ${exact(row.due_ms)}, ${bytes(row.body?.size)}. Nobody ` +
        "will get it.",
    ),
    confirm: "Cancel message",
    act: () => remove(address(["timelines", timeline.timeline, "messages", row.id])),
  });
  if (done) {
    say(`Cancelled message ${row.id}.`);
    at.load();
  }
}

async function unschedule(timeline, row, at) {
  const done = await danger({
    title: `Remove schedule ${row.name}?`,
    lost: h(
      "p",
      null,
      "It creates no more messages. Those that wait already stay.",
    ),
    confirm: "Remove schedule",
    act: () => remove(address(["timelines", timeline.timeline, "schedules", row.name])),
  });
  if (done) at.reload();
}

async function setPaused(timeline, at) {
  const paused = !timeline.config.paused;
  try {
    await patch(address(["timelines", timeline.timeline]), { config: { paused } });
    at.reload();
  } catch (error) {
    say(error.message, "bad");
  }
}

async function purge(timeline, at) {
  const messages = timeline.waiting + timeline.due;
  const done = await danger({
    title: `Purge ${timeline.timeline}?`,
    lost: h(
      "p",
      null,
      `All messages that nobody is handling, ${plural(messages, "message")} now. ` +
        "Dead letters and schedules stay. This cannot be undone.",
    ),
    confirm: "Purge",
    act: () => post(address(["timelines", timeline.timeline, "purge"])),
  });
  if (done) at.reload();
}

function deleteTimeline(timeline, at) {
  const messages = timeline.waiting + timeline.due + timeline.leased;
  return deletion(at, {
    what: "timeline",
    name: timeline.timeline,
    path: ["timelines", timeline.timeline],
    back: "/timelines",
    sure: true,
    lost: [
      h(
        "strong",
        null,
        `${plural(messages, "message")}, ${plural(timeline.dead, "dead letter")} and ` +
          `${plural((timeline.schedules ?? []).length, "schedule")}`,
      ),
      ". This cannot be undone.",
    ],
  });
}
