/**
 * The graph of a pipeline: teams in layers from left to right, works flowing along the edges. Pure.
 *
 * A team stands one layer behind the last team that feeds it; edges that close a cycle do not count
 * for that, and are drawn below. Within a layer teams stand in the order of what feeds them.
 */

import { brief, rate } from "./format.js";
import { h } from "./dom.js";

const BOX = { width: 190, height: 92, gapX: 84, gapY: 26, pad: 8 };
const CHARACTERS_MAX = 20;

/** Where each team stands: Map of name → {layer, row}; and the edges that close a cycle. */
export function layers(names, edges) {
  const back = backEdges(names, edges);
  const forward = edges.filter((edge) => !back.has(edge));
  const layer = new Map(names.map((name) => [name, 0]));
  for (let round = 0; round < names.length; round += 1) {
    for (const { from, to } of forward) {
      layer.set(to, Math.max(layer.get(to) ?? 0, (layer.get(from) ?? 0) + 1));
    }
  }
  const places = new Map();
  const filled = [];
  const order = [...names].sort((a, b) => layer.get(a) - layer.get(b));
  const wish = (name) => {
    const rows = forward.filter((edge) => edge.to === name).map((edge) => places.get(edge.from)?.row ?? 0);
    return rows.length ? rows.reduce((total, row) => total + row, 0) / rows.length : 0;
  };
  for (let at = 0; at <= Math.max(0, ...layer.values()); at += 1) {
    const here = order.filter((name) => layer.get(name) === at);
    here.sort((a, b) => wish(a) - wish(b));
    filled[at] = here.length;
    here.forEach((name, row) => places.set(name, { layer: at, row }));
  }
  return { places, back, columns: filled.length, rows: Math.max(1, ...filled), filled };
}

function backEdges(names, edges) {
  const back = new Set();
  const state = new Map();
  const visit = (name) => {
    state.set(name, "open");
    for (const edge of edges.filter((one) => one.from === name)) {
      if (state.get(edge.to) === "open") back.add(edge);
      else if (!state.has(edge.to)) visit(edge.to);
    }
    state.set(name, "done");
  };
  for (const name of names) if (!state.has(name)) visit(name);
  return back;
}

const TONES = { working: "good", idle: "", starting: "", retrying: "warn", failing: "bad", failed: "bad" };

/** The drawing; `label` says in words what it shows. */
export function drawing(teams, edges, label) {
  const names = teams.map((team) => team.team);
  const known = edges.filter((edge) => names.includes(edge.from) && names.includes(edge.to));
  const { places, back, columns, rows, filled } = layers(names, known);
  const stepX = BOX.width + BOX.gapX;
  const stepY = BOX.height + BOX.gapY;
  const width = columns * stepX - BOX.gapX + BOX.pad * 2;
  const height = rows * stepY - BOX.gapY + BOX.pad * 2 + (back.size ? 40 : 0);
  const corner = (name) => {
    const { layer, row } = places.get(name);
    const spare = ((rows - filled[layer]) * stepY) / 2;
    return { x: BOX.pad + layer * stepX, y: BOX.pad + row * stepY + spare };
  };
  const byName = new Map(teams.map((team) => [team.team, team]));
  return h("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    known.map((edge) => (back.has(edge)
      ? backEdge(corner(edge.from), corner(edge.to), edge, height)
      : edgeLine(corner(edge.from), corner(edge.to), edge, byName.get(edge.from)))),
    teams.map((team) => box(team, corner(team.team))));
}

function edgeLine(from, to, edge, team) {
  const x1 = from.x + BOX.width;
  const y1 = from.y + BOX.height / 2;
  const x2 = to.x - 7;
  const y2 = to.y + BOX.height / 2;
  const bend = Math.max(30, (x2 - x1) / 2);
  const flowing = (team?.works_per_s ?? 0) > 0 ? " flowing" : "";
  return h("g", { key: `${edge.from}>${edge.to}>${edge.how}` },
    h("path", { class: `edge${flowing}`, d: `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}` }),
    h("path", { class: "head", d: `M${x2 - 1},${y2 - 4}L${x2 + 6},${y2}L${x2 - 1},${y2 + 4}Z` }),
    h("text", { class: "how", x: (x1 + x2) / 2, y: (y1 + y2) / 2 + (y1 === y2 ? -6 : 4), "text-anchor": "middle" }, edge.how ?? ""));
}

function backEdge(from, to, edge, height) {
  const x1 = from.x + BOX.width / 2;
  const x2 = to.x + BOX.width / 2;
  const low = height - 8;
  const y1 = from.y + BOX.height;
  const y2 = to.y + BOX.height + 7;
  return h("g", { key: `${edge.from}<${edge.to}` },
    h("path", { class: "edge", d: `M${x1},${y1}C${x1},${low} ${x2},${low} ${x2},${y2}` }),
    h("path", { class: "head", d: `M${x2 - 4},${y2}L${x2},${y2 - 7}L${x2 + 4},${y2}Z` }));
}

function box(team, { x, y }) {
  const tone = TONES[team.state] ?? "";
  const name = team.team.length > CHARACTERS_MAX ? `${team.team.slice(0, CHARACTERS_MAX - 1)}…` : team.team;
  const dead = team.dead_letters ?? 0;
  const trouble = [
    team.failures ? `${brief(team.failures)} restarts` : "",
    dead ? `${brief(dead)} dead` : "",
  ].filter(Boolean).join(", ");
  return h("g", { key: team.team },
    h("rect", { class: `box ${tone}`, x, y, width: BOX.width, height: BOX.height, rx: 8 }, h("title", null, team.team)),
    h("text", { class: "team", x: x + 12, y: y + 23 }, name),
    h("text", { x: x + 12, y: y + 44 }, `${rate(team.works_per_s)}, ${team.state}`),
    h("text", { x: x + 12, y: y + 62 }, `lag ${brief(team.lag)}`),
    trouble ? h("text", { class: "trouble", x: x + 12, y: y + 80 }, trouble) : null);
}
