"use strict";
// Everything that comes from the cluster is put in place as text, never as markup; the page's policy allows no other way.

const byId = (id) => document.getElementById(id);
const STATES = ["failed", "pending", "rebooting", "success", "none"];
const WORDS = {used: "in use", free: "free", unknown: "in use?", none: "no compute"};

const nodes = new Map(); // name -> {data, text, card}
const chosen = {state: "", words: []};

/** An element with a class, attributes and children (text or elements). */
function make(tag, className, children = [], attributes = {}) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

const stateOf = (data) => (STATES.includes(data.state) ? data.state : "none");

function ago(time) {
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(time)) / 1000));
  if (!Number.isFinite(seconds)) return "";
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${seconds} s`;
}

function since(data) {
  if (!data.since) return null;
  return make("time", "dim", [ago(data.since)], {datetime: data.since, title: data.since});
}

function slices(gpu) {
  const useOf = (box) => box.use.split(" ").map((use) => WORDS[use] || use).join(", ");
  const said = gpu.boxes.map((box) => `${box.title} at ${box.slices}, ${useOf(box)}`);
  const label = `${gpu.slices} memory slices: ${said.join("; ") || "no instance"}`;
  const grid = make("div", "slices", [], {role: "img", "aria-label": label});
  grid.style.gridTemplateColumns = `repeat(${gpu.slices}, minmax(0, 1fr))`;
  const place = (box, start, size) => {
    box.style.gridColumn = `${start + 1} / span ${size}`;
    box.style.gridRow = "1";
    grid.append(box);
  };
  const taken = new Set();
  for (const box of gpu.boxes) {
    for (let at = box.start; at < box.start + box.size; at++) taken.add(at);
    const use = box.use.includes(" ") ? "unknown" : box.use;
    const split = box.parts.length > 1 ? ` (${box.parts.join(" ")})` : "";
    const title = `${box.title}${split} at ${box.slices}: ${useOf(box)}`;
    const name = box.title.split(/(?<=\.)/).flatMap((part) => [part, make("wbr")]); // a narrow box breaks behind the dot
    place(make("span", `box ${use}`, [...name, make("br"), useOf(box)], {title}), box.start, box.size);
  }
  for (let at = 0; at < gpu.slices; at++) {
    if (!taken.has(at)) place(make("span", "box empty", [], {title: `slice ${at}: no instance`}), at, 1);
  }
  return grid;
}

function gpuPart(gpu) {
  return make("div", "gpu", [
    make("div", "", [make("strong", "", [gpu.gpus]), ` ${gpu.model} `, make("span", "dim", [gpu.mode])]),
    gpu.slices ? slices(gpu) : null,
    gpu.free ? make("div", "dim", [`free: ${gpu.free}`]) : null,
  ]);
}

function resourceTable(resources) {
  const rows = resources.map((one) => {
    const pods = one.pods.join(", ") + (one.more > 0 ? ` and ${one.more} more` : "");
    const used = one.used === null ? `? of ${one.total}` : `${one.used} of ${one.total}`;
    return make("tr", "", [make("td", "", [one.name]), make("td", "number", [used]), make("td", "", [pods || "-"])]);
  });
  const head = ["Resource", "In use", "Pods"].map((title) => make("th", "", [title], {scope: "col"}));
  return make("table", "", [make("thead", "", [make("tr", "", head)]), make("tbody", "", rows)]);
}

function progressOf(data) {
  const bar = make("progress", "", [], {max: data.run.steps, value: data.run.step});
  bar.setAttribute("aria-label", `${data.name}: step ${data.run.step} of ${data.run.steps}`);
  return bar;
}

function runWords(data) {
  return [data.run.phase, data.run.pods, data.run.gpus, data.message].filter(Boolean).join(" · ");
}

function fill(card, data) {
  const open = card.querySelector("details")?.open;
  card.dataset.state = stateOf(data);
  const details = make("details", "", [
    make("summary", "", [`Resources and pods (${data.resources.length})`]), resourceTable(data.resources),
  ]);
  if (open) details.open = true;
  card.replaceChildren(
    make("div", "head", [
      make("h3", "", [data.name]),
      make("span", "", [make("span", "state", [data.state || "no state"]), " ", since(data)]),
    ]),
    make("div", "", [data.layout ? `layout ${data.layout}` : "no layout asked for", data.cordoned ? ", cordoned" : ""]),
    ...(data.run ? [make("div", "phase", [runWords(data)]), progressOf(data)] : []),
    ...(!data.run && data.message ? [make("div", "message", [data.message])] : []),
    ...(data.problem ? [make("div", "dim", [data.problem])] : []),
    ...(data.missing.length ? [make("div", "dim", [`not told by the node: ${data.missing.join("; ")}`])] : []),
    ...data.gpus.map(gpuPart),
    ...(data.resources.length ? [details] : []),
  );
}

function searchable(data) {
  const parts = [data.name, data.layout, data.state, data.message, data.run ? data.run.phase : ""];
  for (const gpu of data.gpus) parts.push(gpu.model, ...gpu.boxes.map((box) => box.title));
  for (const one of data.resources) parts.push(one.name, ...one.pods);
  return parts.join("\n").toLowerCase();
}

function put(data) {
  const known = nodes.get(data.name);
  const card = known ? known.card : make("article", "", [], {tabindex: "-1"});
  fill(card, data);
  nodes.set(data.name, {data, text: searchable(data), card});
  return known && known.data.state !== data.state ? `${data.name}: ${data.state || "no state"}` : "";
}

function sorted() {
  return [...nodes.values()].sort((a, b) => (a.data.name < b.data.name ? -1 : 1));
}

function arrange() {
  const main = byId("nodes");
  let next = main.firstElementChild;
  for (const {card} of sorted()) {
    if (card === next) next = next.nextElementSibling;
    else main.insertBefore(card, next);
  }
  while (next) {
    const gone = next;
    next = next.nextElementSibling;
    gone.remove();
  }
}

function choose() {
  let shown = 0;
  for (const {data, text, card} of nodes.values()) {
    const right = !chosen.state || stateOf(data) === chosen.state;
    card.hidden = !(right && chosen.words.every((word) => text.includes(word)));
    shown += !card.hidden;
  }
  byId("shown").textContent = shown === nodes.size ? "" : `${shown} of ${nodes.size} nodes`;
}

function count() {
  const counts = new Map([["", nodes.size]]);
  for (const {data} of nodes.values()) counts.set(stateOf(data), (counts.get(stateOf(data)) || 0) + 1);
  for (const state of ["", ...STATES]) {
    let button = byId(`state-${state}`);
    if (!button) {
      button = make("button", "", [], {type: "button", id: `state-${state}`});
      button.addEventListener("click", () => {
        chosen.state = chosen.state === state ? "" : state;
        render();
      });
      byId("counts").append(button);
    }
    const number = counts.get(state) || 0;
    button.textContent = `${state === "none" ? "no state" : state || "all"} ${number}`;
    button.setAttribute("aria-pressed", String(chosen.state === state));
    button.hidden = state !== "" && number === 0 && chosen.state !== state;
  }
}

function listRuns() {
  const runs = sorted().filter(({data}) => data.run);
  byId("running").hidden = runs.length === 0;
  byId("runs").replaceChildren(...runs.map(({data, card}) => {
    const link = make("a", "", [data.name], {href: "#nodes"});
    link.addEventListener("click", (event) => {
      event.preventDefault();
      card.hidden = false;
      card.scrollIntoView({block: "center"});
      card.focus();
    });
    return make("li", "", [link, progressOf(data), make("span", "", [runWords(data)])]);
  }));
}

function render() {
  count();
  listRuns();
  choose();
}

function take(news) {
  if (news.all) nodes.clear();
  const said = news.nodes.map(put).filter(Boolean);
  for (const name of news.gone) nodes.delete(name);
  byId("cluster").textContent = news.cluster;
  byId("problem").textContent = news.problem;
  byId("problem").hidden = !news.problem;
  arrange();
  render();
  if (said.length) {
    const more = said.length > 3 ? ` and ${said.length - 3} more` : "";
    byId("said").textContent = said.slice(0, 3).join("; ") + more;
  }
}

function follow() {
  const stream = new EventSource("events");
  stream.onopen = () => { byId("connection").textContent = "live"; };
  stream.onerror = () => { byId("connection").textContent = "connection lost, trying again"; };
  stream.onmessage = (event) => take(JSON.parse(event.data));
}

byId("filter").addEventListener("input", (event) => {
  chosen.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
  choose();
});
byId("controls").addEventListener("submit", (event) => event.preventDefault());
setInterval(() => {
  for (const time of document.querySelectorAll("time")) time.textContent = ago(time.dateTime);
}, 10000);
follow();
