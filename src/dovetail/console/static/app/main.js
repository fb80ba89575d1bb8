/**
 * The console: one page at a time, its documents read and then kept live.
 *
 * A page module exports `page`: {title(at), watch(at), view(docs, at)}, and if it shows more than
 * live documents also load(at) and loadedBy(at), the part of the address that decides what is
 * loaded (`docs.loaded` is null until it is there). A page describes what it shows; all that
 * happens goes through `at`: the address (`params`, `query`, `set`, `go`), the present (`nowMs`),
 * memory while the page is open (`local`), `draw`, `load`, `loadIn` and `reload`. Without the
 * documents that it names in `without`, a page shows the rest.
 */

import { awaySince, setAway } from "./away.js";
import { h, render } from "./dom.js";
import { match } from "./router.js";
import { liveButton, ways } from "./ways.js";
import { Live } from "./live.js";
import { addressOf } from "./documents.js";
import { note as remember } from "./history.js";
import { read, remove } from "./api.js";
import { loading, note } from "./parts.js";
import { relative } from "./format.js";
import { say } from "./said.js";

const frame = { side: document.getElementById("side"), page: document.getElementById("page") };
const state = {
  found: null,
  page: null,
  at: null,
  docs: {},
  shown: {},
  troubles: {},
  loaded: null,
  loadedBy: null,
  loading: false,
  visit: 0,
  open: false,
  theme: "auto",
  session: null,
  dead: 0,
};

const live = new Live({
  onDocument: (watch, doc) => {
    arrived(watch, doc);
    draw();
  },
  onTrouble: (watch, error) => {
    state.troubles[watch] = error;
    draw();
  },
  onState: (now) => {
    if (now === "live" || now === "paused") setAway(false);
    draw();
  },
  onFailure: () => checkSession(),
});

/** A list is known by its noun, whichever part of it is watched. */
const nounOf = (watch) => (watch.includes(":") ? watch : watch.split("?")[0]);

function arrived(watch, doc) {
  if (!wanted().includes(watch)) return;
  state.docs[nounOf(watch)] = doc;
  state.shown[nounOf(watch)] = watch;
  delete state.troubles[watch];
  remember(watch, doc, Date.now());
  if (watch === "overview") state.dead = doc.totals?.dead ?? 0;
  if (watch === "dead")
    state.dead = (doc.sources ?? []).reduce((total, one) => total + (one.count ?? 0), 0);
  state.page?.arrived?.(watch, doc, state.at);
}

/* Drawing ------------------------------------------------------------------------------------- */

function draw() {
  render(
    frame.side,
    ways(
      {
        current: state.found?.way,
        open: state.open,
        theme: state.theme,
        session: state.session,
        dead: state.dead,
      },
      { toggle: toggleMenu, theme: setTheme, signOut },
    ),
  );
  frame.side.dataset.open = String(state.open);
  if (!state.page) return;
  state.at.nowMs = Date.now();
  document.title = `${state.page.title(state.at)} · Dovetail`;
  render(frame.page, contents());
}

function contents() {
  const { page, at } = state;
  const watches = wanted();
  const spared = page.without ?? [];
  const missing = watches.filter(
    (watch) =>
      !(nounOf(watch) in state.docs) &&
      !(state.troubles[watch] && spared.includes(watch.split(/[:?]/)[0])),
  );
  const broken = missing.find((watch) => state.troubles[watch]);
  if (broken) return failure(state.troubles[broken]);
  if (missing.length > 0) {
    return loading();
  }
  const stale = watches.filter((watch) => state.troubles[watch] && nounOf(watch) in state.docs);
  return h(
    "div",
    { class: "page-body", key: location.pathname },
    awaySince() === null ? null : away(),
    stale.map((watch) =>
      note("warn", "This page may be out of date", state.troubles[watch].message),
    ),
    page.view({ ...state.docs, loaded: state.loaded }, at),
  );
}

/** The node is gone: what is drawn is the last that was known. */
function away() {
  return note(
    "warn",
    "The node does not answer",
    `This page shows what was known ${relative(awaySince(), Date.now())}, and nothing can be ` +
      "changed. It tries again by itself, and goes on when the node is back.",
  );
}

function failure(error) {
  const title =
    error.status === 404 || error.kind?.endsWith("Unknown")
      ? "Not found"
      : "This page cannot be shown";
  return h(
    "div",
    { class: "section", key: "failure" },
    h("h1", null, title),
    note("bad", error.message),
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "button", class: "button primary", onclick: () => visit() }, "Try again"),
      Object.keys(state.found?.params ?? {}).length > 0
        ? h("a", { class: "button", href: `/${state.found.way}` }, `All ${state.found.way}`)
        : null,
      h("a", { class: "button", href: "/" }, "Overview"),
    ),
  );
}

/* Going places --------------------------------------------------------------------------------- */

function makeAt(found) {
  const at = {
    params: found.params,
    query: new URLSearchParams(location.search),
    local: {},
    nowMs: Date.now(),
    draw,
    go,
    reload: () => visit({ keep: true, anew: true }),
    load: () => loadAgain(state.visit),
    /** Loads again in a while, once, however often it is asked for meanwhile. */
    loadIn(ms) {
      at.timer ??= setTimeout(() => {
        at.timer = null;
        if (at === state.at) loadAgain(state.visit);
      }, ms);
    },
    greet,
    /** Changes the address; null and "" take one out. Typing replaces, choosing adds to history. */
    set(changes, { typing = false } = {}) {
      const query = new URLSearchParams(location.search);
      for (const [name, value] of Object.entries(changes)) {
        if (value === null || value === undefined || value === "") query.delete(name);
        else query.set(name, value);
      }
      const text = query.toString();
      const url = text ? `${location.pathname}?${text}` : location.pathname;
      if (url === location.pathname + location.search) return;
      history[typing ? "replaceState" : "pushState"](null, "", url);
      visit({ keep: true });
    },
    live: () => liveButton(live.state, () => live.setPaused(!live.paused)),
  };
  return at;
}

function go(url) {
  history.pushState(null, "", url);
  visit();
}

/**
 * Shows what the address says. With `keep` the page is the same and stays drawn; it is read again
 * if other documents are wanted, if it loads by the address, or `anew`.
 */
async function visit({ keep = false, anew = false } = {}) {
  const mine = (state.visit += 1);
  const found = match(location.pathname);
  if (!found) return lostHere();
  try {
    if (keep && state.page) {
      state.at.query = new URLSearchParams(location.search);
      if (loadsOther()) state.loaded = null;
    } else {
      const module = await found.load();
      if (mine !== state.visit) return;
      const first = state.page === null;
      Object.assign(state, {
        found,
        page: module.page,
        at: makeAt(found),
        docs: {},
        shown: {},
        troubles: {},
        loaded: null,
        loadedBy: null,
        open: false,
      });
      window.scrollTo(0, 0);
      if (!first) frame.page.focus({ preventScroll: true });
    }
    draw();
    const known = (watch) => state.shown[nounOf(watch)] === watch;
    const same = keep && !anew && !loadsOther() && wanted().every(known);
    if (!same) await fill(mine);
  } catch (error) {
    if (mine === state.visit) failed(error);
  }
}

/** Whether the address asks for something else than what is loaded; that must not be acted on. */
const loadsOther = () =>
  Boolean(state.page.load) && state.page.loadedBy(state.at) !== state.loadedBy;

const wanted = () => state.page?.watch?.(state.at) ?? [];

async function fill(mine) {
  const { page, at } = state;
  const watches = wanted();
  const reads = watches.map(async (watch) => {
    try {
      const doc = await read(addressOf(watch));
      if (mine === state.visit) arrived(watch, doc);
    } catch (error) {
      if (error.status === 401) throw error;
      if (mine === state.visit) state.troubles[watch] = error;
    }
    if (mine === state.visit) draw();
  });
  await Promise.all([page.load ? load(mine) : null, ...reads]);
  if (mine !== state.visit) return;
  live.watch(watches);
  draw();
}

/** Loads what the page shows by its address; what comes too late for it is forgotten. */
async function load(mine) {
  const by = state.page.loadedBy(state.at);
  const loaded = await state.page.load(state.at);
  if (mine !== state.visit) return;
  Object.assign(state, { loaded, loadedBy: by });
  draw();
}

/** What the page loads by its address, once more; not twice at the same time. */
async function loadAgain(mine) {
  if (state.loading) return;
  state.loading = true;
  try {
    await load(mine);
  } catch (error) {
    if (mine === state.visit) say(error.message, "bad");
  } finally {
    state.loading = false;
  }
}

function failed(error) {
  if (error.status === 401) {
    const back = location.pathname + location.search;
    go(`/sign-in?back=${encodeURIComponent(back)}`);
    return;
  }
  render(frame.page, failure(error));
}

function lostHere() {
  Object.assign(state, { found: null, page: null });
  live.watch([]);
  draw();
  document.title = "No such page · Dovetail";
  render(
    frame.page,
    failure({
      status: 404,
      message: `There is no page ${location.pathname}. The menu lists all pages.`,
    }),
  );
}

/* What the side does -------------------------------------------------------------------------- */

function toggleMenu() {
  state.open = !state.open;
  draw();
}

function setTheme(theme) {
  state.theme = theme;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    if (theme === "auto") localStorage.removeItem("dovetail-theme");
    else localStorage.setItem("dovetail-theme", theme);
  } catch {
    say(
      "The browser does not keep settings for this page; the theme stays until you close it.",
      "bad",
    );
  }
  draw();
}

async function signOut() {
  try {
    await remove("/v1/session");
    state.session = null;
    go("/sign-in");
  } catch (error) {
    say(error.message, "bad");
  }
}

/** Asks who we are to the node, and what the side shows on every page. */
async function greet() {
  state.session = await read("/v1/session");
  if (!locked()) state.dead = (await read(addressOf("overview"))).totals.dead ?? 0;
  draw();
}

const locked = () => state.session.required && !state.session.signed_in;

/**
 * A stream that is refused, one that broke and a node that is gone look alike; only the session
 * tells them apart.
 */
async function checkSession() {
  try {
    state.session = await read("/v1/session");
    setAway(false);
    if (locked()) failed({ status: 401 });
  } catch (error) {
    // It tries again by itself.
    if (error.status === 0 && live.state === "lost") setAway(true, Date.now());
  }
  draw();
}

function followed(event) {
  const link = event.target.closest?.("a[href]");
  if (
    !link ||
    event.defaultPrevented ||
    event.button !== 0 ||
    link.target ||
    link.hasAttribute("download")
  )
    return;
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin) return;
  if (url.hash && url.pathname === location.pathname && url.search === location.search) {
    event.preventDefault();
    document.getElementById(url.hash.slice(1))?.focus();
    return;
  }
  if (!match(url.pathname)) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

function moved() {
  const found = match(location.pathname);
  const same =
    found &&
    state.found &&
    found.way === state.found.way &&
    JSON.stringify(found.params) === JSON.stringify(state.found.params);
  visit({ keep: same });
}

async function begin() {
  state.theme = document.documentElement.dataset.theme ?? "auto";
  document.addEventListener("click", followed);
  window.addEventListener("popstate", moved);
  setInterval(() => {
    if (!document.hidden && !live.paused) draw();
  }, 1000);
  visit();
  try {
    await greet();
  } catch {
    /* The page itself says that the node does not answer. */
  }
}

begin();
