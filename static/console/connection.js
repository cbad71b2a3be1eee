/**
 * The connection's part of the header: its state and last error, and the buttons that begin and end it.
 */

import { write } from "./element.js";
import { plain } from "./refusals.js";

const STATES = {
  disconnected: "Disconnected",
  connecting: "Connecting",
  connected: "Connected",
  reconnecting: "Reconnecting",
};

const HANDLE_CHARS = 8; // of the session's id, enough to distinguish two tabs
const COUNTDOWN_MS = 250;

export class Connection {
  #bayeux;
  #state;
  #trouble;
  #detail;
  #retry;
  #toggle;
  #countdown = 0; // a timer

  constructor(root, bayeux) {
    this.#bayeux = bayeux;
    this.#state = root.querySelector("#state");
    this.#trouble = root.querySelector("#trouble");
    this.#detail = root.querySelector("#detail");
    this.#retry = root.querySelector("#retry");
    this.#toggle = root.querySelector("#toggle");
    this.#retry.addEventListener("click", () => bayeux.connect());
    this.#toggle.addEventListener("click", () => {
      if (bayeux.state === "disconnected") bayeux.connect();
      else bayeux.disconnect();
    });
    bayeux.addEventListener("change", () => this.#show());
    this.#watchPage();
    this.#show();
  }

  /** Disconnect when the page is left, so that another tab can hold a poll; reconnect with the page or the network. */
  #watchPage() {
    let hasLeft = false;
    addEventListener("pagehide", () => {
      hasLeft = this.#bayeux.state !== "disconnected";
      this.#bayeux.disconnect();
    });
    addEventListener("pageshow", () => {
      if (hasLeft) this.#bayeux.connect();
      hasLeft = false;
    });
    addEventListener("online", () => {
      if (this.#bayeux.state === "reconnecting") this.#bayeux.connect();
    });
  }

  #show() {
    const { state, session, error } = this.#bayeux;
    this.#state.dataset.state = state;
    write(this.#state, STATES[state]);
    write(this.#trouble, error ? plain(error) : "");
    this.#retry.hidden = state !== "reconnecting";
    this.#toggle.textContent = state === "disconnected" ? "Connect" : "Disconnect";
    this.#detail.title = session ? `Session ${session}` : "";
    clearInterval(this.#countdown);
    if (state === "reconnecting") this.#countdown = setInterval(() => this.#showDetail(), COUNTDOWN_MS);
    this.#showDetail();
  }

  #showDetail() {
    const { state, session, retryAt } = this.#bayeux;
    const seconds = Math.ceil((retryAt - Date.now()) / 1_000);
    this.#detail.textContent = {
      disconnected: "",
      connecting: "",
      connected: `${transport(this.#bayeux)}, session ${session?.slice(0, HANDLE_CHARS)}`,
      reconnecting: seconds > 0 ? `next try in ${seconds} s` : "trying now",
    }[state];
  }
}

/** How events are received. */
function transport({ transport, advice }) {
  if (transport === "websocket") return "WebSocket";
  // The server lets only some tabs of a browser hold a connect, because browsers limit their connections to a host.
  if (advice["multiple-clients"]) return `polling every ${advice.interval / 1_000} s, as another tab holds the connection`;
  return "long-polling";
}
