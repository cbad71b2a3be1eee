/**
 * The column by which a table is sorted: column heads have buttons, and a second press reverses the order.
 *
 * Such a head is `<th data-by="age"><button type="button">Age</button></th>`; with `data-falls` the greatest value is
 * first. The head that has `aria-sort` in the page is the initial one.
 */

export class ColumnOrder {
  #heads;
  #changed;

  /**
   * @param {HTMLElement} table
   * @param {() => void} changed called when the reader has chosen a column
   */
  constructor(table, changed) {
    this.#heads = [...table.querySelectorAll("th[data-by]")];
    this.#changed = changed;
    for (const head of this.#heads) head.querySelector("button").addEventListener("click", () => this.#choose(head));
  }

  /** The column's `data-by`. */
  get by() {
    return this.#head.dataset.by;
  }

  /** 1 if the smallest value is first, -1 if the greatest is. */
  get sign() {
    return this.#head.ariaSort === "descending" ? -1 : 1;
  }

  get #head() {
    return this.#heads.find((head) => head.hasAttribute("aria-sort"));
  }

  #choose(head) {
    const falls = head === this.#head ? this.sign === 1 : "falls" in head.dataset;
    for (const other of this.#heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falls ? "descending" : "ascending");
    this.#changed();
  }
}
