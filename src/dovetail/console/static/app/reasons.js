/** Dead letters by reason, for every page that has some. */

import { ago, section, table } from "./parts.js";
import { count, plural } from "./format.js";
import { figure } from "./columns.js";
import { h } from "./dom.js";

/** The watch of the reasons of one place. */
export const reasonsOf = (source, name) => `reasons?${new URLSearchParams({ source, name })}`;

const time = (name, label, figureName, at) => ({
  name,
  label,
  kind: "tight",
  cell: (row) => ago(row[figureName], at.nowMs),
});

/** Why letters of a place died, the most frequent reason first; nothing where none did. */
export function reasons(found, place, at, { title = "Errors by reason" } = {}) {
  if (!found || found.reasons.length === 0) return null;
  const all = found.total !== null && found.total <= found.looked_at;
  const href = `/dead?${new URLSearchParams(place)}`;
  return section(
    title,
    {
      note: [
        all
          ? plural(found.looked_at, "dead letter")
          : `Among ${count(found.looked_at)} of ${count(found.total)} dead letters`,
        ". Numbers and quoted words are left out of a reason. ",
        h("a", { href }, "Read, replay or drop them"),
      ],
    },
    table(at, {
      label: title,
      rows: found.reasons,
      key: (row) => row.reason,
      name: "reasons",
      columns: [
        {
          name: "reason",
          label: "Reason",
          kind: "name",
          cell: (row) => h("span", { title: row.example }, row.reason),
        },
        figure("letters", "Letters"),
        time("first", "First", "first_ms", at),
        time("last", "Last", "last_ms", at),
      ],
    }),
  );
}
