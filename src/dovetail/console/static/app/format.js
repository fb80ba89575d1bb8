/**
 * Figures and times as people read them. Pure: the present is an argument where it matters.
 */

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const SPANS = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** What stands for "not known": never a zero. */
export const UNKNOWN = "–";

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 1234567 → "1,234,567". */
export function count(value) {
  return known(value) ? grouped.format(value) : UNKNOWN;
}

/** 1234567 → "1.23 M"; for places where width is dear. */
export function brief(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  for (const [limit, unit] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e4, "k"],
  ]) {
    if (size >= limit) return `${three(value / (unit === "k" ? 1e3 : limit))} ${unit}`;
  }
  return size < 10 && size % 1 ? value.toFixed(1) : grouped.format(value);
}

function three(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2);
}

/** 5_242_880 → "5.00 MiB". */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${grouped.format(size)} B` : `${three(size)} ${BYTE_UNITS[unit]}`;
}

/** Messages a second: "0", "0.4/s", "12.3 k/s". */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0/s";
  if (value < 0.1) return "<0.1/s";
  return value < 10 ? `${value.toFixed(1)}/s` : `${brief(value)}/s`;
}

/** A length of time: 93_000 → "1 min 33 s", 12 → "12 ms". */
export function span(ms) {
  if (!known(ms)) return UNKNOWN;
  const size = Math.abs(ms);
  if (size < 1) return size === 0 ? "0 ms" : `${size.toFixed(1)} ms`;
  if (size < 10) return `${size.toFixed(1).replace(/\.0$/, "")} ms`;
  if (size < 1000) return `${Math.round(size)} ms`;
  if (size < 10_000) return `${(size / 1000).toFixed(1).replace(/\.0$/, "")} s`;
  for (let at = 0; at < SPANS.length; at += 1) {
    const [unitMs, unit] = SPANS[at];
    if (size < unitMs) continue;
    const whole = Math.floor(size / unitMs);
    if (at + 1 === SPANS.length) return `${whole} ${unit}`;
    const [nextMs, nextUnit] = SPANS[at + 1];
    const rest = Math.floor((size % unitMs) / nextMs);
    return rest ? `${whole} ${unit} ${rest} ${nextUnit}` : `${whole} ${unit}`;
  }
  return UNKNOWN;
}

/** A point in time, seen from `nowMs`: "3 min ago", "in 2 h". */
export function relative(timeMs, nowMs) {
  if (!known(timeMs)) return UNKNOWN;
  const distance = timeMs - nowMs;
  if (Math.abs(distance) < 1000) return "now";
  const text = coarse(Math.abs(distance));
  return distance < 0 ? `${text} ago` : `in ${text}`;
}

function coarse(ms) {
  for (const [unitMs, unit] of SPANS) {
    if (ms >= unitMs) return `${Math.floor(ms / unitMs)} ${unit}`;
  }
  return `${Math.round(ms)} ms`;
}

/** A point in time, exactly, in the zone of the reader. */
export function exact(timeMs) {
  if (!known(timeMs)) return UNKNOWN;
  const at = new Date(timeMs);
  const pad = (value, width = 2) => String(value).padStart(width, "0");
  const zone = -at.getTimezoneOffset();
  const sign = zone < 0 ? "-" : "+";
  const offset = `${sign}${pad(Math.floor(Math.abs(zone) / 60))}:${pad(Math.abs(zone) % 60)}`;
  return (
    `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ` +
    `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.` +
    `${pad(at.getMilliseconds(), 3)} ${offset}`
  );
}

/** "1 topic", "2 topics". */
export function plural(number, noun, nouns = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : nouns}`;
}
