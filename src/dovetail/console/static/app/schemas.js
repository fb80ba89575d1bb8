/** Keys and values that begin with the number of a schema, read by the node's schema registry. */

import { address, read } from "./api.js";
import { fromWire, setOut } from "./decode.js";
import { h } from "./dom.js";
import { note } from "./parts.js";

/** A zero, and four bytes of a number. */
const HEAD_BYTES = 5;

const isFramed = (sent) => {
  const data = fromWire(sent);
  return data !== null && data.length >= HEAD_BYTES && data[0] === 0;
};

/** Whether a message says by which schema it was written. */
export const hasSchema = (row) => isFramed(row.key) || isFramed(row.value);

/** The message as the node reads it by its schemas. */
export const readBySchema = (topic, row) =>
  read(address(["topics", topic, "messages", row.partition, row.offset, "decoded"]));

/** What was read, drawn. */
export const bySchema = (decoded) =>
  [
    ["Key", decoded.key],
    ["Value", decoded.value],
  ]
    .filter(([, part]) => part !== null)
    .map(([label, part]) => drawn(label, part));

function drawn(label, part) {
  const name = `${label} by its schema`;
  const about = [part.kind, part.schema === null ? null : `schema ${part.schema}`];
  return h(
    "div",
    { class: "section" },
    h("h3", null, name, " ", h("span", { class: "faint" }, about.filter(Boolean).join(", "))),
    part.text === null
      ? note("warn", "It cannot be read by its schema", part.trouble)
      : h("pre", { class: "bytes", tabindex: "0", "aria-label": name }, setOut(part.text)),
  );
}
