/** All consumer groups: who reads, and how far behind. */

import { count, plural } from "../format.js";
import { empty, field, filters, head, table, tag } from "../parts.js";
import { h } from "../dom.js";
import { to } from "../router.js";

export const STATE_TONES = { stable: "good", empty: "", dead: "bad" };

export const page = {
  title: () => "Groups",
  watch: () => ["groups"],
  view({ groups: { groups } }, at) {
    const text = at.query.get("filter") ?? "";
    const topic = at.query.get("topic") ?? "";
    const shown = groups.filter(
      (row) => row.group.includes(text) && (!topic || row.topics.includes(topic)),
    );
    const lag = shown.reduce((sum, row) => sum + (row.lag ?? 0), 0);
    return [
      head("Groups", {
        note: `${plural(shown.length, "group")}, ${plural(lag, "record")} behind`,
        tools: [at.live()],
      }),
      filters(
        field(
          "Name contains",
          {
            type: "search",
            value: text,
            autocomplete: "off",
            oninput: (event) => at.set({ filter: event.target.value }, { typing: true }),
          },
          { kind: "wide" },
        ),
        field(
          "Topic",
          { value: topic, onchange: (event) => at.set({ topic: event.target.value }) },
          {
            options: [
              ["", "All"],
              ...[...new Set(groups.flatMap((row) => row.topics))]
                .sort()
                .map((name) => [name, name]),
            ],
          },
        ),
      ),
      shown.length > 0 ? list(shown, at) : nothing(text || topic),
    ];
  },
};

function nothing(filtered) {
  return filtered
    ? empty("No group fits", "Clear the filter to see all groups.")
    : empty(
        "There are no groups yet",
        "A group begins to exist when a consumer with a group id joins or commits:",
        {
          command: "dovetail consume orders --group billing",
        },
      );
}

function list(rows, at) {
  return table(at, {
    label: "Groups",
    rows,
    key: (row) => row.group,
    sort: "group",
    columns: [
      {
        name: "group",
        label: "Group",
        kind: "name",
        sort: (row) => row.group,
        cell: (row) => h("a", { href: to("groups", row.group) }, row.group),
      },
      {
        name: "state",
        label: "State",
        sort: (row) => row.state,
        cell: (row) => tag(row.state, STATE_TONES[row.state] ?? "warn", { dot: true }),
      },
      {
        name: "members",
        label: "Members",
        kind: "number",
        sort: (row) => row.members,
        cell: (row) => count(row.members),
      },
      {
        name: "lag",
        label: "Lag",
        kind: "number",
        sort: (row) => row.lag,
        cell: (row) => count(row.lag),
      },
      {
        name: "topics",
        label: "Topics",
        cell: (row) =>
          h(
            "div",
            { class: "tags" },
            row.topics.map((topic) => tag(topic)),
          ),
      },
    ],
  });
}
