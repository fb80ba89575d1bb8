/** The node and its cluster at a glance: what needs attention, how much flows, who is there. */

import { UNKNOWN, brief, bytes, count, plural, rate, span } from "../format.js";
import { ago, command, empty, facts, head, section, table, tag, tile, tiles } from "../parts.js";
import { course, courses, filled } from "../hour.js";
import { figure } from "../columns.js";
import { h } from "../dom.js";
import { points } from "../history.js";
import { spark } from "../charts.js";
import { to } from "../router.js";

const TONES = { healthy: "good", degraded: "warn", leaving: "warn" };

export const page = {
  title: () => "Overview",
  watch: () => ["overview", "history"],
  without: ["history"],
  view({ overview, history }, at) {
    const { node, cluster, totals } = overview;
    return [
      head("Overview", {
        note:
          (cluster.kind === "embedded" && overview.nodes.length === 1
            ? "One node on its own"
            : plural(overview.nodes.length, "node")) + `, up for ${span(node.uptime_ms)}`,
        tools: [at.live()],
      }),
      attention(overview, at),
      flow(totals, at),
      totals.topics === 0 ? firstSteps(node) : null,
      history ? hour(history, overview, at) : null,
      section(plural(overview.nodes.length, "node"), {}, nodes(overview, at)),
      connect(overview),
    ];
  },
};

/** Where the coordination is, by its kind. */
const COORDINATION = {
  embedded: "embedded, in this process",
  shared: "embedded, in the process that has the disk",
  etcd: "etcd",
};

/** What somebody should look at, the worst first, each with what to do. */
function attention({ node, attention: findings }, at) {
  const about = [...findings];
  if (!node.ready && !about.some((one) => one.noun === "node")) {
    const what = `takes no clients: ${node.reasons.join("; ")}`;
    about.unshift({ grade: "bad", noun: "node", where: node.name, what, todo: "" });
  }
  if (about.length === 0) {
    return h(
      "p",
      { key: "well" },
      tag("Healthy", "good", { dot: true }),
      " ",
      h("span", { class: "soft" }, "Nothing needs attention."),
    );
  }
  return section(
    "Needs attention",
    { note: plural(about.length, "finding") },
    h(
      "ul",
      { class: "attention" },
      about.map((one) => finding(one, at)),
    ),
  );
}

const PLACES = {
  group: (name) => to("groups", name),
  timeline: (name) => to("timelines", name),
  pipeline: (name) => to("pipelines", name),
  dead: () => "/dead",
  topic: () => "/topics",
};
const NOUNS = { dead: "dead letters of" };

function finding(one, at) {
  const href = PLACES[one.noun]?.(one.where);
  return h(
    "li",
    { class: `note ${one.grade}`, key: `${one.noun} ${one.where} ${one.what}` },
    h(
      "p",
      null,
      tag(one.grade === "bad" ? "failing" : "warning", one.grade, { dot: true }),
      " ",
      h(
        "strong",
        null,
        `${NOUNS[one.noun] ?? one.noun} `,
        href ? h("a", { href }, one.where) : one.where,
      ),
      one.since_ms ? h("span", { class: "soft" }, ", began ", ago(one.since_ms, at.nowMs)) : null,
    ),
    h("p", null, one.what),
    one.todo ? h("p", { class: "soft" }, one.todo) : null,
  );
}

function flow(totals, at) {
  return tiles(
    tile("Messages in", rate(totals.records_per_s), {
      note: "all topics",
      href: "/topics?sort=-rate",
      chart: spark(
        points("overview", "rate"),
        at.nowMs,
        `Messages in, now ${rate(totals.records_per_s)}`,
      ),
    }),
    tile("Lag of groups", brief(totals.lag), {
      note: plural(totals.groups, "group"),
      href: "/groups?sort=-lag",
      chart: spark(points("overview", "lag"), at.nowMs, `Lag, now ${count(totals.lag)}`),
    }),
    tile("Due now", brief(totals.due), {
      note: `${brief(totals.waiting)} on timelines`,
      href: "/timelines",
      chart: spark(points("overview", "due"), at.nowMs, `Due, now ${count(totals.due)}`),
    }),
    tile("Dead letters", brief(totals.dead), {
      note: "of every kind",
      href: "/dead",
      tone: totals.dead ? "bad" : "",
    }),
    tile("Records stored", brief(totals.records), {
      note: `in ${plural(totals.topics, "topic")}`,
      href: "/topics",
      title: count(totals.records),
    }),
    tile("Highest term", count(totals.term_highest), { note: "of all partitions" }),
  );
}

const percent = (value) => (value === null ? UNKNOWN : `${brief(value * 100)} %`);
const perSecond = (value) => `${bytes(value)}/s`;

/** Charts of this node alone; in a cluster the others have their own. */
function hour(history, { nodes: list, node }, at) {
  const { figures } = history;
  const line = (label, name) => ({ label, values: figures[name] });
  const about = filled(history, Object.values(figures));
  const others = list.filter((one) => one.node_id !== history.node_id && one.http);
  return section(
    "The last hour",
    {
      note: [
        others.length > 0 ? `As ${node.name} has seen it. ` : "",
        "In memory, empty after a restart.",
        others.length > 0
          ? [
              " Other nodes have their own: ",
              others.map((one, index) => [
                index > 0 ? ", " : "",
                h("a", { href: one.http }, one.name || `node ${one.node_id}`),
              ]),
              ".",
            ]
          : "",
      ],
    },
    courses(
      course(
        at,
        about,
        "Messages",
        [line("in", "records_in_per_s"), line("out", "records_out_per_s")],
        rate,
      ),
      course(
        at,
        about,
        "Bytes",
        [line("in", "bytes_in_per_s"), line("out", "bytes_out_per_s")],
        perSecond,
      ),
      course(at, about, "Lag of groups", [line("", "lag")], brief),
      course(at, about, "Messages due on timelines", [line("", "due")], brief),
      course(
        at,
        about,
        "Lateness",
        [line("delivered", "late_ms"), line("still due", "overdue_ms")],
        span,
      ),
      course(at, about, "Errors answered", [line("", "errors_per_s")], rate),
      course(at, about, "Processor", [line("", "processor")], percent),
      course(at, about, "Memory", [line("", "memory_bytes")], bytes),
      course(at, about, "Connections", [line("", "connections")], brief),
      course(at, about, "Event-loop delay", [line("", "loop_delay_ms")], span),
    ),
  );
}

function firstSteps(node) {
  return empty(
    "Nothing is stored yet",
    `Any Kafka client can write to ${node.kafka}; one that may create topics creates those that ` +
      "it names. To try it:",
    { command: "dovetail topic create orders && echo 'hello, world' | dovetail produce orders" },
  );
}

function nodes({ nodes: list, node }, at) {
  return table(at, {
    label: "Nodes",
    rows: list,
    key: (row) => `${row.node_id} ${row.name}`,
    sort: "name",
    columns: [
      {
        name: "name",
        label: "Node",
        kind: "name",
        sort: (row) => row.name,
        cell: (row) =>
          h(
            "span",
            null,
            row.name || `node ${row.node_id}`,
            row.node_id === node.id ? h("span", { class: "faint" }, " (this one)") : null,
          ),
      },
      {
        name: "health",
        label: "Health",
        sort: (row) => row.health,
        cell: (row) =>
          h(
            "div",
            null,
            tag(row.health, TONES[row.health] ?? "", { dot: true }),
            row.reasons.map((reason) => h("div", { class: "soft" }, reason)),
          ),
      },
      {
        name: "roles",
        label: "Roles",
        cell: (row) =>
          h(
            "div",
            { class: "tags" },
            row.roles.map((role) => tag(role)),
          ),
      },
      {
        name: "address",
        label: "Address",
        kind: "tight",
        cell: (row) => h("span", { class: "mono" }, row.address),
      },
      figure("partitions", "Partitions"),
      figure("stored", "Stored", { field: "stored_bytes", show: bytes }),
      figure("latency", "Latency", { field: "latency_ms", show: span }),
      { name: "version", label: "Version", kind: "tight", cell: (row) => row.version },
    ],
  });
}

function connect({ node, nodes: list, cluster }) {
  const alone = cluster.kind === "embedded" && list.length === 1;
  return section(
    "Connect",
    { note: "Any Kafka client works. Brokers advertise these addresses." },
    h(
      "div",
      { class: "card" },
      facts(
        ["Kafka", command(node.kafka)],
        ["HTTP", command(node.http ?? "")],
        [
          "Coordination",
          COORDINATION[cluster.kind] +
            (alone ? "" : `, ${plural(list.length, "node")} registered`),
        ],
        ["This node", `${node.name}, roles ${node.roles.join(", ")}, version ${node.version}`],
      ),
    ),
  );
}
