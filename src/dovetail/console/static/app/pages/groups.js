/** All consumer groups: who reads, and how far behind. */

import { field, tag } from "../parts.js";
import { figure, named } from "../columns.js";
import { h } from "../dom.js";
import { listing, partOf } from "../list.js";
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
  watch: (at) => [
    partOf("groups", at, {
      sorts: SORTS,
      more: { topic: at.query.get("topic"), internal: shows(at) && "true" },
    }),
  ],
  view({ groups: { groups, total, lag, topics } }, at) {
    const topic = at.query.get("topic") ?? "";
    return listing(at, {
      title: "Groups",
      rows: groups,
      total,
      name: "group",
      note: () => `${plural(total, "group")}, ${plural(lag, "record")} behind`,
      narrowed: Boolean(topic),
      controls: [
        field(
          "Topic",
          { value: topic, onchange: (event) => at.set({ topic: event.target.value, from: null }) },
          { options: [["", "All"], ...topics.map((name) => [name, name])] },
        ),
        h(
          "label",
          { class: "check" },
          h("input", {
            type: "checkbox",
            checked: shows(at),
            onchange: (event) =>
              at.set({ internal: event.target.checked ? "1" : null, from: null }),
          }),
          "Snapshots of teams",
        ),
      ],
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

/** Whether groups are shown in which teams keep their snapshots. */
const shows = (at) => at.query.get("internal") === "1";

/** The node's name of each column that it sorts by. */
const SORTS = { group: "group", state: "state", members: "members", lag: "lag" };
