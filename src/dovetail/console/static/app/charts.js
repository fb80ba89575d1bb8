/**
 * Small charts, described as any other element. Pure.
 *
 * Each has a text that says the same for those who do not see it.
 */

import { brief, span } from "./format.js";
import { h } from "./dom.js";

const SPARK = { width: 200, height: 32, spanMsMin: 15_000, spanMsMax: 120_000 };

/** The course of a figure over the last two minutes, in steps: it holds until it changes. */
export function spark(points, nowMs, label) {
  const known = points.length > 0 ? nowMs - points[0][0] : 0;
  const spanMs = Math.min(SPARK.spanMsMax, Math.max(SPARK.spanMsMin, known));
  const recent = points.filter(
    (_, index) => index + 1 === points.length || points[index + 1][0] > nowMs - spanMs,
  );
  const top = Math.max(...recent.map(([, value]) => value), 1e-9);
  const x = (at) => Math.max(0, SPARK.width - ((nowMs - at) / spanMs) * SPARK.width).toFixed(1);
  const y = (value) => (SPARK.height - 2 - (value / top) * (SPARK.height - 6)).toFixed(1);
  const steps = recent.map(([at, value], index) =>
    index === 0 ? `M${x(at)},${y(value)}` : `H${x(at)}V${y(value)}`,
  );
  const line = recent.length > 0 ? `${steps.join("")}H${SPARK.width}` : "";
  const area = recent.length > 0 ? `${line}V${SPARK.height}H${x(recent[0][0])}Z` : "";
  return h(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${SPARK.width} ${SPARK.height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    h("path", { class: "fill", d: area }),
    h("path", { class: "stroke", d: line }),
  );
}

/** Messages that become due in each of the next windows. */
export function histogram(values, windowMs, label) {
  const top = niceTop(Math.max(...values, 1));
  const all = values.length * windowMs;
  return h(
    "div",
    { class: "bars", role: "img", "aria-label": label },
    h(
      "div",
      { class: "bars-scale", "aria-hidden": "true" },
      [1, 0.5, 0].map((part) => h("span", null, brief(top * part))),
    ),
    h(
      "div",
      { class: "bars-plot" },
      values.map((value, index) =>
        h("span", {
          title: `in ${span(index * windowMs)} to ${span((index + 1) * windowMs)}: ${brief(value)}`,
          style: { height: `${value === 0 ? 0 : Math.max(1.5, (value / top) * 100)}%` },
        }),
      ),
    ),
    h(
      "div",
      { class: "bars-time", "aria-hidden": "true" },
      ["now", `+${span(all / 2)}`, `+${span(all)}`].map((text) => h("span", null, text)),
    ),
  );
}

function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const factor of [1, 2, 4, 5, 10]) {
    if (value <= factor * power && factor * power >= 2) return factor * power;
  }
  return Math.max(2, 10 * power);
}

/** A part of a whole as a bar. */
export function share(part, label) {
  const width = `${Math.round(Math.min(1, Math.max(0, part)) * 100)}%`;
  return h(
    "span",
    { class: "share", role: "img", "aria-label": label },
    h("span", { style: { width } }),
  );
}

/** Parts of a whole side by side. */
export function strip(parts, label) {
  const whole = parts.reduce((total, part) => total + part.size, 0) || 1;
  return h(
    "div",
    { class: "strip", role: "img", "aria-label": label },
    parts.map((part) =>
      h("span", { title: part.title, style: { width: `${(part.size / whole) * 100}%` } }),
    ),
  );
}
