/** Signing in with the node's token; it becomes a cookie that scripts cannot read. */

import { field, head, loading } from "../parts.js";
import { h } from "../dom.js";
import { post, read } from "../api.js";

/** Only a path of this console; anything else could lead astray. */
function backOf(at) {
  const back = at.query.get("back") ?? "/";
  return /^\/(?![/\\])/.test(back) && !back.startsWith("/sign-in") ? back : "/";
}

export const page = {
  title: () => "Sign in",
  loadedBy: () => "session",
  load: () => read("/v1/session"),
  view({ loaded }, at) {
    if (loaded === null) return loading();
    if (!loaded.required || loaded.signed_in) {
      return [
        head("Signed in", { note: loaded.required ? null : "This node requires no token." }),
        h(
          "div",
          { class: "buttons" },
          h("a", { class: "button primary", href: backOf(at) }, "Go on"),
        ),
      ];
    }
    return [
      head("Sign in", { note: `${loaded.node || "This node"} asks for a token.` }),
      h(
        "form",
        { class: "card sign-in section", onsubmit: (event) => signIn(event, at) },
        field(
          "Token",
          { type: "password", name: "token", required: true, autocomplete: "current-password" },
          { note: "The setting http.token of this node, or the file of http.token_file." },
        ),
        at.local.trouble
          ? h("div", { class: "note bad", role: "alert" }, h("p", null, at.local.trouble))
          : null,
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "submit", class: "button primary" }, "Sign in"),
        ),
      ),
    ];
  },
};

async function signIn(event, at) {
  event.preventDefault();
  const input = event.target.elements.token;
  at.local.trouble = null;
  try {
    await post("/v1/session", { token: input.value });
    await at.greet();
    at.go(backOf(at));
  } catch (error) {
    at.local.trouble =
      error.status === 401
        ? "This is not the token of this node. It is the setting http.token, or in the file that " +
          "http.token_file names."
        : error.message;
    input.select();
    at.draw();
  }
}
