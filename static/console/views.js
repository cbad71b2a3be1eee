/**
 * The page's views: one is shown, the one that the address names behind its `#`, so that each has a link of its own.
 *
 * `#history?channel=/a/b` shows the view `history`, and tells it the rest as URLSearchParams; when only the rest changes
 * the view that is shown is shown again. A view is an object with `show(params)` and `hide()`: what costs the server
 * something, such as a subscription to one of its own topics, lasts only while somebody looks.
 */

export class Views {
  #views; // id of its section -> the view
  #shown = null;
  #query = ""; // what it was shown with

  /**
   * @param {Record<string, { show(params: URLSearchParams): void, hide(): void }>} views by the id of their section; the
   *   first is the usual one
   */
  constructor(views) {
    this.#views = views;
    addEventListener("hashchange", () => this.#follow());
    this.#follow();
  }

  /** Hide and show the present view: what it may hear has changed. */
  renew() {
    const id = this.#shown;
    this.#views[id].hide();
    this.#views[id].show(new URLSearchParams(this.#query));
  }

  #follow() {
    const [wanted, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    const id = Object.hasOwn(this.#views, wanted) ? wanted : Object.keys(this.#views)[0];
    if (id !== this.#shown) this.#turnTo(id);
    else if (query === this.#query) return;
    this.#query = query;
    this.#views[id].show(new URLSearchParams(query));
  }

  #turnTo(id) {
    const before = this.#shown;
    if (before !== null) this.#views[before].hide();
    this.#shown = id;
    for (const section of document.querySelectorAll(".view")) section.hidden = section.id !== id;
    for (const link of document.querySelectorAll("nav a[href^='#']")) {
      if (link.hash !== `#${id}`) {
        link.removeAttribute("aria-current");
        continue;
      }
      link.setAttribute("aria-current", "page");
      reveal(link);
    }
    // Whoever follows a link loses the focus with what is hidden; so a keyboard reader goes on from the view's link.
    if (before !== null && document.activeElement === document.body) {
      document.querySelector(`nav a[href="#${id}"]`)?.focus();
    }
  }
}

/** Have a link in the middle of its row, as far as it goes: on a phone the row is wider than the page. */
function reveal(link) {
  const row = link.parentElement;
  row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
}
