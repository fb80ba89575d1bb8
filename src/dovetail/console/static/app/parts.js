/**
 * Parts that all pages are made of: heads, tiles, tables, tags, empty states.
 */

import { UNKNOWN, exact, relative } from "./format.js";
import { awaySince } from "./away.js";
import { h } from "./dom.js";
import { say } from "./said.js";

/** Rows of a table that are drawn before it asks. More are rarely read, and cost every second. */
const ROWS_MAX = 200;

/** Tables with more columns than this become cards on a tablet already. */
const COLUMNS_FEW = 5;

/** The head of a page: name, what leads to it, what it says, what can be done. */
export function head(title, { crumbs = [], note = null, tools = [] } = {}) {
  return h(
    "div",
    { class: "page-head" },
    h(
      "div",
      { class: "page-name" },
      crumbs.length
        ? h(
            "nav",
            { class: "crumbs", "aria-label": "Where this page is" },
            crumbs.map(([name, href]) => [
              h("a", { href }, name),
              h("span", { "aria-hidden": "true" }, "/"),
            ]),
          )
        : null,
      h("h1", null, title),
      note ? h("p", null, note) : null,
    ),
    h("div", { class: "page-tools" }, tools),
  );
}

export function section(title, { note = null, tools = null } = {}, ...children) {
  return h(
    "section",
    { class: "section", "aria-label": title },
    h(
      "div",
      { class: "section-head" },
      h("div", null, h("h2", null, title), note ? h("p", null, note) : null),
      tools ? h("div", { class: "buttons" }, tools) : null,
    ),
    children,
  );
}

/** One figure. `href` makes it a way, `tone` is "bad" or "warn". */
export function tile(
  name,
  figure,
  { note = null, href = null, tone = "", chart = null, title = null } = {},
) {
  return h(
    href ? "a" : "div",
    { class: `tile ${tone}`, href, title, key: name },
    h("span", { class: "tile-name" }, name),
    h("span", { class: "tile-figure" }, figure),
    note ? h("span", { class: "tile-note" }, note) : null,
    chart,
  );
}

export const tiles = (...children) => h("div", { class: "tiles" }, children);

export function tag(text, tone = "", { dot = false, title = null } = {}) {
  return h("span", { class: `tag ${tone}${dot ? " dot" : ""}`, title }, text);
}

/** A point in time: relative to now, exact as its title. */
export function ago(timeMs, nowMs) {
  if (timeMs === null || timeMs === undefined) return UNKNOWN;
  return h(
    "time",
    { datetime: new Date(timeMs).toISOString(), title: exact(timeMs) },
    relative(timeMs, nowMs),
  );
}

export function facts(...pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => [h("dt", null, name), h("dd", null, value)]),
  );
}

export function note(tone, title, text = null, ...children) {
  return h(
    "div",
    { class: `note ${tone}`, role: tone === "bad" ? "alert" : null },
    h("strong", null, title),
    text ? h("p", null, text) : null,
    children,
  );
}

/** Nothing is there: what it would be, and the command that makes one. */
export function empty(title, text, { command: line = null, button: action = null } = {}) {
  return h(
    "div",
    { class: "empty" },
    h("h2", null, title),
    h("p", null, text),
    line ? command(line) : null,
    action,
  );
}

/** What was asked for is on its way. */
export const loading = () => h("p", { class: "loading", key: "loading" }, "Loading…");

/** A command to copy. */
export function command(line) {
  return h(
    "div",
    { class: "command" },
    h("code", null, line),
    h(
      "button",
      {
        type: "button",
        class: "button small quiet",
        "aria-label": `Copy: ${line}`,
        onclick: () => copy(line),
      },
      "Copy",
    ),
  );
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser does not let this page copy. Select the text and copy it by hand.", "bad");
  }
}

/** A button that needs the node, unless it is `local`. */
export function button(
  text,
  onclick,
  { kind = "", disabled = false, label = null, title = null, local = false, expanded = null } = {},
) {
  const away = !local && awaySince() !== null;
  return h(
    "button",
    {
      type: "button",
      class: `button ${kind}`,
      onclick,
      disabled: disabled || away,
      "aria-label": label,
      "aria-expanded": expanded === null ? null : String(expanded),
      title: away ? "The node does not answer" : title,
    },
    text,
  );
}

/** A field with its label. `props` go to the input. */
export function field(label, props, { note: hint = null, kind = "", options = null } = {}) {
  const given = hint ? { ...props, "aria-description": hint } : props;
  const input = options
    ? h(
        "select",
        given,
        options.map(([value, text]) =>
          h("option", { value, selected: value === props.value }, text),
        ),
      )
    : h(props.rows ? "textarea" : "input", given);
  return h(
    "div",
    { class: `field ${kind}` },
    h("label", null, h("span", null, label), input),
    hint ? h("small", { "aria-hidden": "true" }, hint) : null,
  );
}

/** Filters that live in the address. */
export function filters(...children) {
  return h(
    "form",
    { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    children,
  );
}

/** One of a few, as buttons side by side. */
export function choices(label, options, chosen, onchoose) {
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": label },
    options.map(([value, text]) =>
      h(
        "button",
        {
          type: "button",
          class: "choice",
          "aria-pressed": value === chosen ? "true" : "false",
          onclick: () => onchoose(value),
          key: value,
        },
        text,
      ),
    ),
  );
}

/**
 * A table. Columns: {name, label, kind, sort, cell}; `kind` is "number", "name", "tight" or "line".
 * The order is in the address (`sort=lag`, `sort=-lag`), on narrow screens each row is a card.
 * `sorted`: the rows are in that order.
 */
export function table(at, { label, columns, rows, key, sort = null, ...more }) {
  const { after = null, name = "sort", sorted: isSorted = false } = more;
  const order = at.query.get(name) ?? sort;
  const sorted = isSorted ? rows : inOrder(rows, columns, order);
  const all = at.query.get("all") === "1";
  const drawn = all ? sorted : sorted.slice(0, ROWS_MAX);
  return [
    h(
      "div",
      { class: columns.length > COLUMNS_FEW ? "as-cards" : "as-cards few" },
      h(
        "div",
        { class: "table-card" },
        h(
          "table",
          { role: "table", "aria-label": label },
          h(
            "thead",
            { role: "rowgroup" },
            h(
              "tr",
              { role: "row" },
              columns.map((column) => heading(at, column, order, name)),
            ),
          ),
          h(
            "tbody",
            { role: "rowgroup" },
            drawn.map((row) => [
              h(
                "tr",
                { role: "row", key: key(row) },
                columns.map((column) => cell(column, row)),
              ),
              after ? after(row, columns.length) : null,
            ]),
          ),
        ),
      ),
    ),
    drawn.length < sorted.length
      ? button(`Show all ${sorted.length}`, () => at.set({ all: "1" }), { local: true })
      : null,
  ];
}

function inOrder(rows, columns, order) {
  if (!order) return rows;
  const down = order.startsWith("-");
  const column = columns.find((one) => one.name === (down ? order.slice(1) : order));
  if (!column?.sort) return rows;
  return [...rows].sort((a, b) =>
    down ? compare(column.sort(b), column.sort(a)) : compare(column.sort(a), column.sort(b)),
  );
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return a < b ? -1 : 1;
}

function heading(at, column, order, name) {
  const kind = column.kind === "number" ? "number" : "";
  if (!column.sort) {
    return h(
      "th",
      { role: "columnheader", scope: "col", class: kind, key: column.name },
      column.label,
    );
  }
  const up = order === column.name;
  const down = order === `-${column.name}`;
  const first = column.kind === "number" ? `-${column.name}` : column.name;
  const other = column.kind === "number" ? column.name : `-${column.name}`;
  return h(
    "th",
    {
      role: "columnheader",
      scope: "col",
      class: kind,
      key: column.name,
      "aria-sort": up ? "ascending" : down ? "descending" : "none",
    },
    h(
      "button",
      {
        type: "button",
        class: "sort",
        onclick: () => at.set({ [name]: order === first ? other : first, from: null }),
      },
      column.label,
    ),
  );
}

function cell(column, row) {
  return h(
    "td",
    { role: "cell", class: column.kind ?? "", "data-label": column.label, key: column.name },
    column.cell(row),
  );
}
