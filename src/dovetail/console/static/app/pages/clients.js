/** Who is connected to this node: producers, consumers, and everybody else. */

import { UNKNOWN, plural, span } from "../format.js";
import { listing, partOf } from "../list.js";
import { figure } from "../columns.js";
import { h } from "../dom.js";
import { tag } from "../parts.js";

export const page = {
  title: () => "Connections",
  watch: (at) => [partOf("clients", at, { sorts: SORTS })],
  view({ clients: { clients, total, node } }, at) {
    return listing(at, {
      title: "Connections",
      rows: clients,
      total,
      name: "client",
      key: (row) => row.address,
      searches: "Contains",
      note: () =>
        `${plural(total, "connection")} to the Kafka port of ${node || "this node"}; other ` +
        "nodes list their own",
      columns: COLUMNS,
      noMatch: ["No connection matches", "Clear the filter to see all of them."],
      nothing: ["Nobody is connected", "Clients connect when they first need this node."],
    });
  },
};

/** The node's name of each column that it sorts by. */
const SORTS = {
  client: "client",
  user: "user",
  address: "address",
  software: "software",
  connected: "connected",
  silent: "silent",
};

const text = (name, label, kind = "") => ({
  name,
  label,
  kind,
  sort: (row) => row[name],
  cell: (row) => row[name] || h("span", { class: "faint" }, UNKNOWN),
});

const COLUMNS = [
  text("client", "Client", "name"),
  {
    name: "does",
    label: "Does",
    kind: "tight",
    cell: (row) =>
      h(
        "div",
        { class: "tags" },
        row.produces ? tag("produces") : null,
        row.fetches ? tag("fetches") : null,
        row.produces || row.fetches ? null : h("span", { class: "faint" }, UNKNOWN),
      ),
  },
  text("user", "User"),
  text("address", "Address", "tight"),
  text("software", "Library"),
  figure("connected", "Connected for", { field: "connected_ms", show: span }),
  figure("silent", "Silent for", { field: "silent_ms", show: span }),
];
