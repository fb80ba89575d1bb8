/** The dialog that writes one message to a topic. */

import { address, post } from "./api.js";
import { field } from "./parts.js";
import { form } from "./dialog.js";
import { h } from "./dom.js";
import { say } from "./said.js";

/** Asks for a message and writes it; resolves to where it lies, or null. */
export async function produce(topic, partitions) {
  const wrote = await form({
    title: `Produce to ${topic}`,
    wide: true,
    confirm: "Produce",
    fields: (bound) => [
      h(
        "div",
        { class: "pair" },
        field("Key", bound("key", "", { autocomplete: "off" }), { note: "Empty: no key." }),
        field("Partition", bound("partition", ""), {
          options: [
            ["", "by the key"],
            ...partitions.map((number) => [String(number), String(number)]),
          ],
        }),
      ),
      field("Value", bound("value", "", { rows: 8, spellcheck: "false" })),
      field(
        "Headers",
        bound("headers", "", { rows: 2, spellcheck: "false", placeholder: "name: value" }),
        { note: "One per line: name: value" },
      ),
    ],
    submit: (values) =>
      post(address(["topics", topic, "messages"]), {
        value: values.value,
        headers: headersOf(values.headers),
        ...(values.key === "" ? {} : { key: values.key }),
        ...(values.partition === "" ? {} : { partition: Number(values.partition) }),
      }),
  });
  if (wrote) say(`Stored in partition ${wrote.partition} at offset ${wrote.offset}.`);
  return wrote;
}

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
