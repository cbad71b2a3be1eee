/**
 * Server-sent events, as text that comes in pieces (WHATWG HTML, 9.2.6). It makes no requests.
 */

const BLOCK_CHARS = 4_194_304; // a server's events have 64 KiB, and at most a few MiB if its settings allow it

/**
 * One block: what is between two empty lines. `data` is null if it has none, which fires nothing but may set the `id`.
 *
 * @typedef {{ event: string, data: string | null, id: string | null, retryMs: number | null }} Block
 */

export class ServerSentEvents {
  #text = ""; // of a line that is not complete
  #isFirst = true; // nothing has come yet
  #isInLineEnd = false; // the last piece ended with CR
  #block = emptyBlock();
  #chars = 0; // of the block

  /**
   * Add a piece of the text.
   *
   * @param {string} piece
   * @returns {Block[]} the blocks that it completes; a comment before a block is one, too
   * @throws {RangeError} if a block is too long
   */
  push(piece) {
    let text = piece;
    if (this.#isFirst && piece) text = text.replace(/^\uFEFF/, "");
    if (this.#isInLineEnd) text = text.replace(/^\n/, ""); // the other half of CR LF
    if (piece) [this.#isFirst, this.#isInLineEnd] = [false, text.endsWith("\r")];
    const [first, ...others] = text.split(/\r\n|\r|\n/);
    const lines = [this.#text + first, ...others];
    this.#text = lines.pop() ?? "";
    const blocks = lines.map((line) => this.#add(line)).filter((block) => block !== null);
    if (this.#chars + this.#text.length > BLOCK_CHARS) throw new RangeError("an event is too long");
    return blocks;
  }

  /** @param {string} line */
  #add(line) {
    const block = this.#block;
    if (line === "") {
      const isEmpty = this.#chars === 0;
      this.#chars = 0;
      this.#block = emptyBlock();
      return isEmpty ? null : block;
    }
    if (line.startsWith(":")) return this.#chars === 0 ? emptyBlock() : null;
    this.#chars += line.length;
    const [, name, value] = /^([^:]*):? ?(.*)$/s.exec(line) ?? ["", "", ""];
    if (name === "data") block.data = block.data === null ? value : `${block.data}\n${value}`;
    else if (name === "event") block.event = value;
    else if (name === "id" && !value.includes("\0")) block.id = value;
    else if (name === "retry" && /^\d+$/.test(value)) block.retryMs = Number(value);
    return null;
  }
}

/** @returns {Block} */
function emptyBlock() {
  return { event: "message", data: null, id: null, retryMs: null };
}
