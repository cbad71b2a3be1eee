/**
 * The page's views: the one that the URL's fragment names is shown, so that each view has its own link.
 *
 * `#history?channel=/a/b` shows the view `history`, and passes the query to it as URLSearchParams; if only the query
 * changes, `show` is called again. A view is an object with `show(params)` and `hide()`: it does what costs the server
 * something, such as subscribing to one of the server's own topics, only while it is shown.
 */

export class Views {
  #views; // id of its section -> the view
  #shown = "";
  #query = ""; // the query with which it was shown

  /**
   * @param {Record<string, { show(params: URLSearchParams): void, hide(): void }>} views by the id of their section; the
   *   first is the default
   */
  constructor(views) {
    this.#views = views;
    addEventListener("hashchange", () => this.#follow());
    document.querySelector(".skip")?.addEventListener("click", (click) => {
      click.preventDefault(); // else the fragment would name no view any more
      document.querySelector("main")?.focus();
    });
    this.#follow();
  }

  /** Hide and show the current view again, because the rights have changed. */
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
    if (before !== "") this.#views[before].hide();
    this.#shown = id;
    for (const section of document.querySelectorAll("section.view")) section.toggleAttribute("hidden", section.id !== id);
    /** @type {NodeListOf<HTMLAnchorElement>} */
    const links = document.querySelectorAll("nav a[href^='#']");
    for (const link of links) {
      if (link.hash !== `#${id}`) {
        link.removeAttribute("aria-current");
        continue;
      }
      link.setAttribute("aria-current", "page");
      reveal(link);
    }
    // Hiding a view can remove the focus; then it moves to the new view's link, for keyboard users. It does not stay on
    // the link of the view before, either.
    const focused = document.activeElement;
    if (before !== "" && (focused === document.body || [...links].some((link) => link === focused))) {
      [...links].find((link) => link.hash === `#${id}`)?.focus();
    }
  }
}

/** Scroll a link to the middle of its row, as far as possible: on a phone the row is wider than the page. */
function reveal(link) {
  const row = link.parentElement;
  row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
}
