/** The dialog that writes one message to a topic: a new one, or one like another. */

import { address, post } from "./api.js";
import { bytes as size, plural } from "./format.js";
import { field } from "./parts.js";
import { form } from "./dialog.js";
import { h } from "./dom.js";
import { say } from "./said.js";

const given = (sent) => sent && { encoding: sent.encoding, data: sent.data };

/** A message as the API takes it, byte for byte. */
export const exactly = (row) => ({
  key: given(row.key),
  value: given(row.value),
  headers: row.headers.map((one) => ({ name: one.name, value: given(one.value) })),
});

/** What a field can hold without changing it. */
const isText = (sent) => sent !== null && sent.encoding === "utf-8" && !sent.data.includes("\r");
const isLine = (sent) => isText(sent) && sent.data !== "" && !sent.data.includes("\n");
const isTrimmed = (sent) => isLine(sent) && sent.data.trim() === sent.data;
const areLines = (list) =>
  list.every((one) => /^[^\s:]+$/.test(one.name) && isTrimmed(one.value));

/** Asks for a message, perhaps one `like` another, and writes it; resolves to where, or null. */
export async function produce(topic, partitions, like = null) {
  const keyed = !like || like.key === null || isLine(like.key);
  const written = !like || isText(like.value);
  const headed = !like || areLines(like.headers);
  const wrote = await form({
    title: like ? `Produce to ${topic} again` : `Produce to ${topic}`,
    wide: true,
    confirm: "Produce",
    fields: (bound) => [
      h(
        "div",
        { class: "pair" },
        keyed
          ? field("Key", bound("key", like?.key?.data ?? "", { autocomplete: "off" }), {
              note: "Empty: no key.",
            })
          : asItIs("Key", like.key),
        field("Partition", bound("partition", ""), {
          options: [
            ["", "by the key"],
            ...partitions.map((number) => [String(number), String(number)]),
          ],
        }),
      ),
      written
        ? field("Value", bound("value", like?.value.data ?? "", { rows: 8, spellcheck: "false" }))
        : asItIs("Value", like.value),
      headed
        ? field(
            "Headers",
            bound("headers", linesOf(like?.headers ?? []), {
              rows: 2,
              spellcheck: "false",
              placeholder: "name: value",
            }),
            { note: "One per line: name: value" },
          )
        : h("p", { class: "soft" }, `Headers: the same ${plural(like.headers.length, "header")}.`),
    ],
    submit: (values) => {
      const same = like ? exactly(like) : {};
      return post(address(["topics", topic, "messages"]), {
        key: keyed ? values.key || null : same.key,
        value: written ? values.value : same.value,
        headers: headed ? headersOf(values.headers) : same.headers,
        partition: values.partition === "" ? null : Number(values.partition),
      });
    },
  });
  if (wrote) say(`Stored in partition ${wrote.partition} at offset ${wrote.offset}.`);
  return wrote;
}

/** What a field would change is not asked for. */
const asItIs = (label, sent) =>
  h("p", { class: "soft" }, `${label}: `, sent ? `the same ${size(sent.size)}.` : "none (null).");

const linesOf = (list) => list.map((one) => `${one.name}: ${one.value.data}`).join("\n");

/** "a: 1" lines → headers. Throws on a line without a colon. */
export function headersOf(text) {
  return text
    .split("\n")
    .filter((row) => row.trim() !== "")
    .map((row) => {
      const cut = row.indexOf(":");
      if (cut < 1)
        throw new Error(`The header line “${row}” has no name and colon; write it as name: value.`);
      return { name: row.slice(0, cut).trim(), value: row.slice(cut + 1).trim() };
    });
}
