/**
 * The view NetworkTables: topics with their values, which can be set.
 *
 * Values are received as events with `ext.nt4`. However fast that is, only the newest of each topic is drawn, at most
 * ten times a second.
 */

import { Clock } from "./clock.js";
import { notify, write } from "./element.js";
import { Redraw } from "./redraw.js";
import { refusal } from "./refusals.js";
import { arrange } from "./rows.js";
import { map, object, time } from "./shape.js";
import { TopicRow } from "./topic-row.js";

const RATES = "/halley/rates"; // its ticks list the protocols that are served
const TICK = object({ time, protocols: map(object({})) });
const TOPICS = 10_000; // the maximum number that is kept, which is the server's limit
const ROWS = 1_000; // the maximum number that is drawn
const DRAW_EVERY_MS = 100;
const EARLIEST_MS = Date.UTC(2020); // values with earlier times are from clients without a clock

export class NetworkTables {
  #bayeux;
  #feed;
  #identity;
  #clock = new Clock();
  #list;
  #notice;
  #count;
  #filter;
  #pattern;
  #topics = new Map(); // channel -> { type, value, at, time, row }
  #changed = new Set(); // channels to draw
  #isOrdered = true; // whether the rows are complete and in order
  #redraw = new Redraw(() => this.#draw(), DRAW_EVERY_MS, () => this.#grow());
  #isShown = false;
  /** @type {string | null} */
  #session = null;
  /** Whether the server serves NetworkTables, or null while that is unknown. @type {boolean | null} */
  #isServed = null;
  #refusal = "";

  constructor(root, /** @type {import("./console.js").Services} */ { bayeux, feed, identity }) {
    this.#bayeux = bayeux;
    this.#feed = feed;
    this.#identity = identity;
    this.#list = root.querySelector("ol");
    this.#notice = root.querySelector(".notice");
    this.#count = root.querySelector("[role=status]");
    this.#filter = root.querySelector("[type=search]");
    this.#pattern = root.querySelector("[name=pattern]");
    this.#filter.addEventListener("input", () => this.#reorder());
    root.querySelector("form").addEventListener("submit", (submit) => {
      submit.preventDefault();
      this.hide();
      this.show();
    });
    identity.addEventListener("rights", () => this.#restrict());
    bayeux.addEventListener("change", () => this.#watchSession());
  }

  show() {
    this.#forget();
    this.#refusal = "";
    this.#feed.subscribe(this.#pattern.value, this, { latest: true });
    if (this.#isServed === null) this.#feed.subscribe(RATES, this);
    this.#isShown = true;
    this.#restrict();
    this.#redraw.start();
  }

  hide() {
    this.#feed.unsubscribeAll(this);
    this.#isShown = false;
    this.#redraw.stop();
  }

  /** Called by `Feed`. */
  received({ channel, data, ext }) {
    if (channel === RATES && TICK(data)) this.#learn(data);
    if (!ext?.nt4) return;
    const { type, time } = ext.nt4;
    const known = this.#topics.get(channel);
    // A value with a position was read from the history, perhaps by a replay that is still in progress.
    if (known && ext.replay !== undefined && time < known.time) return;
    if (!known && this.#topics.size >= TOPICS) return;
    this.#topics.set(channel, { row: null, ...known, type, time, value: data, at: this.#published(time) });
    this.#changed.add(channel);
    if (!known) this.#isOrdered = false;
    this.#redraw.soon();
  }

  /** Called by `Feed`. */
  refused(pattern, error) {
    if (pattern === RATES) return;
    this.#refusal = refusal(error, `subscribe to ${pattern}`, "receive its values");
    this.#draw();
  }

  /** Learn from a tick whether NetworkTables is served; one tick is enough. */
  #learn({ time, protocols }) {
    this.#clock.set(time);
    this.#isServed = Object.hasOwn(protocols, "nt4");
    this.#feed.unsubscribe(RATES, this).catch(() => {});
    this.#draw();
  }

  /** Begin again with a new session: it can be another server's, with other topics. It sends their last values. */
  #watchSession() {
    const { session } = this.#bayeux;
    if (session === null || session === this.#session) return;
    const isAnother = this.#session !== null;
    this.#session = session;
    this.#isServed = null;
    if (!isAnother || !this.#isShown) return;
    this.#feed.subscribe(RATES, this);
    this.#forget();
    this.#draw();
  }

  #forget() {
    for (const [channel, { row }] of this.#topics) if (!row?.isInUse) this.#topics.delete(channel);
    this.#isOrdered = false;
  }

  #restrict() {
    for (const { row } of this.#topics.values()) row?.restrict(this.#identity.isReadOnly);
    this.#drawStatus();
  }

  #reorder() {
    this.#isOrdered = false;
    this.#draw();
  }

  #draw() {
    const changed = [...this.#changed];
    this.#changed.clear();
    if (!this.#isOrdered) this.#arrange();
    for (const channel of changed) this.#fill(channel);
    this.#drawStatus();
  }

  /** Create missing rows, and put all rows in order. */
  #arrange() {
    this.#isOrdered = true;
    const wanted = this.#filter.value.trim().toLowerCase();
    const channels = [...this.#topics.keys()].filter((channel) => channel.toLowerCase().includes(wanted)).sort();
    const shown = channels.slice(0, ROWS);
    for (const channel of shown) {
      const topic = this.#topics.get(channel);
      if (topic.row === null) {
        topic.row = new TopicRow(channel, (...value) => this.#bayeux.publish(...value), this.#identity.isReadOnly);
        this.#fill(channel);
      }
    }
    arrange(this.#list, shown.map((channel) => this.#topics.get(channel).row.element));
  }

  #fill(channel) {
    const topic = this.#topics.get(channel);
    if (!topic?.row) return;
    topic.row.show(topic.type, topic.value, topic.at);
    topic.row.grow(this.#clock.now);
  }

  #grow() {
    const { now } = this.#clock;
    for (const { row } of this.#topics.values()) if (row?.element.isConnected) row.grow(now);
  }

  #drawStatus() {
    const drawn = this.#list.childElementCount;
    const all = this.#topics.size;
    const count = drawn === all ? `${all} topics` : `${drawn} of ${all} topics`;
    write(this.#count, count);
    const [text, className] = this.#trouble();
    this.#notice.className = `notice ${className}`;
    notify(this.#notice, text);
  }

  /** The reason why there are no values or values cannot be set, and the notice's class. */
  #trouble() {
    if (this.#refusal) return [this.#refusal, "bad"];
    if (this.#topics.size === 0 && this.#isServed === false) {
      return ["This server does not serve NetworkTables. Start it with: halley serve --nt4", "plain"];
    }
    if (this.#topics.size === 0) {
      const hint = this.#isServed ? "" : " To serve NetworkTables, start the server with: halley serve --nt4";
      return [`No values have been received yet.${hint}`, "plain"];
    }
    if (this.#identity.isReadOnly) return ["Your role has no right to publish, so values can only be read.", "plain"];
    return ["", ""];
  }

  /** The time of a value, in ms since the epoch; now, if its time is in the future or long ago. */
  #published(time_us) {
    const at = time_us / 1_000;
    const { now } = this.#clock;
    return at > EARLIEST_MS && at < now ? at : now;
  }
}
