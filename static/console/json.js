/**
 * Parses JSON that people type: strictly, with error messages that have the place and are the same in every browser.
 */

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[\da-fA-F]{4}))*"/y;
const NUMBER_OR_WORD = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null/y;
const WORD = /[^\s"{}[\],:]{1,20}/y; // quoted in error messages as what was found

/**
 * The value of `text`.
 *
 * @param {string} text
 * @returns {unknown}
 * @throws {SyntaxError} with line, column and what was expected; also for integers that a browser would round (S11)
 */
export function parsed(text) {
  let value;
  try {
    value = JSON.parse(text, refuseToRound);
  } catch (error) {
    if (error instanceof Rounded) throw error;
    new Scanner(text).whole();
    throw error; // not reached, unless the scanner is more lenient than the browser
  }
  return value;
}

class Rounded extends SyntaxError {}

/** Throw for an integer of more than 53 bits, which JavaScript would round without an error. */
function refuseToRound(_, value, context) {
  if (typeof value === "number" && /^-?\d+$/.test(context?.source ?? value) && !Number.isSafeInteger(value)) {
    throw new Rounded(`Integer beyond 53 bits: a browser would round it to ${value}`);
  }
  return value;
}

/** Finds the first character of a text at which it is not JSON. */
class Scanner {
  #text;
  #at = 0;

  constructor(text) {
    this.#text = text;
  }

  whole() {
    this.#value();
    this.#accept(SPACE);
    if (this.#at < this.#text.length) this.#fail("the end");
  }

  #value() {
    if (this.#acceptSign("{")) this.#members("}", () => this.#member());
    else if (this.#acceptSign("[")) this.#members("]", () => this.#value());
    else if (!this.#accept(STRING) && !this.#accept(NUMBER_OR_WORD)) this.#fail("a value");
  }

  #member() {
    this.#accept(SPACE);
    if (!this.#accept(STRING)) this.#fail('a name in "quotes"');
    if (!this.#acceptSign(":")) this.#fail('":"');
    this.#value();
  }

  #members(end, member) {
    if (this.#acceptSign(end)) return;
    do member();
    while (this.#acceptSign(","));
    if (!this.#acceptSign(end)) this.#fail(`"," or "${end}"`);
  }

  #acceptSign(sign) {
    this.#accept(SPACE);
    if (this.#text[this.#at] !== sign) return false;
    this.#at += 1;
    return true;
  }

  #accept(pattern) {
    pattern.lastIndex = this.#at;
    if (!pattern.test(this.#text)) return false;
    this.#at = pattern.lastIndex;
    return true;
  }

  #fail(expected) {
    const before = this.#text.slice(0, this.#at).split("\n");
    const place = `line ${before.length}, column ${before.at(-1).length + 1}`;
    if (this.#text[this.#at] === '"' && expected.startsWith("a ")) {
      throw new SyntaxError(`Not JSON at ${place}: this string is not closed or has a character that must be escaped`);
    }
    throw new SyntaxError(`Not JSON at ${place}: expected ${expected}, found ${this.#found()}`);
  }

  #found() {
    if (this.#at === this.#text.length) return "the end";
    WORD.lastIndex = this.#at;
    return WORD.exec(this.#text)?.[0] ?? this.#text[this.#at];
  }
}
