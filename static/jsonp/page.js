/**
 * The JSONP page: forms around one `JsonpClient`, and lists of received events and responses, always shown as text.
 *
 * The server is the one that served the page, or the one that `?server=` names. No request is sent to it before the
 * reader clicks Connect, since its scripts run in this page.
 */
"use strict";

{
  const STATES = {
    disconnected: "Disconnected",
    connecting: "Connecting",
    connected: "Connected",
    reconnecting: "Reconnecting",
  };
  const HANDLE_CHARS = 8; // of the session's id, enough to distinguish two tabs
  const SHOWN_EVENTS = 100;
  const SHOWN_REQUESTS = 8;

  /** @returns {any} the element that has this id */
  const find = (id) => document.getElementById(id);
  let received = 0;

  const client = new JsonpClient({
    onChange: show,
    onEvent({ channel, data }) {
      received += 1;
      const older = Math.max(0, received - SHOWN_EVENTS);
      find("counts").textContent = `${received - older} shown${older ? `, ${older} older` : ""}`;
      find("empty").hidden = true;
      addLine(find("events"), SHOWN_EVENTS, channel, JSON.stringify(data));
    },
    onRequest({ channel }, answers) {
      addLine(find("requests"), SHOWN_REQUESTS, channel, JSON.stringify(answers));
    },
  });

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  /** Add a line at the top of a list: the time, a channel and JSON. */
  function addLine(list, most, channel, json) {
    const time = element("time", { textContent: new Date().toLocaleTimeString("en-GB") });
    const name = element("span", { className: "channel", textContent: channel });
    list.prepend(element("li", {}, time, name, element("code", { textContent: json })));
    while (list.children.length > most) list.lastElementChild.remove();
  }

  function show() {
    const { state, session, error, subscriptions } = client;
    const isOff = state === "disconnected";
    find("state").dataset.state = state;
    say("state", STATES[state]);
    say("trouble", error?.message ?? "");
    say("detail", state === "connected" ? `callback-polling, session ${session?.slice(0, HANDLE_CHARS)}` : "");
    find("server").disabled = !isOff;
    find("connect").querySelector("[type=submit]").disabled = !isOff;
    find("disconnect").disabled = isOff;
    for (const id of ["subscribe", "publish"]) find(id).querySelector("[type=submit]").disabled = session === null;
    find("subscriptions").replaceChildren(...[...subscriptions].map(subscriptionLine));
  }

  /** Set a live region's text, but only if it has changed: otherwise screen readers would read it again. */
  function say(id, text) {
    if (find(id).textContent !== text) find(id).textContent = text;
  }

  function subscriptionLine(subscription) {
    const button = element("button", { type: "button", textContent: "Unsubscribe" });
    button.setAttribute("aria-label", `Unsubscribe from ${subscription}`);
    button.addEventListener("click", () => attempt(find("subscribe"), () => client.unsubscribe(subscription)));
    return element("li", {}, element("span", { className: "channel", textContent: subscription }), button);
  }

  /** Run `action`, and show the error in the form's output if it fails. */
  async function attempt(form, action) {
    const output = form.querySelector("output");
    output.textContent = "";
    try {
      await action();
    } catch (error) {
      output.textContent = error.message;
    }
  }

  function onSubmit(id, action) {
    find(id).addEventListener("submit", (submit) => {
      submit.preventDefault();
      attempt(find(id), action);
    });
  }

  /** The value of `text` if it is JSON; otherwise `text` itself. */
  function parsed(text) {
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }

  find("connect").addEventListener("submit", (submit) => {
    submit.preventDefault();
    client.connect(find("server").value);
  });
  onSubmit("subscribe", () => client.subscribe(find("pattern").value));
  onSubmit("publish", () => client.publish(find("channel").value, parsed(find("data").value)));
  find("disconnect").addEventListener("click", () => client.disconnect());

  const own = location.protocol.startsWith("http") ? new URL("bayeux", location.href).href : "http://127.0.0.1:8080/bayeux";
  find("server").value = new URLSearchParams(location.search).get("server") ?? own;
}
