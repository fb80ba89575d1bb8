/**
 * Whether the node answers, for everything that can be pressed.
 *
 * While it does not, a page shows what it last knew, says so, and offers nothing that needs the
 * node. What works without it, such as copying, stays.
 */

let since = null;
const open = new Set();

/** When the node stopped answering; null while it answers. */
export const awaySince = () => since;

/** Notes whether the node answers, and draws again what is open beside the page. */
export function setAway(away, nowMs) {
  if (away === (since !== null)) return;
  since = away ? nowMs : null;
  for (const draw of open) draw();
}

/** Has `draw` called when that changes, until the function that it returns is called. */
export function onAway(draw) {
  open.add(draw);
  return () => open.delete(draw);
}
