/**
 * Dead letters of every kind in one place: why each died, and what becomes of it.
 *
 * Replaying gives a letter back to where it came from, with its attempts counted anew; dropping is
 * for good. Both work on chosen letters, or on all that are shown.
 */

import { address, post, read } from "../api.js";
import { ago, button, empty, facts, head, loading, note, table, tag } from "../parts.js";
import { count, plural } from "../format.js";
import { body, headers, line } from "../body.js";
import { danger, form } from "../dialog.js";
import { figure } from "../columns.js";
import { h } from "../dom.js";
import { reasons, reasonsOf } from "../reasons.js";
import { say } from "../said.js";

const KINDS = { timeline: "timeline", topic: "team", outbox: "outbox" };
const idOf = (letter) => `${letter.source} ${letter.name} ${letter.id}`;

const source = (at) =>
  address(["dead"], { source: at.query.get("source"), name: at.query.get("name"), limit: 200 });

const chosenPlace = (at) => ({ source: at.query.get("source"), name: at.query.get("name") ?? "" });

/** The watch of the reasons, once one place is chosen. */
function chosenReasons(at) {
  const { source: kind, name } = chosenPlace(at);
  return kind && name ? [reasonsOf(kind, name)] : [];
}

export const page = {
  title: () => "Dead letters",
  watch: (at) => ["dead", ...chosenReasons(at)],
  without: ["reasons"],
  loadedBy: (at) => source(at),
  load: async (at) => (at.query.get("source") ? read(source(at)) : null),
  arrived(watch, doc, at) {
    if (watch !== "dead") return;
    const counts = doc.sources.map((one) => `${one.source} ${one.name} ${one.count}`).join("\n");
    const moved = at.local.counts !== undefined && at.local.counts !== counts;
    at.local.counts = counts;
    if (moved) at.loadIn(1000);
  },
  view({ dead, loaded, reasons: why }, at) {
    const shown = at.query.get("source") ? loaded : dead;
    const letters = shown?.letters ?? [];
    at.local.chosen ??= new Set();
    const chosen = letters.filter((letter) => at.local.chosen.has(idOf(letter)));
    const total = dead.sources.reduce((sum, one) => sum + (one.count ?? 0), 0);
    return [
      head("Dead letters", {
        note:
          `${plural(total, "letter")} in ` +
          `${plural(dead.sources.filter((one) => one.count !== 0).length, "place")}`,
        tools: [at.live()],
      }),
      dead.sources
        .filter((one) => one.trouble)
        .map((one) => note("warn", `${KINDS[one.source] ?? one.source} ${one.name}`, one.trouble)),
      total > 0 || at.query.get("source") ? sources(dead.sources, at) : null,
      chosenReasons(at).length > 0
        ? reasons(why, chosenPlace(at), at, { title: "By reason" })
        : null,
      letters.length > 0
        ? [acts(letters, chosen, at), list(letters, at)]
        : shown
          ? nothing(at)
          : loading(),
      !at.query.get("source") && letters.length < total
        ? h(
            "p",
            { class: "soft" },
            `The newest ${count(letters.length)} of ${count(total)} are shown.`,
          )
        : null,
    ];
  },
};

function sources(list, at) {
  const chosen = { source: at.query.get("source"), name: at.query.get("name") };
  const isChosen = (row) => row.source === chosen.source && row.name === chosen.name;
  const one = (label, figure, wish, on) =>
    h(
      "button",
      {
        type: "button",
        class: "choice",
        "aria-pressed": on ? "true" : "false",
        key: label,
        onclick: () => at.set({ ...wish, open: null }),
      },
      label,
      " ",
      h("span", { class: "faint" }, count(figure)),
    );
  const total = list.reduce((sum, row) => sum + (row.count ?? 0), 0);
  return h(
    "div",
    { class: "choices", role: "group", "aria-label": "Where they are" },
    one("All", total, { source: null, name: null }, !chosen.source),
    list
      .filter((row) => row.count !== 0 || isChosen(row))
      .map((row) =>
        one(
          `${KINDS[row.source] ?? row.source} ${row.name}`,
          row.count,
          { source: row.source, name: row.name },
          isChosen(row),
        ),
      ),
  );
}

function nothing(at) {
  return at.query.get("source")
    ? empty("No dead letters here", "What was here has been replayed, dropped or handled.")
    : empty(
        "No dead letters",
        "Nothing was given up: every message was handled or is still being tried. Letters of " +
          "timelines, " +
          "outboxes and teams show up here with the reason, as soon as one has failed for the " +
          "last time.",
      );
}

function acts(letters, chosen, at) {
  const pick = chosen.length > 0 ? chosen : letters;
  const what =
    chosen.length > 0 ? plural(chosen.length, "letter") : `all ${count(letters.length)} shown`;
  const replayable = pick.filter((letter) => letter.can_replay);
  const droppable = pick.filter((letter) => letter.can_drop);
  return h(
    "div",
    { class: "buttons", key: "acts" },
    button(`Replay ${what}`, () => replay(replayable, at), {
      kind: "primary",
      disabled: replayable.length === 0,
    }),
    button(`Drop ${what}`, () => drop(droppable, at), {
      kind: "danger",
      disabled: droppable.length === 0,
    }),
    chosen.length > 0
      ? button(
          "Choose none",
          () => {
            at.local.chosen.clear();
            at.draw();
          },
          { kind: "quiet", local: true },
        )
      : null,
  );
}

function list(letters, at) {
  const open = at.query.get("open");
  const toggle = (letter) => at.set({ open: open === idOf(letter) ? null : idOf(letter) });
  const choose = (letter, on) => {
    if (on) at.local.chosen.add(idOf(letter));
    else at.local.chosen.delete(idOf(letter));
    at.draw();
  };
  return h(
    "div",
    { key: "letters" },
    table(at, {
      label: "Dead letters",
      rows: letters,
      key: idOf,
      columns: [
        {
          name: "choose",
          label: "Choose",
          kind: "tight",
          cell: (row) =>
            h("input", {
              type: "checkbox",
              "aria-label": `Choose letter ${row.id} of ${row.name}`,
              checked: at.local.chosen.has(idOf(row)),
              onchange: (event) => choose(row, event.target.checked),
            }),
        },
        {
          name: "letter",
          label: "Letter",
          kind: "tight",
          cell: (row) =>
            h(
              "button",
              {
                type: "button",
                class: "button small",
                "aria-expanded": open === idOf(row) ? "true" : "false",
                "aria-label": `Letter ${row.id} of ${row.name}`,
                onclick: () => toggle(row),
              },
              row.id,
            ),
        },
        {
          name: "where",
          label: "From",
          sort: (row) => row.name,
          cell: (row) => h("span", null, tag(KINDS[row.source] ?? row.source), " ", row.name),
        },
        {
          name: "reason",
          label: "Reason",
          cell: (row) =>
            h("span", null, row.kind ? [tag(row.kind, "bad"), " "] : null, firstLine(row.reason)),
        },
        figure("attempts", "Attempts"),
        {
          name: "died",
          label: "Died",
          kind: "tight",
          sort: (row) => row.died_ms,
          cell: (row) => ago(row.died_ms, at.nowMs),
        },
        { name: "key", label: "Key", cell: (row) => line(row.key) },
      ],
      after: (row, width) => (open === idOf(row) ? whole(row, width, at) : null),
    }),
  );
}

const firstLine = (text) => {
  const first = (text ?? "").trim().split("\n").at(-1) ?? "";
  return first.length > 160 ? `${first.slice(0, 159)}…` : first;
};

function whole(letter, width, at) {
  return h(
    "tr",
    { class: "whole", role: "row", key: `open ${idOf(letter)}` },
    h(
      "td",
      { role: "cell", class: "bare", colspan: width, "data-label": "" },
      h(
        "div",
        { class: "section" },
        facts(
          ["From", `${KINDS[letter.source] ?? letter.source} ${letter.name}, ${letter.id}`],
          ["Attempts", count(letter.attempts)],
          ["Key", line(letter.key)],
        ),
        h(
          "div",
          { class: "section" },
          h("h3", null, "Reason"),
          h(
            "pre",
            { class: "bytes", tabindex: "0", "aria-label": "Reason" },
            [letter.reason, letter.detail].filter(Boolean).join("\n\n"),
          ),
        ),
        headers(letter.headers),
        body("Body", letter.body, at.query.get("as"), (kind) => at.set({ as: kind })),
        h(
          "div",
          { class: "buttons" },
          button("Replay this letter", () => replay([letter], at), {
            disabled: !letter.can_replay,
          }),
          button("Drop this letter", () => drop([letter], at), {
            kind: "danger",
            disabled: !letter.can_drop,
          }),
        ),
      ),
    ),
  );
}

async function replay(letters, at) {
  const done = await form({
    title: `Replay ${plural(letters.length, "dead letter")}?`,
    text: h(
      "p",
      null,
      "Each goes back to where it came from and is tried again, with its attempts counted from " +
        "the beginning. " +
        "Fix what made it fail first. From: ",
      h("strong", null, places(letters)),
      ".",
    ),
    confirm: "Replay",
    submit: () => onEach("replay", letters),
  });
  if (done) finished(done, "replayed", at);
}

async function drop(letters, at) {
  const done = await danger({
    title: `Drop ${plural(letters.length, "dead letter")}?`,
    lost: h(
      "p",
      null,
      "Lost for good: ",
      h("strong", null, `${plural(letters.length, "letter")} with key, body and headers`),
      ` of ${places(letters)}. There is no way back.`,
    ),
    confirm: "Drop",
    act: () => onEach("drop", letters),
  });
  if (done) finished(done, "dropped", at);
}

const places = (letters) => [...new Set(letters.map((letter) => letter.name))].join(", ");

async function onEach(verb, letters) {
  const byPlace = grouped(letters);
  const result = { done: 0, left: [] };
  for (const group of byPlace.values()) {
    const { source, name } = group[0];
    const answer = await post(address(["dead", verb]), {
      source,
      name,
      ids: group.map((letter) => letter.id),
    });
    result.done += answer.done;
    result.left.push(...answer.left);
  }
  return result;
}

const placeOf = (letter) => `${letter.source} ${letter.name}`;

function grouped(letters) {
  const out = new Map();
  for (const letter of letters)
    out.set(placeOf(letter), [...(out.get(placeOf(letter)) ?? []), letter]);
  return out;
}

function finished({ done, left }, verb, at) {
  at.local.chosen.clear();
  say(`${plural(done, "letter")} ${verb}.`);
  for (const one of left.slice(0, 3)) say(`Letter ${one.id} stays: ${one.reason}`, "bad");
  at.reload();
}
