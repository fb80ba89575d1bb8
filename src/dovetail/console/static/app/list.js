/**
 * A page with a list: a head with a note, a filter by name, a table, and what to do while it is
 * empty. All lists of the console are made by it.
 */

import { empty, field, filters, head, table } from "./parts.js";

/** The field that filters by what somebody types; the text is in the address. */
export function search(at, label = "Name contains") {
  return field(
    label,
    {
      type: "search",
      value: at.query.get("filter") ?? "",
      autocomplete: "off",
      oninput: (event) => at.set({ filter: event.target.value }, { typing: true }),
    },
    { kind: "wide" },
  );
}

/**
 * What the page shows. `name` is the column that names a row; `note` describes the rows shown.
 * `nothing` are the arguments of `empty` for a list without rows, `noMatch` those for a filter that
 * leaves none; without `noMatch` there is no filter. `controls` are filters beside the one by name,
 * and `narrowed` says that they leave rows out.
 */
export function listing(at, { title, rows, name, note, columns, nothing, ...more }) {
  const { key = (row) => row[name], tools = [], noMatch, controls = [], narrowed = false } = more;
  const text = noMatch ? (at.query.get("filter") ?? "") : "";
  const shown = rows.filter((row) => row[name].includes(text));
  const about = text || narrowed ? noMatch : nothing;
  return [
    head(title, { note: note(shown), tools: [...tools, at.live()] }),
    noMatch ? filters(search(at), controls) : null,
    shown.length > 0
      ? table(at, { label: title, rows: shown, key, sort: name, columns })
      : empty(...about),
  ];
}
