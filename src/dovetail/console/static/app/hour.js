/**
 * Charts of the last hour, from figures in equal steps. Pure, but for where the pointer is.
 *
 * A line breaks where nothing is known. Lines differ by their dashes as well as by colour, and each
 * chart has a text that says the same.
 */

import { UNKNOWN, exact, span } from "./format.js";
import { h } from "./dom.js";

/** Steps back in which a value still counts as the present one. */
const RECENT = 3;
const HEIGHT = 100;
/** A young node's charts begin with its first figure, in these steps: a line that fills no pixel
 *  of the hour says nothing. */
const SPAN_STEP_MS = 300_000;
/** Room above the highest value. */
const ABOVE = 2;

/** The newest value, if it is recent; else null. */
const present = (values) =>
  values.slice(-RECENT).findLast((value) => value !== null && value !== undefined) ?? null;

const known = (values) => values.filter((value) => value !== null && value !== undefined);

/** As much of a document's hour as its figures fill: how many steps to leave out, and the rest. */
export function filled(about, lines) {
  const count = lines[0].length;
  const firsts = lines.map((values) => values.findIndex((value) => known([value]).length > 0));
  const first = Math.min(...firsts.map((at) => (at < 0 ? count - 1 : at)));
  const spanMs = Math.ceil(((count - first) * about.step_ms) / SPAN_STEP_MS) * SPAN_STEP_MS;
  const skip = Math.max(0, count - Math.ceil(spanMs / about.step_ms));
  return { first_ms: about.first_ms + skip * about.step_ms, step_ms: about.step_ms, skip };
}

/** The outline of a line: steps, with gaps where a value is unknown. */
function outline(values, top) {
  let path = "";
  let open = false;
  values.forEach((value, at) => {
    if (value === null || value === undefined) {
      open = false;
      return;
    }
    const y = (HEIGHT - (value / top) * (HEIGHT - ABOVE)).toFixed(1);
    path += open ? `V${y}H${at + 1}` : `M${at},${y}H${at + 1}`;
    open = true;
  });
  return path;
}

/** The ground below a line. */
function ground(values, top) {
  let path = "";
  let from = null;
  const close = (at) => {
    if (from !== null) path += `H${at}V${HEIGHT}H${from}Z`;
    from = null;
  };
  values.forEach((value, at) => {
    if (value === null || value === undefined) return close(at);
    const y = (HEIGHT - (value / top) * (HEIGHT - ABOVE)).toFixed(1);
    path += from === null ? `M${at},${y}` : `H${at}V${y}`;
    from ??= at;
  });
  close(values.length);
  return path;
}

/** What a chart says to those who do not see it. */
function said(name, lines, show) {
  const parts = lines.map(({ label, values }) => {
    const found = known(values);
    const of = label ? `${label} ` : "";
    if (found.length === 0) return `${of}not known`;
    const peak = show(Math.max(...found));
    const low = show(Math.min(...found));
    return `${of}now ${show(present(values))}, at most ${peak}, at least ${low}`;
  });
  return `${name} over the last hour: ${parts.join("; ")}`;
}

/** Values under the pointer, or the span of time. */
function timeLine(about, hover, lines, show) {
  const { first_ms: first, step_ms: step } = about;
  const count = lines[0].values.length;
  if (hover === null) {
    return [span(count * step), span((count * step) / 2), "now"].map((text, at) =>
      h("span", null, at < 2 ? `${text} ago` : text),
    );
  }
  const at = exact(first + hover * step).slice(11, 19);
  const values = lines.map(({ label, values }) => `${label} ${show(values[hover])}`.trim());
  return h("span", { class: "chart-read" }, `${at}: ${values.join(", ")}`);
}

/**
 * One chart. `about`: of `filled`; `wholes`: [{label, values}], at most two; `show` formats
 * a value. `top` is the top of the scale, for charts that are compared.
 */
export function course(at, about, name, wholes, show, { top = null } = {}) {
  const lines = wholes.map(({ label, values }) => ({ label, values: values.slice(about.skip) }));
  const count = lines[0].values.length;
  const all = lines.flatMap((line) => known(line.values));
  const highest = top ?? Math.max(...all, 0);
  const scale = highest > 0 ? highest : 1;
  const hover = at.local.hover?.name === name ? at.local.hover.step : null;
  const follow = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const step = Math.floor(((event.clientX - box.left) / box.width) * count);
    at.local.hover = { name, step: Math.min(count - 1, Math.max(0, step)) };
    at.draw();
  };
  const leave = () => {
    at.local.hover = null;
    at.draw();
  };
  return h(
    "figure",
    { class: "chart", key: name },
    h(
      "figcaption",
      null,
      h("span", { class: "chart-name" }, name),
      lines.map(({ label, values }, line) =>
        h(
          "span",
          { class: `chart-now line-${line}` },
          label ? h("span", { class: "chart-key" }, label) : null,
          h("strong", null, all.length === 0 ? UNKNOWN : show(present(values))),
        ),
      ),
    ),
    h(
      "div",
      {
        class: "chart-plot",
        role: "img",
        "aria-label": said(name, lines, show),
        onpointermove: follow,
        onpointerleave: leave,
      },
      h("span", { class: "chart-top", "aria-hidden": "true" }, all.length ? show(highest) : ""),
      h(
        "svg",
        {
          viewBox: `0 0 ${count} ${HEIGHT}`,
          preserveAspectRatio: "none",
          "aria-hidden": "true",
        },
        h("path", { class: "fill", d: ground(lines[0].values, scale) }),
        lines.map((line, index) =>
          h("path", { class: `line line-${index}`, d: outline(line.values, scale) }),
        ),
        hover === null
          ? null
          : h("path", { class: "pointer", d: `M${hover + 0.5},0V${HEIGHT}` }),
      ),
    ),
    h(
      "div",
      { class: "chart-time", "aria-hidden": "true" },
      timeLine(about, hover, lines, show),
    ),
  );
}

export const courses = (...charts) => h("div", { class: "charts" }, charts);
