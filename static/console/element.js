/**
 * Functions that create elements. Strings among the children become text, never markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** Create an element with some of its properties set, such as `className` or `textContent`. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Set a node's text, but only if it has changed: otherwise screen readers would read a live region again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set the text of a notice, which is hidden while it has none. */
export function notify(node, text) {
  write(node, text);
  node.hidden = text === "";
}

/** Create a label and its value, for a list of figures. @param {string} label @param {Node} value a `dd` */
export function figure(label, value) {
  return element("div", {}, element("dt", { textContent: label }), value);
}

/** Create an SVG element with these attributes. */
export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
