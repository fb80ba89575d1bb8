/** Who may do what: users that can log in with a password, and access rules. */

import { address, post } from "../api.js";
import { button, empty, field, filters, head, note, section, table, tag } from "../parts.js";
import { danger, deletion, form } from "../dialog.js";
import { h } from "../dom.js";
import { plural } from "../format.js";
import { say } from "../said.js";
import { search } from "../list.js";

const KINDS = [
  ["topic", "Topic"],
  ["timeline", "Timeline"],
  ["group", "Group"],
  ["transactional_id", "Transactional id"],
  ["cluster", "Cluster"],
];
const OPERATIONS = [
  ["all", "everything"],
  ["read", "read"],
  ["write", "write"],
  ["create", "create"],
  ["delete", "delete"],
  ["alter", "alter"],
  ["describe", "describe"],
  ["describe-configs", "describe settings"],
  ["alter-configs", "alter settings"],
];
/** What rules call the cluster. */
const CLUSTER = "kafka-cluster";

export const page = {
  title: () => "Access",
  watch: () => ["access"],
  view({ access }, at) {
    const text = at.query.get("filter") ?? "";
    const fits = (row) =>
      `${row.user} ${row.rule} ${row.operation} ${row.kind} ${row.name}`.includes(text);
    const rules = access.rules.filter(fits);
    const users = access.users.filter((row) => row.user.includes(text));
    const guarded = access.login !== "" || access.certificates;
    const counted =
      `${plural(access.users.length, "user")}, ` + plural(access.rules.length, "rule");
    if (!guarded) return [head("Access", { note: counted, tools: [at.live()] }), inForce(access)];
    return [
      head("Access", {
        note: counted,
        tools: [button("Add rule", () => addRule(at), { kind: "primary" }), at.live()],
      }),
      inForce(access),
      access.users.length + access.rules.length > 0 ? filters(search(at, "Contains")) : null,
      section("Users", { note: about(access) }, listOfUsers(users, access, at)),
      section(
        "Rules",
        { note: "A rule that denies overrides those that allow; * stands for any ending." },
        listOfRules(rules, access, at),
      ),
    ];
  },
};

/** What the lists below mean on this node. */
function inForce({ login, certificates, authorize }) {
  if (!login && !certificates)
    return note(
      "warn",
      "Nobody has to log in",
      "Everybody who reaches this node may do everything. Set security.login, or " +
        "security.tls_clients, and security.authorize.",
    );
  if (!authorize)
    return note(
      "warn",
      "Rules are not in force",
      "Whoever has logged in may do everything, until security.authorize is set.",
    );
  return null;
}

function about({ login, certificates, admins }) {
  const ways = [login, certificates ? "certificates" : ""].filter(Boolean).join(", ");
  const may = admins.length > 0 ? ` ${admins.join(", ")} may do everything.` : "";
  return (
    (ways ? `Login by ${ways}.` : "") +
    may +
    (certificates ? " Who logs in by certificate is not listed." : "")
  );
}

function listOfUsers(users, access, at) {
  if (users.length === 0)
    return access.users.length > 0
      ? empty("No user matches", "Clear the filter to see all of them.")
      : empty("There are no users", "To make one; the command asks for its password:", {
          command: "dovetail user set shop",
        });
  return table(at, {
    label: "Users",
    rows: users,
    key: (row) => row.user,
    name: "users",
    sort: "user",
    columns: [
      {
        name: "user",
        label: "User",
        kind: "name",
        sort: (row) => row.user,
        cell: (row) =>
          h("span", null, row.user, " ", access.admins.includes(row.user) ? tag("admin") : null),
      },
      { name: "by", label: "Mechanisms", cell: (row) => row.mechanisms.join(", ") },
      {
        name: "rules",
        label: "Rules",
        kind: "number",
        cell: (row) => String(access.rules.filter((rule) => rule.user === row.user).length),
      },
      {
        name: "act",
        label: "",
        kind: "tight",
        cell: (row) =>
          button("Delete", () => deleteUser(row, at), {
            kind: "small",
            label: `Delete user ${row.user}`,
          }),
      },
    ],
  });
}

const deleteUser = (row, at) =>
  deletion(at, {
    what: "user",
    name: row.user,
    path: ["access", "users", row.user],
    back: "/access",
    lost: "its password. Its connections are closed now; its rules stay.",
    sure: true,
  });

function listOfRules(rules, access, at) {
  if (rules.length === 0)
    return access.rules.length > 0
      ? empty("No rule matches", "Clear the filter to see all of them.")
      : empty("There are no rules", "While rules are in force, only admins may do anything.", {
          command: "dovetail access allow shop write --topic 'orders*'",
        });
  return table(at, {
    label: "Rules",
    rows: rules,
    key: (row) => Object.values(row).join(" "),
    name: "rules",
    sort: "user",
    columns: [
      { name: "user", label: "User", kind: "name", sort: (row) => row.user, cell: who },
      {
        name: "rule",
        label: "May",
        kind: "tight",
        sort: (row) => row.rule,
        cell: (row) => tag(row.rule, row.rule === "deny" ? "warn" : "good", { dot: true }),
      },
      { name: "operation", label: "Operation", kind: "tight", cell: (row) => row.operation },
      {
        name: "on",
        label: "On",
        kind: "name",
        sort: (row) => `${row.kind} ${row.name}`,
        cell: (row) =>
          row.kind === "cluster" ? "the cluster" : `${row.kind.replace("_", " ")} ${row.name}`,
      },
      {
        name: "act",
        label: "",
        kind: "tight",
        cell: (row) =>
          button("Remove", () => removeRule(row, at), {
            kind: "small",
            label: `Remove: ${sentence(row)}`,
          }),
      },
    ],
  });
}

const who = (row) =>
  h("span", null, row.user, row.host === "*" ? "" : h("span", { class: "faint" }, ` ${row.host}`));

const sentence = (row) => `${row.rule} ${row.user} ${row.operation} ${row.kind} ${row.name}`;

async function removeRule(row, at) {
  const done = await danger({
    title: "Remove this rule?",
    lost: h("p", null, h("code", null, sentence(row)), " ends at once, on all nodes."),
    confirm: "Remove rule",
    act: () => {
      const { user, operation, kind, name, rule } = row;
      return post(address(["access", "rules", "remove"]), { user, operation, kind, name, rule });
    },
  });
  if (!done) return;
  say("The rule was removed.");
  at.reload();
}

async function addRule(at) {
  const done = await form({
    title: "Add a rule",
    confirm: "Add",
    fields: (bound) => [
      h(
        "div",
        { class: "pair" },
        field("User", bound("user", "", { required: true, autocomplete: "off" }), {
          note: "Or the common name of a certificate; * is everybody.",
        }),
        field("May", bound("rule", "allow"), {
          options: [
            ["allow", "allow"],
            ["deny", "deny"],
          ],
        }),
      ),
      h(
        "div",
        { class: "pair" },
        field("Operation", bound("operation", "read"), { options: OPERATIONS }),
        field("On", bound("kind", "topic"), { options: KINDS }),
      ),
      field("Name", bound("name", "", { autocomplete: "off" }), {
        note: "With * at its end: all names that begin so. The cluster needs none.",
      }),
    ],
    ready: (values) => values.user !== "" && (values.kind === "cluster" || values.name !== ""),
    submit: async (values) => {
      const name = values.kind === "cluster" ? CLUSTER : values.name;
      await post(address(["access", "rules"]), { ...values, name });
      return true;
    },
  });
  if (!done) return;
  say("The rule was added.");
  at.reload();
}
