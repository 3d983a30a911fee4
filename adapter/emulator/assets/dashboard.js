// Keeps the page fresh: an event says what changed, those parts are fetched as HTML and exchanged.
"use strict";

const AFFECTED = {
  snapshot: ["summary", "replicas", "starts", "invocations"],
  replica: ["summary", "replicas"],
  queue: ["summary"],
  invocation: ["summary", "invocations"],
  report: ["summary", "starts"],
};
const PAUSE_MS = 100; // between two refreshes: a hundred events a second must not become a hundred requests
const RESULTS_SHOWN = 20;
const AT_ONCE = 4; // a browser opens six connections to a host: one brings the events, one is left for the buttons

const $ = (id) => document.getElementById(id);

// -- refreshing ------------------------------------------------------------------------------------------------------

const stale = new Set();
let refreshing = false;

async function refresh() {
  if (refreshing) return;
  refreshing = true;
  try {
    while (stale.size) {
      const names = [...stale];
      stale.clear();
      const answer = await fetch(`/panels?only=${names.join(",")}`);
      const parts = await answer.json();
      for (const [name, html] of Object.entries(parts)) exchange($(name), html);
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  } catch {
    // the emulator is gone; the stream of events says so, and brings a snapshot when it is back
  } finally {
    refreshing = false;
  }
}

// Make a part like the fresh HTML; elements stay the ones they are, so that no click, focus or opened list is lost.
function exchange(part, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  alikeInside(part, fresh.content);
  if (part.id === "starts") markSelected();
  tick();
}

function alikeInside(old, fresh) {
  const keyed = new Map([...old.children].filter((e) => e.dataset.key).map((e) => [e.dataset.key, e]));
  let at = old.firstChild;
  for (const next of [...fresh.childNodes]) {
    const key = next.dataset?.key;
    const unkeyed = at && !at.dataset?.key && at.nodeName === next.nodeName ? at : null;
    const same = key ? keyed.get(key) : unkeyed;
    if (!same) {
      old.insertBefore(next, at);
      continue;
    }
    if (same === at) at = at.nextSibling;
    else old.insertBefore(same, at);
    alike(same, next);
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function alike(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name); // a person opened it
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  alikeInside(old, fresh);
}

function tick() {
  const now = Date.now() / 1000;
  for (const element of document.querySelectorAll("[data-since]")) {
    const seconds = Math.max(0, now - Number(element.dataset.since));
    element.textContent = seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  }
}

// -- events ----------------------------------------------------------------------------------------------------------

function follow() {
  const events = new EventSource("/events");
  for (const [kind, parts] of Object.entries(AFFECTED)) {
    events.addEventListener(kind, (event) => {
      parts.forEach((name) => stale.add(name));
      refresh();
      if (kind === "report") onReport(JSON.parse(event.data).number);
      if (kind === "snapshot") onReport(JSON.parse(event.data).reports[0]?.number);
    });
  }
  events.onopen = () => connection("live", "live");
  events.onerror = () => connection("lost", "not connected");
}

function connection(state, text) {
  $("connection").className = state;
  $("connection").textContent = text;
}

// -- the waterfall ---------------------------------------------------------------------------------------------------

let shown = Number(document.querySelector("#starts [aria-current]")?.dataset.start || 0);
let following = !new URLSearchParams(location.search).has("start"); // until a person chooses a start

function onReport(number) {
  if (number && following && number !== shown) show(number);
}

async function show(number) {
  shown = number;
  markSelected();
  try {
    const answer = await fetch(`/reports/${number}/section`);
    if (answer.ok && shown === number) $("waterfall").innerHTML = await answer.text();
  } catch {
    // as above
  }
}

function markSelected() {
  for (const link of document.querySelectorAll("#starts [data-start]")) {
    if (Number(link.dataset.start) === shown) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

$("starts").addEventListener("click", (event) => {
  const link = event.target.closest("[data-start]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const newest = Number(document.querySelector("#starts [data-start]").dataset.start);
  const number = Number(link.dataset.start);
  following = number === newest;
  show(number);
});

// -- buttons ---------------------------------------------------------------------------------------------------------

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-post]");
  if (!button) return;
  button.disabled = true;
  try {
    await fetch(button.dataset.post, { method: "POST" });
  } catch {
    // as above
  } finally {
    button.disabled = false;
  }
});

// -- invoking --------------------------------------------------------------------------------------------------------

const remembered = `coldstart event ${document.body.dataset.target}`;
$("event").value = localStorage.getItem(remembered) ?? $("event").value;

$("invoke").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("event").value;
  try {
    JSON.parse(text);
  } catch (error) {
    result("not sent", "bad").body.textContent = `The event is no JSON: ${error.message}`;
    return;
  }
  localStorage.setItem(remembered, text);
  const callers = Math.min(AT_ONCE, Math.max(1, Number($("callers").value) || 1));
  for (let number = 0; number < callers; number += 1) queued.push({ text, ...result("waits in this page", "pending") });
  sendQueued();
});

const queued = [];
let underway = 0;

async function sendQueued() {
  if (underway >= AT_ONCE || !queued.length) return;
  underway += 1;
  const next = queued.shift();
  sendQueued();
  await invoke(next);
  underway -= 1;
  sendQueued();
}

$("event").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("invoke").requestSubmit();
});

// A line for an invocation, with what came of it below; the newest is open.
function result(title, kind = "") {
  const entry = document.createElement("details");
  const head = document.createElement("summary");
  const body = document.createElement("pre");
  entry.append(head, body);
  for (const earlier of $("result").children) earlier.open = false;
  entry.open = true;
  $("result").prepend(entry);
  while ($("result").children.length > RESULTS_SHOWN) $("result").lastChild.remove();
  const say = (text, className = "") => {
    head.textContent = text;
    entry.className = className;
  };
  say(title, kind);
  return { say, body };
}

async function invoke({ text, say, body }) {
  say("waits for an answer", "pending");
  const begun = performance.now();
  const seconds = () => `${((performance.now() - begun) / 1000).toFixed(2)} s`;
  try {
    const headers = { "Content-Type": "application/json" };
    const answer = await fetch("/invoke", { method: "POST", headers, body: text });
    const facts = [String(answer.status)];
    for (const name of ["X-Coldstart", "X-Coldstart-Replica"]) {
      if (answer.headers.get(name)) facts.push(answer.headers.get(name));
    }
    let shownBody = "";
    const decoder = new TextDecoder();
    for (let reader = answer.body.getReader(), piece; !(piece = await reader.read()).done; ) {
      shownBody += decoder.decode(piece.value, { stream: true });
      body.textContent = shownBody;
      say(`${facts.join(" · ")} · ${seconds()}`, "pending");
    }
    body.textContent = pretty(shownBody);
    say(`${facts.join(" · ")} · ${seconds()}`, answer.ok && !endsInError(shownBody) ? "good" : "bad");
  } catch (error) {
    say(`no answer · ${seconds()}`, "bad");
    body.textContent = String(error.message || error);
  }
}

// A stream that fails after its first item says so in its last line.
function endsInError(text) {
  try {
    return "error" in JSON.parse(text.trimEnd().split("\n").at(-1).replace(/^data: /, "")) && text.includes("\n");
  } catch {
    return false;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2).replace(/\[\s+(-?[\d.e+-]+,?\s*)+\]/g, (list) =>
      list.replace(/\s+/g, " "),
    );
  } catch {
    return text; // lines of a stream, or no JSON
  }
}

follow();
setInterval(tick, 200);
tick();
