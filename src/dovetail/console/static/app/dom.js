/**
 * Elements from descriptions, and changes of a page in place.
 *
 * A page is a function that describes the whole of what it shows; `render` compares the description
 * with what is there and changes only what differs. So focus, selection, scroll position and open
 * details survive every live update.
 *
 * Promise: text is only ever set as text. Nothing here, or anywhere in the console, parses markup.
 * Not here: when to render (see page.js).
 */

const SVG = "http://www.w3.org/2000/svg";

/** What a person changes by hand is not taken back by the next live update. */
const OF_THE_PERSON = new Set(["open"]);

/**
 * A description of one element. `props`: attributes, `on…` handlers, `key` (identity among its
 * siblings), `style` (an object, set property by property, as the content policy wants it).
 */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children) };
}

function flat(children) {
  const out = [];
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    out.push(typeof child === "object" ? child : String(child));
  }
  return out;
}

/** Makes the children of `parent` look as described. */
export function render(parent, ...tree) {
  patchChildren(parent, flat(tree));
}

/** One new element as described. */
export function create(node, inSvg = false) {
  if (typeof node === "string") return document.createTextNode(node);
  const svg = inSvg || node.tag === "svg";
  const element = svg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  element.described = {};
  patchProps(element, node.props);
  for (const child of node.children) element.append(create(child, svg));
  return element;
}

function patchChildren(parent, nodes) {
  const inSvg = parent.namespaceURI === SVG;
  const keyed = new Map();
  for (const child of parent.childNodes) {
    const key = child.described?.key;
    if (key !== undefined) keyed.set(key, child);
  }
  let current = parent.firstChild;
  for (const node of nodes) {
    const key = typeof node === "object" ? node.props.key : undefined;
    const found = key === undefined ? current : keyed.get(key);
    if (found && fits(found, node, key)) {
      if (found === current) current = current.nextSibling;
      else parent.insertBefore(found, current);
      patch(found, node);
    } else {
      parent.insertBefore(create(node, inSvg), current);
    }
  }
  while (current) {
    const next = current.nextSibling;
    current.remove();
    current = next;
  }
}

function fits(element, node, key) {
  if (typeof node === "string") return element.nodeType === Node.TEXT_NODE;
  return (
    element.nodeType === Node.ELEMENT_NODE &&
    element.localName === node.tag &&
    element.described?.key === key
  );
}

function patch(element, node) {
  if (typeof node === "string") {
    if (element.data !== node) element.data = node;
    return;
  }
  patchProps(element, node.props);
  if (node.props.ownsChildren !== true) patchChildren(element, node.children);
}

function patchProps(element, props) {
  const before = element.described ?? {};
  for (const name of Object.keys(before)) {
    if (!(name in props) && !OF_THE_PERSON.has(name))
      setProp(element, name, undefined, before[name]);
  }
  for (const [name, value] of Object.entries(props)) {
    if (before[name] !== value || name === "style") setProp(element, name, value, before[name]);
  }
  element.described = props;
}

function setProp(element, name, value, before) {
  if (name === "key" || name === "ownsChildren") return;
  if (name.startsWith("on")) {
    element[name] = value ?? null;
  } else if (name === "style") {
    for (const [property, text] of Object.entries(value ?? {})) {
      if (before?.[property] !== text || !element.style.getPropertyValue(property)) {
        element.style.setProperty(property, text);
      }
    }
  } else if (name === "value" && "value" in element) {
    if (element.value !== (value ?? "")) element.value = value ?? "";
  } else if (name === "checked") {
    element.checked = Boolean(value);
  } else if (OF_THE_PERSON.has(name) && before !== undefined) {
    return;
  } else if (value === undefined || value === null || value === false) {
    element.removeAttribute(name);
  } else {
    element.setAttribute(name, value === true ? "" : String(value));
  }
}
