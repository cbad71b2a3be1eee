/**
 * Rows are kept and updated, so that none loses the focus or is read again by screen readers without need.
 */

/** Make `rows` the children of `parent`, in that order; the row that has the focus is never moved in the document. */
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
