/**
 * Columns that many tables have; `table` in parts.js says what a column is.
 */

import { count } from "./format.js";
import { h } from "./dom.js";

/** A figure, shown by `show`. */
export function figure(name, label, { field = name, show = count } = {}) {
  return {
    name,
    label,
    kind: "number",
    sort: (row) => row[field],
    cell: (row) => show(row[field]),
  };
}

/** The name of what a row is about, with a link to its page. */
export function named(name, label, href, { marks = () => null } = {}) {
  return {
    name,
    label,
    kind: "name",
    sort: (row) => row[name],
    cell: (row) => h("span", null, h("a", { href: href(row) }, row[name]), " ", marks(row)),
  };
}

/** Dead letters, with a link to them where there are some; `of` names their place. */
export function deadLetters(source, of, { field = "dead", label = "Dead letters" } = {}) {
  const cell = (row) =>
    row[field]
      ? h("a", { class: "bad-text", href: deadOf(source, of(row)) }, count(row[field]))
      : count(row[field]);
  return { ...figure("dead", label, { field }), cell };
}

/** The address of the dead letters of one place. */
const deadOf = (source, name) => `/dead?source=${source}&name=${encodeURIComponent(name)}`;
