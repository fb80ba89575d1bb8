/**
 * The graph of a pipeline: teams in layers, jobs flowing along the edges. Pure.
 *
 * A team stands one layer behind the last team that feeds it; edges that close a cycle do not count
 * for that, and are drawn below. Within a layer teams stand in the order of what feeds them.
 */

import { brief, rate } from "./format.js";
import { h } from "./dom.js";

const ACROSS = { width: 190, height: 92, gapX: 84, gapY: 26, pad: 8, characters: 21 };
const DOWN = { width: 146, height: 92, gapX: 16, gapY: 48, pad: 8, characters: 15 };

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
    const rows = forward
      .filter((edge) => edge.to === name)
      .map((edge) => places.get(edge.from)?.row ?? 0);
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

const TONES = {
  working: "good",
  idle: "",
  starting: "",
  retrying: "warn",
  failing: "bad",
  failed: "bad",
};

/** The drawing, from left to right or `down`; `label` says in words what it shows. */
export function drawing(teams, edges, { label, down = false }) {
  const size = down ? DOWN : ACROSS;
  const names = teams.map((team) => team.team);
  const known = edges.filter((edge) => names.includes(edge.from) && names.includes(edge.to));
  const { places, back, columns, rows, filled } = layers(names, known);
  const stepX = size.width + size.gapX;
  const stepY = size.height + size.gapY;
  const aside = back.size > 0 ? 40 : 0;
  const [wide, high] = down ? [rows, columns] : [columns, rows];
  const width = wide * stepX - size.gapX + size.pad * 2 + (down ? aside : 0);
  const height = high * stepY - size.gapY + size.pad * 2 + (down ? 0 : aside);
  const corner = (name) => {
    const { layer, row } = places.get(name);
    const spare = (rows - filled[layer]) / 2;
    const [x, y] = down ? [row + spare, layer] : [layer, row + spare];
    return { x: size.pad + x * stepX, y: size.pad + y * stepY };
  };
  const byName = new Map(teams.map((team) => [team.team, team]));
  const draw = { size, down, width, height };
  return h(
    "svg",
    { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label },
    known.map((edge) =>
      back.has(edge)
        ? backEdge(corner(edge.from), corner(edge.to), edge, draw)
        : edgeLine(corner(edge.from), corner(edge.to), edge, byName.get(edge.from), draw),
    ),
    teams.map((team) => box(team, corner(team.team), size)),
  );
}

function edgeLine(from, to, edge, team, { size, down }) {
  const flowing = (team?.jobs_per_s ?? 0) > 0 ? " flowing" : "";
  const start = down
    ? { x: from.x + size.width / 2, y: from.y + size.height }
    : { x: from.x + size.width, y: from.y + size.height / 2 };
  const end = down
    ? { x: to.x + size.width / 2, y: to.y - 7 }
    : { x: to.x - 7, y: to.y + size.height / 2 };
  const bend = Math.max(20, (down ? end.y - start.y : end.x - start.x) / 2);
  const curve = down
    ? `C${start.x},${start.y + bend} ${end.x},${end.y - bend} ${end.x},${end.y}`
    : `C${start.x + bend},${start.y} ${end.x - bend},${end.y} ${end.x},${end.y}`;
  const straight = down ? start.x === end.x : start.y === end.y;
  return h(
    "g",
    { key: `${edge.from}>${edge.to}>${edge.how}` },
    h("path", { class: `edge${flowing}`, d: `M${start.x},${start.y}${curve}` }),
    arrow(end, down ? "down" : "right"),
    h(
      "text",
      {
        class: "how",
        x: (start.x + end.x) / 2,
        y: (start.y + end.y) / 2 + (straight && !down ? -6 : 4),
        "text-anchor": "middle",
      },
      edge.how ?? "",
    ),
  );
}

/** An edge that closes a cycle goes around the others: below them, or at their right. */
function backEdge(from, to, edge, { size, down, width, height }) {
  const start = down
    ? { x: from.x + size.width, y: from.y + size.height / 2 }
    : { x: from.x + size.width / 2, y: from.y + size.height };
  const end = down
    ? { x: to.x + size.width + 7, y: to.y + size.height / 2 }
    : { x: to.x + size.width / 2, y: to.y + size.height + 7 };
  const far = down ? width : height;
  const curve = down
    ? `C${far},${start.y} ${far},${end.y} ${end.x},${end.y}`
    : `C${start.x},${far} ${end.x},${far} ${end.x},${end.y}`;
  return h(
    "g",
    { key: `${edge.from}<${edge.to}` },
    h("path", { class: "edge", d: `M${start.x},${start.y}${curve}` }),
    arrow(end, down ? "left" : "up"),
  );
}

const ARROWS = {
  right: [
    [-1, -4],
    [6, 0],
    [-1, 4],
  ],
  left: [
    [1, -4],
    [-6, 0],
    [1, 4],
  ],
  down: [
    [-4, -1],
    [0, 6],
    [4, -1],
  ],
  up: [
    [-4, 1],
    [0, -6],
    [4, 1],
  ],
};

function arrow({ x, y }, way) {
  return h("path", {
    class: "head",
    d: `M${ARROWS[way].map(([right, below]) => `${x + right},${y + below}`).join("L")}Z`,
  });
}

function box(team, { x, y }, size) {
  const tone = TONES[team.state] ?? "";
  const long = team.team.length > size.characters;
  const name = long ? `${team.team.slice(0, size.characters - 1)}…` : team.team;
  const dead = team.dead_letters ?? 0;
  const trouble = [
    team.failures ? `${brief(team.failures)} restarts` : "",
    dead ? `${brief(dead)} dead` : "",
  ]
    .filter(Boolean)
    .join(", ");
  return h(
    "g",
    { key: team.team },
    h(
      "rect",
      { class: `box ${tone}`, x, y, width: size.width, height: size.height, rx: 8 },
      h("title", null, team.team),
    ),
    h("text", { class: "team", x: x + 12, y: y + 23 }, name),
    h("text", { x: x + 12, y: y + 44 }, `${rate(team.jobs_per_s)}, ${team.state}`),
    h("text", { x: x + 12, y: y + 62 }, `lag ${brief(team.lag)}`),
    trouble ? h("text", { class: "trouble", x: x + 12, y: y + 80 }, trouble) : null,
  );
}
