/**
 * A page with a list: a head with a note, a filter by name, a table, and what to do while it is
 * empty. All lists of the console are made by it.
 */

import { button, empty, field, filters, head, table } from "./parts.js";
import { count } from "./format.js";
import { h } from "./dom.js";

/** The field that filters by what somebody types; the text is in the address. */
export function search(at, label = "Name contains") {
  return field(
    label,
    {
      type: "search",
      value: at.query.get("filter") ?? "",
      autocomplete: "off",
      oninput: (event) => at.set({ filter: event.target.value, from: null }, { typing: true }),
    },
    { kind: "wide" },
  );
}

/** Rows of a page of a list that the node cuts. */
const PAGE_ROWS = 100;

/** The watch of a list that the node filters, sorts and cuts as the address says. */
export function partOf(noun, at, { sorts, more = {} }) {
  const order = at.query.get("sort") ?? "";
  const column = sorts[order.replace(/^-/, "")];
  const asked = {
    filter: at.query.get("filter"),
    sort: column ? (order.startsWith("-") ? `-${column}` : column) : null,
    limit: String(PAGE_ROWS),
    offset: at.query.get("from"),
    ...more,
  };
  const given = Object.entries(asked).filter(([, value]) => value);
  return `${noun}?${new URLSearchParams(given)}`;
}

/** Which rows are shown, and the way to the others. */
function turn(at, total) {
  const first = Number(at.query.get("from") ?? 0);
  if (total <= PAGE_ROWS && first === 0) return null;
  const last = Math.min(total, first + PAGE_ROWS);
  const before = first - PAGE_ROWS;
  return h(
    "nav",
    { class: "buttons turn", "aria-label": "Pages of the list" },
    button("Previous", () => at.set({ from: before > 0 ? String(before) : null }), {
      disabled: first === 0,
    }),
    h("span", { class: "soft" }, `${count(first + 1)} to ${count(last)} of ${count(total)}`),
    button("Next", () => at.set({ from: String(first + PAGE_ROWS) }), { disabled: last >= total }),
  );
}

/**
 * What the page shows. `name` is the column that names a row; `note` describes the rows shown.
 * `nothing` are the arguments of `empty` for a list without rows, `noMatch` those for a filter that
 * leaves none; without `noMatch` there is no filter. `controls` are filters beside the one by name,
 * and `narrowed` says that they leave rows out. `total` is how many match where the node filters,
 * sorts and cuts; the rows are shown as they came then.
 */
export function listing(at, { title, rows, name, note, columns, nothing, ...more }) {
  const { key = (row) => row[name], tools = [], noMatch, controls = [], narrowed = false } = more;
  const { searches = "Name contains" } = more;
  const text = noMatch ? (at.query.get("filter") ?? "") : "";
  const { total = null } = more;
  const shown = total === null ? rows.filter((row) => row[name].includes(text)) : rows;
  const about = text || narrowed ? noMatch : nothing;
  return [
    head(title, { note: note(shown), tools: [...tools, at.live()] }),
    noMatch ? filters(search(at, searches), controls) : null,
    shown.length > 0
      ? table(at, { label: title, rows: shown, key, sort: name, columns, sorted: total !== null })
      : empty(...about),
    total === null ? null : turn(at, total),
  ];
}
