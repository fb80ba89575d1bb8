/**
 * A message that is there, once more: produced again, or as commands for a terminal.
 *
 * What is text can be changed before it is produced; what is not is sent as it was. A value that
 * the page shows in part is read whole first.
 */

import { address, read } from "./api.js";
import { command } from "./parts.js";
import { exactly, produce } from "./produce.js";
import { h } from "./dom.js";
import { say } from "./said.js";

/** Bytes of a value that the API gives at most. */
const WHOLE_BYTES_MAX = 1024 * 1024;

const parts = (row) => [row.key, row.value, ...row.headers.map((one) => one.value)];
const isCut = (row) => parts(row).some((sent) => sent?.truncated);

const placeOf = (topic, row, bytes = null) =>
  address(["topics", topic, "messages"], {
    partition: row.partition,
    from: `offset:${row.offset}`,
    limit: 1,
    value_bytes: bytes,
  });

/** The message with all of its bytes. Throws if it is gone or too large. */
async function whole(topic, row) {
  if (!isCut(row)) return row;
  const found = (await read(placeOf(topic, row, WHOLE_BYTES_MAX))).messages[0];
  if (found?.offset !== row.offset) throw new Error("The message is no longer there.");
  if (isCut(found)) throw new Error("The message is larger than 1 MiB; copy it with a program.");
  return found;
}

/** Asks what to change, and produces the message anew; resolves to where it lies, or null. */
export async function again(topic, partitions, row) {
  try {
    return await produce(topic, partitions, await whole(topic, row));
  } catch (error) {
    say(error.message, "bad");
    return null;
  }
}

/** A text as one word of a shell. */
export const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** What reads and what repeats the message, on a terminal. Pure. */
export function commands(topic, row, { kafka, origin, locked }) {
  const login = locked ? ` -H "Authorization: Bearer $TOKEN"` : "";
  const found = [
    [
      "Read it with kcat",
      `kcat -b ${kafka} -C -t ${quoted(topic)} -p ${row.partition} -o ${row.offset} -c 1`,
    ],
    ["Read it with curl", `curl -s${login} ${quoted(origin + placeOf(topic, row))}`],
  ];
  if (!isCut(row)) {
    const json = JSON.stringify({ ...exactly(row), partition: row.partition });
    found.push([
      "Produce it again with curl",
      `curl -s${login} -H 'Content-Type: application/json' --data-binary ${quoted(json)} ` +
        quoted(origin + address(["topics", topic, "messages"])),
    ]);
  }
  return found;
}

/** The commands, drawn. */
export const commandList = (list) =>
  h(
    "div",
    { class: "section" },
    list.map(([label, line]) => [h("h3", null, label), command(line)]),
  );

/** The commands of a message, with the addresses of this node. */
export async function asCommands(topic, row) {
  const [{ node }, session] = await Promise.all([read("/v1/overview"), read("/v1/session")]);
  const where = { kafka: node.kafka, origin: location.origin, locked: session.required };
  return commands(topic, row, where);
}
