/**
 * Dialogs: a form that asks, and the question before something is lost.
 *
 * The browser's own modal dialog holds the focus and gives it back; Escape leaves all as it was.
 * A dialog stays open until its action is done: a refusal shows in it, and what was typed stays.
 */

import { address, remove } from "./api.js";
import { awaySince, onAway } from "./away.js";
import { create, h, render } from "./dom.js";
import { say } from "./said.js";

/**
 * Asks with a form. `fields(bound, values)` describes it; `submit(values)` acts, and may throw.
 * Resolves to what `submit` gave, or null if it was left.
 */
export function form({
  title,
  text = null,
  fields,
  submit,
  confirm = "Save",
  tone = "primary",
  wide = false,
  ready = () => true,
}) {
  const dialog = create(
    h("dialog", { class: wide ? "wide" : "", "aria-labelledby": "dialog-title" }),
  );
  const values = {};
  let trouble = null;
  let busy = false;
  let result = null;

  const bound = (name, initial, props = {}) => {
    if (!(name in values)) values[name] = initial;
    const box = props.type === "checkbox";
    return {
      name,
      ...props,
      ...(box ? { checked: values[name] } : { value: values[name] }),
      oninput: (event) => {
        values[name] = box ? event.target.checked : event.target.value;
        draw();
      },
    };
  };

  const send = async (event) => {
    event.preventDefault();
    if (busy || awaySince() !== null || !ready(values)) return;
    busy = true;
    trouble = null;
    draw();
    try {
      result = (await submit(values)) ?? true;
      dialog.close();
    } catch (error) {
      trouble = error;
      busy = false;
      draw();
    }
  };

  const draw = () => {
    const away = awaySince() !== null;
    render(
      dialog,
      h(
        "form",
        { method: "dialog", onsubmit: send },
        h("h2", { id: "dialog-title" }, title),
        text ? h("div", { class: "soft" }, text) : null,
        fields ? fields(bound, values, draw) : null,
        away
          ? h(
              "div",
              { class: "note warn", role: "status" },
              h("p", null, "The node does not answer. What you typed stays until it is back."),
            )
          : null,
        trouble
          ? h("div", { class: "note bad", role: "alert" }, h("p", null, trouble.message))
          : null,
        h(
          "div",
          { class: "buttons" },
          h("button", { type: "button", class: "button", onclick: () => dialog.close() }, "Cancel"),
          h(
            "button",
            { type: "submit", class: `button ${tone}`, disabled: busy || away || !ready(values) },
            confirm,
          ),
        ),
      ),
    );
  };

  return new Promise((resolve) => {
    const forget = onAway(draw);
    dialog.addEventListener("close", () => {
      forget();
      dialog.remove();
      resolve(result);
    });
    draw();
    document.body.append(dialog);
    dialog.showModal();
    (
      dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, select, textarea, button")
    ).focus();
  });
}

/**
 * Asks before something is lost. `lost` names it; with `typed` that name has to be typed first.
 * Resolves to what `act` gave, or null if it was left.
 */
export function danger({ title, lost, typed = null, confirm, act }) {
  return form({
    title,
    text: lost,
    fields:
      typed === null
        ? null
        : (bound) =>
            h(
              "div",
              { class: "field" },
              h(
                "label",
                null,
                h("span", null, "Type ", h("code", null, typed), " to go on"),
                h(
                  "input",
                  bound("name", "", {
                    autocomplete: "off",
                    spellcheck: "false",
                    autocapitalize: "off",
                  }),
                ),
              ),
            ),
    ready: (values) => typed === null || values.name === typed,
    submit: act,
    confirm,
    tone: "danger sure",
  });
}

/**
 * Asks, deletes what is at `path` of the API, says so and goes `back`. `lost` are the parts of the
 * sentence that names what goes; with `sure` the name has to be typed.
 */
export async function deletion(at, { what, name, path, back, lost, sure = false }) {
  const done = await danger({
    title: `Delete ${name}?`,
    lost: h("p", null, "Lost for good: ", lost),
    typed: sure ? name : null,
    confirm: `Delete ${what}`,
    act: () => remove(address(path)),
  });
  if (done) {
    say(`Deleted ${what} ${name}.`);
    at.go(back);
  }
}
