/**
 * The message browser: records of a topic by offset, time, key or text; and one record in full.
 *
 * Everything that decides what is shown is in the address. At the newest messages it follows the
 * topic: new ones come in while the page is live.
 */

import { address, read } from "../api.js";
import { again, asCommands, commandList } from "../again.js";
import { body, headers, line } from "../body.js";
import { bySchema, hasSchema, readBySchema } from "../schemas.js";
import { ago, button, empty, facts, field, filters, head, loading, note, table } from "../parts.js";
import { count, exact, plural } from "../format.js";
import { h } from "../dom.js";
import { produce } from "../produce.js";
import { say } from "../said.js";
import { to } from "../router.js";

const FROM = [
  ["latest", "Newest"],
  ["earliest", "Oldest"],
  ["offset", "Offset"],
  ["time", "Time"],
];
const LIMITS = ["20", "50", "100", "500"];

const wishes = (at) => {
  const from = at.query.get("from") ?? "latest";
  const cut = from.indexOf(":");
  return {
    topic: at.query.get("topic") ?? "",
    partition: at.query.get("partition") ?? "",
    from,
    start: cut < 0 ? from : from.slice(0, cut),
    place: cut < 0 ? "" : from.slice(cut + 1),
    before: at.query.get("before") ?? "",
    key: at.query.get("key") ?? "",
    contains: at.query.get("contains") ?? "",
    limit: at.query.get("limit") ?? "50",
    open: at.query.get("open") ?? "",
  };
};

/** An offset or a time without its value yet: the newest, until it is typed. */
const complete = (wish) =>
  wish.start === "offset" || wish.start === "time" ? wish.place !== "" : true;

const follows = (wish) => wish.start === "latest" && wish.before === "" && wish.topic !== "";

const source = (wish) =>
  address(["topics", wish.topic, "messages"], {
    partition: wish.partition,
    from: wish.before || !complete(wish) ? null : wish.from,
    before: wish.before,
    key: wish.key,
    contains: wish.contains,
    limit: wish.limit,
  });

/** What can be chosen from. */
const TOPICS = "topics?internal=true";

export const page = {
  title: (at) => (wishes(at).topic ? `Messages of ${wishes(at).topic}` : "Messages"),
  watch: (at) => [TOPICS, ...(wishes(at).topic ? [`topic:${wishes(at).topic}`] : [])],
  loadedBy: (at) => source(wishes(at)),
  load: async (at) => (wishes(at).topic ? read(source(wishes(at))) : {}),
  arrived(watch, doc, at) {
    const wish = wishes(at);
    if (watch !== `topic:${wish.topic}` || !follows(wish)) return;
    const ends = doc.partitions.map((row) => row.end).join(" ");
    const moved = at.local.ends !== undefined && at.local.ends !== ends;
    at.local.ends = ends;
    if (moved) at.loadIn(300);
  },
  view(docs, at) {
    const wish = wishes(at);
    const topic = docs[`topic:${wish.topic}`];
    return [
      head("Messages", {
        crumbs: wish.topic
          ? [
              ["Topics", "/topics"],
              [wish.topic, to("topics", wish.topic)],
            ]
          : [],
        note: wish.topic ? noteOf(docs.loaded ?? {}, wish) : "Choose a topic to look into.",
        tools: [
          topic && !topic.internal
            ? button("Produce", () => produced(topic, at), { kind: "primary" })
            : null,
          at.live(),
        ],
      }),
      asked(docs.topics.topics, topic, wish, at),
      wish.topic ? found(docs.loaded, topic, wish, at) : noTopic(docs.topics.topics),
    ];
  },
};

const numbersOf = (topic) => topic.partitions.map((row) => row.partition);

async function produced(topic, at) {
  if (await produce(topic.topic, numbersOf(topic))) at.load();
}

async function producedAgain(topic, row, at) {
  if (await again(topic.topic, numbersOf(topic), row)) at.load();
}

function noteOf(loaded, wish) {
  const list = loaded.messages ?? [];
  const looked = wish.key || wish.contains ? ` among ${plural(loaded.scanned ?? 0, "record")}` : "";
  const newest = follows(wish) ? ", following new ones" : "";
  return `${plural(list.length, "message")}${looked}${newest}`;
}

function noTopic(topics) {
  if (topics.some((row) => !row.internal)) return null;
  return empty("There are no messages yet", "Nothing has been written yet. To write a message:", {
    command: "dovetail topic create orders && echo 'hello, world' | dovetail produce orders",
  });
}

function asked(topics, topic, wish, at) {
  const back = { before: null, open: null };
  const names = topics.map((row) => row.topic).sort();
  if (wish.topic && !names.includes(wish.topic)) names.unshift(wish.topic);
  const numbers = topic ? topic.partitions.map((row) => String(row.partition)) : [];
  return filters(
    field(
      "Topic",
      {
        value: wish.topic,
        onchange: (event) =>
          at.set({ topic: event.target.value, partition: null, from: null, ...back }),
      },
      { options: [["", "Choose a topic"], ...names.map((name) => [name, name])], kind: "wide" },
    ),
    field(
      "Partition",
      {
        value: wish.partition,
        onchange: (event) => at.set({ partition: event.target.value, ...back }),
      },
      { options: [["", "All"], ...numbers.map((number) => [number, number])], kind: "narrow" },
    ),
    field(
      "Start at",
      {
        value: wish.start,
        onchange: (event) => at.set({ from: started(event.target.value), ...back }),
      },
      { options: FROM, kind: "narrow" },
    ),
    wish.start === "offset"
      ? field(
          "Offset",
          {
            type: "number",
            min: 0,
            value: wish.place,
            onchange: (event) => at.set({ from: `offset:${event.target.value}`, ...back }),
          },
          { kind: "narrow" },
        )
      : null,
    wish.start === "time"
      ? field("Time", {
          type: "datetime-local",
          step: 1,
          value: localTime(wish.place),
          onchange: (event) =>
            at.set({ from: `time:${new Date(event.target.value).getTime()}`, ...back }),
        })
      : null,
    field("Key is", {
      type: "search",
      value: wish.key,
      autocomplete: "off",
      onchange: (event) => at.set({ key: event.target.value, ...back }),
    }),
    field("Value contains", {
      type: "search",
      value: wish.contains,
      autocomplete: "off",
      onchange: (event) => at.set({ contains: event.target.value, ...back }),
    }),
    field(
      "At most",
      { value: wish.limit, onchange: (event) => at.set({ limit: event.target.value, ...back }) },
      { options: LIMITS.map((limit) => [limit, limit]), kind: "narrow" },
    ),
  );
}

function started(kind) {
  if (kind === "latest") return null;
  if (kind === "offset") return "offset:0";
  if (kind === "time") return `time:${Date.now() - 3_600_000}`;
  return kind;
}

function localTime(place) {
  const at = new Date(Number(place) || place);
  if (Number.isNaN(at.getTime())) return "";
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function found(loaded, topic, wish, at) {
  if (loaded === null) return loading();
  const list = loaded.messages ?? [];
  if (list.length === 0) return nothing(loaded, wish);
  return [
    h("div", { key: "list" }, rows(list, topic, wish, at)),
    loaded.complete === false
      ? note(
          "warn",
          `Only the first ${plural(loaded.scanned, "record")} were examined`,
          "There may be more after them. Start at a later offset or time, or choose one " +
            "partition.",
        )
      : null,
    paging(loaded, wish, at),
  ];
}

function nothing(loaded, wish) {
  if (wish.key || wish.contains) {
    return empty(
      "No message matches",
      `${plural(loaded.scanned ?? 0, "record")} were looked at. A key has to be the same ` +
        "letter by letter.",
    );
  }
  return empty("No message here", "The topic is empty from here on. To write a message:", {
    command: `echo 'hello, world' | dovetail produce ${wish.topic}`,
  });
}

function rows(list, topic, wish, at) {
  const openId = wish.open;
  const idOf = (row) => `${row.partition}:${row.offset}`;
  const toggle = (row) => at.set({ open: openId === idOf(row) ? null : idOf(row) });
  return table(at, {
    label: "Messages",
    rows: list,
    key: idOf,
    columns: [
      {
        name: "time",
        label: "Time",
        kind: "tight",
        cell: (row) => ago(row.timestamp_ms, at.nowMs),
      },
      {
        name: "partition",
        label: "Partition",
        kind: "number tight",
        cell: (row) => count(row.partition),
      },
      {
        name: "offset",
        label: "Offset",
        kind: "number tight",
        cell: (row) =>
          h(
            "button",
            {
              type: "button",
              class: "button small",
              "aria-expanded": openId === idOf(row) ? "true" : "false",
              "aria-label": `Message ${row.offset} of partition ${row.partition}`,
              onclick: () => toggle(row),
            },
            String(row.offset),
          ),
      },
      { name: "key", label: "Key", cell: (row) => line(row.key) },
      { name: "value", label: "Value", kind: "line", cell: (row) => line(row.value) },
    ],
    after: (row, width) => (openId === idOf(row) ? whole(row, width, topic, at) : null),
  });
}

function whole(row, width, topic, at) {
  const chosen = at.query.get("as");
  return h(
    "tr",
    { class: "whole", role: "row", key: `open ${row.partition}:${row.offset}` },
    h(
      "td",
      { role: "cell", class: "bare", colspan: width, "data-label": "" },
      h(
        "div",
        { class: "section" },
        facts(
          [
            "Written",
            h(
              "span",
              null,
              exact(row.timestamp_ms),
              h(
                "span",
                { class: "faint" },
                row.timestamp_type === "append"
                  ? ", by the node's clock"
                  : ", by the producer's clock",
              ),
            ),
          ],
          ["Place", `partition ${row.partition}, offset ${row.offset}`],
          ["Key", line(row.key)],
        ),
        headers(row.headers),
        body("Value", row.value, chosen, (kind) => at.set({ as: kind })),
        more(row, topic, at),
      ),
    ),
  );
}

/** What else can be done with a message; what was asked for is shown below. */
function more(row, topic, at) {
  if (!topic) return null;
  const id = `${row.partition}:${row.offset}`;
  const asked = at.local.more?.id === id ? at.local.more : {};
  const way = (name, text, ask) => {
    const open = asked.name === name;
    const act = () => askedFor({ id, name, ask, hide: open }, at);
    return button(text, act, { expanded: open });
  };
  return [
    h(
      "div",
      { class: "buttons" },
      hasSchema(row) ? way("schema", "By schema", () => readBySchema(topic.topic, row)) : null,
      way("commands", "As commands", () => asCommands(topic.topic, row)),
      topic.internal ? null : button("Produce again", () => producedAgain(topic, row, at)),
    ),
    asked.name === "schema" ? bySchema(asked.found) : null,
    asked.name === "commands" ? commandList(asked.found) : null,
  ];
}

async function askedFor({ id, name, ask, hide }, at) {
  try {
    at.local.more = hide ? null : { id, name, found: await ask() };
  } catch (error) {
    say(error.message, "bad");
  }
  at.draw();
}

function paging(loaded, wish, at) {
  if (wish.partition === "" && Object.keys(loaded.next ?? {}).length > 1) {
    return h("p", { class: "soft" }, "Choose a partition to page through all of its messages.");
  }
  const partition = wish.partition || Object.keys(loaded.next ?? {})[0];
  const older = loaded.previous?.[partition];
  const newer = loaded.next?.[partition];
  return h(
    "nav",
    { class: "buttons", "aria-label": "More messages" },
    button("Older", () => at.set({ partition, before: String(older), from: null, open: null }), {
      disabled: !(older > 0),
    }),
    button(
      "Newer",
      () => at.set({ partition, before: null, from: `offset:${newer}`, open: null }),
      { disabled: newer === undefined || follows(wish) },
    ),
    button("Newest", () => at.set({ before: null, from: null, open: null }), {
      disabled: follows(wish),
    }),
  );
}
