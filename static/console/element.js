/**
 * Elements made by program. Strings among the children become text, never markup.
 */

/** An element with some of its properties set, such as `className` or `textContent`. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
