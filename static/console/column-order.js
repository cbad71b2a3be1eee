/**
 * By which column a table is sorted: its heads are buttons, and a second press turns the order round.
 *
 * A head that sorts is `<th data-by="age"><button type="button">Age</button></th>`; with `data-falls` the greatest comes
 * first. The one with `aria-sort` is in force at first.
 */

export class ColumnOrder {
  #heads;
  #changed;

  /**
   * @param {HTMLElement} table
   * @param {() => void} changed what to do when the reader has chosen
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

  /** 1 where the least comes first, -1 where the greatest does. */
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
