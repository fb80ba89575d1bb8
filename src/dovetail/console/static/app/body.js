/**
 * Bytes of one message, shown as JSON, text or hex, as the reader chooses; and headers.
 */

import { fromWire, inLine, kindOf, shown } from "./decode.js";
import { bytes as size } from "./format.js";
import { button, choices, copy, facts } from "./parts.js";
import { h } from "./dom.js";

const KINDS = [
  ["json", "JSON"],
  ["text", "Text"],
  ["hex", "Hex"],
];

/** A value with the choice of its shape; `chosen` null means: what fits best. */
export function body(label, sent, chosen, onchoose) {
  const data = fromWire(sent);
  if (data === null) return h("p", { class: "soft" }, `${label}: none (null)`);
  const kind = chosen ?? kindOf(data);
  const text = shown(data, kind);
  return h(
    "div",
    { class: "section" },
    h(
      "div",
      { class: "section-head" },
      h("h3", null, label, " ", h("span", { class: "faint" }, size(sent.size))),
      h(
        "div",
        { class: "buttons" },
        choices(`How ${label} is shown`, KINDS, kind, onchoose),
        button("Copy", () => copy(text), { kind: "small", label: `Copy ${label}`, local: true }),
      ),
    ),
    h(
      "pre",
      { class: kind === "hex" ? "bytes hex" : "bytes", tabindex: "0", "aria-label": label },
      text,
    ),
    sent.truncated
      ? h(
          "p",
          { class: "warn-text" },
          `Cut off: the first ${size(data.length)} of ${size(sent.size)}.`,
        )
      : null,
  );
}

/** Bytes in one line. */
export const line = (sent) => {
  const data = fromWire(sent);
  return data === null
    ? h("span", { class: "faint" }, "null")
    : h("span", { class: "mono" }, inLine(data));
};

/** Headers by name. */
export function headers(list) {
  if (!list || list.length === 0) return null;
  return h(
    "div",
    { class: "section" },
    h("h3", null, "Headers"),
    facts(...list.map((one) => [h("code", null, one.name), line(one.value)])),
  );
}
