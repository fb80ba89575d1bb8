/** All consumer groups: who reads, and how far behind. */

import { field, tag } from "../parts.js";
import { figure, named } from "../columns.js";
import { h } from "../dom.js";
import { listing } from "../list.js";
import { plural } from "../format.js";
import { to } from "../router.js";

const STATE_TONES = { stable: "good", empty: "", dead: "bad" };

export const stateTag = (state) => tag(state, STATE_TONES[state] ?? "warn", { dot: true });

/** The columns that a group has in every list. */
export const groupColumns = (lagLabel) => [
  named("group", "Group", (row) => to("groups", row.group)),
  { name: "state", label: "State", sort: (row) => row.state, cell: (row) => stateTag(row.state) },
  figure("members", "Members"),
  figure("lag", lagLabel),
];

export const page = {
  title: () => "Groups",
  watch: () => ["groups"],
  view({ groups: { groups } }, at) {
    const topic = at.query.get("topic") ?? "";
    const topics = [...new Set(groups.flatMap((row) => row.topics))].sort();
    return listing(at, {
      title: "Groups",
      rows: topic ? groups.filter((row) => row.topics.includes(topic)) : groups,
      name: "group",
      note: totals,
      narrowed: Boolean(topic),
      controls: field(
        "Topic",
        { value: topic, onchange: (event) => at.set({ topic: event.target.value }) },
        { options: [["", "All"], ...topics.map((name) => [name, name])] },
      ),
      columns: [
        ...groupColumns("Lag"),
        {
          name: "topics",
          label: "Topics",
          cell: (row) =>
            h(
              "div",
              { class: "tags" },
              row.topics.map((name) => tag(name)),
            ),
        },
      ],
      noMatch: ["No group matches", "Clear the filter to see all groups."],
      nothing: [
        "There are no groups yet",
        "A consumer with a group id creates its group when it joins or commits:",
        { command: "dovetail consume orders --group billing" },
      ],
    });
  },
};

function totals(rows) {
  const lag = rows.reduce((sum, row) => sum + (row.lag ?? 0), 0);
  return `${plural(rows.length, "group")}, ${plural(lag, "record")} behind`;
}
