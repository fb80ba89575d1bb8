/**
 * What the console says in passing, in a polite live region; it goes by itself.
 */

const STAYS_MS = { good: 5_000, bad: 12_000 };

/** Says `text`; `tone` is "good" or "bad". */
export function say(text, tone = "good") {
  const region = document.getElementById("said");
  const line = document.createElement("p");
  line.className = tone;
  line.textContent = text;
  region.append(line);
  setTimeout(() => line.remove(), STAYS_MS[tone]);
}
