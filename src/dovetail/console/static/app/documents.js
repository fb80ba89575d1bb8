/**
 * Which document of the API stands behind the name of a live event.
 */

import { address } from "./api.js";

const PLAIN = new Set([
  "overview",
  "topics",
  "history",
  "groups",
  "timelines",
  "dead",
  "streams",
  "pipelines",
  "outbox",
  "audit",
  "access",
  "clients",
]);
const ONE_OF = { topic: "topics", group: "groups", timeline: "timelines", pipeline: "pipelines" };

/** "topic:orders" → "/v1/topics/orders"; "topics?sort=bytes" → "/v1/topics?sort=bytes". */
export function addressOf(watch) {
  const [list, query] = watch.split("?");
  if (list === "reasons") return `${address(["dead", "reasons"])}?${query}`;
  if (PLAIN.has(list)) return query ? `${address([list])}?${query}` : address([list]);
  const cut = watch.indexOf(":");
  const noun = watch.slice(0, cut);
  const name = watch.slice(cut + 1);
  if (noun === "stream") {
    const slash = name.lastIndexOf("/");
    return address(["streams", name.slice(0, slash)], { environment: name.slice(slash + 1) });
  }
  if (noun === "failures") return address(["pipelines", name, "failures"]);
  if (noun === "held") return address(["timelines", name, "held"]);
  if (noun === "lag") return address(["groups", name, "history"]);
  return address([ONE_OF[noun], name]);
}
