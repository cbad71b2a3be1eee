/**
 * Rows that are kept and updated, so that none loses the focus or is read aloud again for nothing.
 */

/** Make `rows` the children of `parent`, in that order; the one that has the focus is never moved. */
export function arrange(parent, rows) {
  const wanted = new Set(rows);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  const focused = rows.find((row) => row.contains(document.activeElement));
  let place = parent.firstElementChild;
  for (const row of rows) {
    if (row === place || row === focused) place = row.nextElementSibling;
    else parent.insertBefore(row, place);
  }
}
