/**
 * Which page an address means. Pages are loaded when they are first asked for.
 */

const PAGES = [
  ["/", "overview", () => import("./pages/overview.js")],
  ["/topics", "topics", () => import("./pages/topics.js")],
  ["/topics/:topic", "topics", () => import("./pages/topic.js")],
  ["/messages", "messages", () => import("./pages/messages.js")],
  ["/groups", "groups", () => import("./pages/groups.js")],
  ["/groups/:group", "groups", () => import("./pages/group.js")],
  ["/timelines", "timelines", () => import("./pages/timelines.js")],
  ["/timelines/:timeline", "timelines", () => import("./pages/timeline.js")],
  ["/dead", "dead", () => import("./pages/dead.js")],
  ["/streams", "streams", () => import("./pages/streams.js")],
  ["/streams/:log/:environment", "streams", () => import("./pages/stream.js")],
  ["/pipelines", "pipelines", () => import("./pages/pipelines.js")],
  ["/pipelines/:pipeline", "pipelines", () => import("./pages/pipeline.js")],
  ["/outbox", "outbox", () => import("./pages/outbox.js")],
  ["/connections", "connections", () => import("./pages/clients.js")],
  ["/access", "access", () => import("./pages/access.js")],
  ["/audit", "audit", () => import("./pages/audit.js")],
  ["/sign-in", "sign-in", () => import("./pages/sign-in.js")],
];

/** The page of a path: {way, load, params}, or null if there is none. */
export function match(path) {
  const parts = path.replace(/\/+$/, "").split("/").slice(1);
  for (const [pattern, way, load] of PAGES) {
    const wanted = pattern.replace(/\/+$/, "").split("/").slice(1);
    if (wanted.length !== parts.length) continue;
    const params = {};
    const fits = wanted.every((want, at) => {
      if (!want.startsWith(":")) return want === parts[at];
      params[want.slice(1)] = decoded(parts[at]);
      return params[want.slice(1)] !== "";
    });
    if (fits) return { way, load, params };
  }
  return null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** A path with names in it, each encoded. */
export function to(...parts) {
  return `/${parts.map(encodeURIComponent).join("/")}`;
}
