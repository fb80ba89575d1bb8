/**
 * The side of the console: the ways to its pages, the state of the live stream, the theme.
 */

import { h } from "./dom.js";

const ICONS = {
  overview: "M3 13h6V4H3zm8 7h6v-9h-6zM3 20h6v-5H3zM11 4v5h6V4z",
  topics: "M4 6h14M4 11h14M4 16h9",
  messages: "M3 5h16v10H9l-4 4v-4H3z",
  groups:
    "M8 10a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm-5 8a5 5 0 0 1 10 0M15 10a2.5 2.5 0 1 0-1-4.8M15 13a5 " +
    "5 0 0 1 4 5",
  timelines: "M11 19a8 8 0 1 0 0-16 8 8 0 0 0 0 16zm0-13v5l3.5 2",
  streams: "M4 16l4-8 4 5 3-6 4 9",
  pipelines: "M3 8h5v6H3zm11-4h5v5h-5zm0 9h5v5h-5zM8 11h3V6.500h3M11 11v4.500h3",
  outbox: "M3 13l3-8h10l3 8v5H3zm0 0h5l1 2h4l1-2h5",
  dead: "M11 3l9 15H2zm0 6v4m0 2.500v.2",
  connections: "M8 3v5m6-5v5M5 8h12v3a6 6 0 0 1-12 0zm6 9v3",
  access: "M6 10V7a5 5 0 0 1 10 0v3M4 10h14v9H4zm7 3.500v2.500",
  audit: "M5 3h9l3 3v13H5zm3 6h6m-6 4h6m-6 3h4",
};

const WAYS = [
  [null, [["overview", "Overview", "/"]]],
  [
    "Log",
    [
      ["topics", "Topics", "/topics"],
      ["messages", "Messages", "/messages"],
      ["groups", "Groups", "/groups"],
    ],
  ],
  [
    "Work",
    [
      ["timelines", "Timelines", "/timelines"],
      ["pipelines", "Pipelines", "/pipelines"],
      ["streams", "Streams", "/streams"],
      ["outbox", "Outbox", "/outbox"],
    ],
  ],
  [
    "Care",
    [
      ["dead", "Dead letters", "/dead"],
      ["connections", "Connections", "/connections"],
      ["access", "Access", "/access"],
      ["audit", "Audit log", "/audit"],
    ],
  ],
];

const THEMES = [
  ["auto", "System"],
  ["light", "Light"],
  ["dark", "Dark"],
];

function icon(name) {
  return h(
    "svg",
    {
      viewBox: "0 0 22 22",
      "aria-hidden": "true",
      fill: "none",
      stroke: "currentColor",
      "stroke-width": "1.6",
      "stroke-linecap": "round",
      "stroke-linejoin": "round",
    },
    h("path", { d: ICONS[name] }),
  );
}

const brand = h(
  "a",
  { class: "brand", href: "/" },
  h(
    "svg",
    { viewBox: "0 0 24 24", "aria-hidden": "true" },
    h("path", { fill: "currentColor", d: "M2 4h9.500L9.200 12l2.300 8H2z" }),
    h("path", { fill: "currentColor", opacity: "0.55", d: "M22 4h-9.500l-2.300 8 2.300 8H22z" }),
  ),
  "Dovetail",
);

/** The side. `state`: {current, open, theme, session, dead}; `act`: what its buttons do. */
export function ways(state, act) {
  return [
    h(
      "div",
      { class: "side-head" },
      brand,
      h(
        "button",
        {
          type: "button",
          class: "button menu",
          "aria-expanded": state.open ? "true" : "false",
          "aria-controls": "ways",
          onclick: act.toggle,
        },
        state.open ? "Close" : "Menu",
      ),
    ),
    h(
      "nav",
      { class: "ways", id: "ways", "aria-label": "Pages" },
      WAYS.map(([name, pages]) =>
        h(
          "div",
          { key: name ?? "" },
          name ? h("div", { class: "ways-name" }, name) : null,
          h(
            "ul",
            null,
            pages.map(([id, label, href]) =>
              h(
                "li",
                { key: id },
                h(
                  "a",
                  { class: "way", href, "aria-current": state.current === id ? "page" : null },
                  icon(id),
                  h("span", null, label),
                  id === "dead" && state.dead
                    ? h(
                        "span",
                        { class: "way-figure", title: `${state.dead} dead letters` },
                        state.dead > 999 ? "999+" : state.dead,
                      )
                    : null,
                ),
              ),
            ),
          ),
        ),
      ),
    ),
    h(
      "div",
      { class: "side-foot" },
      h(
        "div",
        { class: "choices", role: "group", "aria-label": "Theme" },
        THEMES.map(([value, text]) =>
          h(
            "button",
            {
              type: "button",
              class: "choice",
              "aria-pressed": state.theme === value ? "true" : "false",
              onclick: () => act.theme(value),
            },
            text,
          ),
        ),
      ),
      h(
        "div",
        null,
        state.session ? `${state.session.node || "node"}, version ${state.session.version}` : "",
        h("br"),
        h("a", { href: "/docs" }, "HTTP API"),
      ),
      state.session?.required && state.session.signed_in
        ? h("button", { type: "button", class: "button small", onclick: act.signOut }, "Sign out")
        : null,
    ),
  ];
}

const SAYS = {
  live: "Live",
  paused: "Paused",
  lost: "Connection lost",
  connecting: "Connecting",
  asleep: "Live",
};

/** The button that says whether the page is live, and pauses it. */
export function liveButton(state, toggle) {
  const paused = state === "paused";
  return h(
    "button",
    {
      type: "button",
      class: "button live",
      "data-state": state,
      "aria-pressed": paused ? "true" : "false",
      title: paused ? "Go on with live updates" : "Hold the page still",
      onclick: toggle,
      key: "live",
    },
    SAYS[state],
    h("span", { class: "faint" }, paused ? "Go on" : "Pause"),
  );
}
