/**
 * Elements made by program. Strings among the children become text, never markup.
 */

const SVG = "http://www.w3.org/2000/svg";

/** An element with some of its properties set, such as `className` or `textContent`. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Write a text where it is new: in a live region it would be read aloud again. */
export function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A part of a drawing, with these attributes. */
export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
