/**
 * Bytes of keys and values, as text, JSON or hex. Pure.
 *
 * The server sends bytes; what they mean is decided here, because only the reader knows.
 */

const strict = new TextDecoder("utf-8", { fatal: true });

/** Control characters that text does not have; what has them is shown as hex. */
const BINARY = /[\u0000-\u0008\u000e-\u001f\u007f]/;

/** Base64 → bytes; null stays null. */
export function fromBase64(text) {
  if (text === null || text === undefined) return null;
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let at = 0; at < raw.length; at += 1) out[at] = raw.charCodeAt(at);
  return out;
}

/** Bytes as the API sends them, {encoding, data}, → bytes; null stays null. */
export function fromWire(sent) {
  if (sent === null || sent === undefined) return null;
  return sent.encoding === "base64" ? fromBase64(sent.data) : new TextEncoder().encode(sent.data);
}

/** The text that the bytes are, or null if they are none. */
export function asText(data) {
  try {
    const text = strict.decode(data);
    return BINARY.test(text) ? null : text;
  } catch {
    return null;
  }
}

/** The JSON that the bytes are, set out in lines, or null if they are none. */
export function asJson(data) {
  const text = asText(data);
  if (text === null || !/^\s*[[{"\d\-tfn]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return setOut(text);
}

/** Lines and indents for JSON that is known to be good; figures keep every digit they have. */
export function setOut(text) {
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0;
  let out = "";
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    const line = () => `\n${"  ".repeat(depth)}`;
    if (token === "{" || token === "[") {
      const empty = next === "}" || next === "]";
      depth += 1;
      out += empty ? token : token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const empty = tokens[at - 1] === "{" || tokens[at - 1] === "[";
      out += empty ? token : line() + token;
    } else if (token === ",") {
      out += token + line();
    } else {
      out += token === ":" ? ": " : token;
    }
  });
  return out;
}

/** Rows of sixteen bytes with their offset and what they are as ASCII. */
export function asHex(data, bytesMax = 4096) {
  const rows = [];
  for (let at = 0; at < Math.min(data.length, bytesMax); at += 16) {
    const row = data.slice(at, at + 16);
    const hex = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const text = Array.from(row, (byte) =>
      byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".",
    );
    const left = hex.slice(0, 8).join(" ").padEnd(23);
    const right = hex.slice(8).join(" ").padEnd(23);
    rows.push(`${at.toString(16).padStart(6, "0")}  ${left}  ${right}  ${text.join("")}`);
  }
  if (data.length > bytesMax) rows.push(`… ${data.length - bytesMax} bytes more`);
  return rows.join("\n");
}

/** How the bytes are best shown: "json", "text", "hex", or "none" for null. */
export function kindOf(data) {
  if (data === null) return "none";
  const text = asText(data);
  if (text === null) return "hex";
  return asJson(data) !== null && /^\s*[[{]/.test(text) ? "json" : "text";
}

/** The bytes in one line, for a row of a table. */
export function inLine(data, charactersMax = 160) {
  if (data === null) return "null";
  const text = asText(data);
  if (text !== null)
    return text
      .slice(0, charactersMax * 4)
      .replace(/\s+/g, " ")
      .slice(0, charactersMax);
  const head = Array.from(data.slice(0, 24), (byte) => byte.toString(16).padStart(2, "0"));
  return `0x${head.join("")}${data.length > 24 ? "…" : ""}`;
}

/** The bytes in the given shape; falls back to hex where they do not fit it. */
export function shown(data, kind) {
  if (data === null) return "null";
  if (kind === "json") return asJson(data) ?? asHex(data);
  if (kind === "text") return new TextDecoder().decode(data);
  return asHex(data);
}
