/**
 * Requests to the node that served this page.
 *
 * Every failure is an `ApiError` whose message says what happened and what to do. "May or may not
 * have happened" keeps its own kind, `Uncertain`, also when the connection broke in the middle.
 */

/** A change that takes longer than this has an unknown outcome. */
const PATIENCE_MS = 30_000;

export class ApiError extends Error {
  constructor(status, kind, message, retriable) {
    super(message);
    this.status = status;
    this.kind = kind;
    this.retriable = retriable;
  }
}

/** The address of a resource: names are encoded, absent parameters left out. */
export function address(parts, query = {}) {
  const path = `/v1/${parts.map(encodeURIComponent).join("/")}`;
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const item of Array.isArray(value) ? value : [value]) found.append(name, item);
  }
  const text = found.toString();
  return text ? `${path}?${text}` : path;
}

export const read = (url) => ask("GET", url);
export const post = (url, body = {}) => ask("POST", url, body);
export const put = (url, body = {}) => ask("PUT", url, body);
export const patch = (url, body = {}) => ask("PATCH", url, body);
export const remove = (url) => ask("DELETE", url);

async function ask(method, url, body) {
  const request = {
    method,
    credentials: "same-origin",
    headers: { accept: "application/json" },
    signal: AbortSignal.timeout(PATIENCE_MS),
  };
  if (body !== undefined) {
    request.headers["content-type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(url, request);
  } catch (error) {
    throw unanswered(method, error);
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  throw await refused(answer);
}

function unanswered(method, error) {
  const slow = error.name === "TimeoutError";
  const what = slow
    ? `The node did not answer within ${PATIENCE_MS / 1000} s.`
    : "The node does not answer.";
  if (method === "GET") {
    return new ApiError(
      0,
      "Unavailable",
      `${what} Is it running? Look at its log, or run: dovetail up`,
      true,
    );
  }
  return new ApiError(
    0,
    "Uncertain",
    `${what} The change may or may not have happened: look before you repeat it.`,
    true,
  );
}

async function refused(answer) {
  let said = null;
  try {
    said = (await answer.json()).error;
  } catch {
    /* An answer that is no JSON comes from a proxy in between; its status is all there is. */
  }
  const message = said?.message ?? `The answer was ${answer.status} ${answer.statusText}.`;
  return new ApiError(answer.status, said?.kind ?? "Refused", message, said?.retriable ?? false);
}
