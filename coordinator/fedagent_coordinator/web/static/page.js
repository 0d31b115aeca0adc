// What the coordinator says as it comes, and which view shows it.
import { openCard } from "./card.js";
import { VIEWS, forecast, signInForm } from "./views.js";
import { changed, credits, h, number, percent, seconds } from "./words.js";

const ROWS = { edges: "id", devices: "id", reach: "id", rounds: "round" };
const app = { field: null, skew: 0, mayChange: false, view: "overview", link: "wait", open: (id) => go(app.view, id) };
const at = (id) => document.getElementById(id);
const made = {};

app.get = async (path, body) => {
  try {
    const answer = await fetch(path, body ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) } : {});
    const found = await answer.json();
    return answer.status === 401 ? { ...found, locked: true } : found;
  } catch {
    return { error: "the coordinator does not answer", hint: "see whether it runs" };
  }
};
app.signIn = async (token) => {
  const answer = await app.get("/api/session", { token });
  if (answer.error) return (app.field ? say : lock)(`${answer.error}: ${answer.hint}`);
  app.mayChange = true;
  app.link = "wait";
  say("");
  listen();
};
app.codes = new Map();
let codesAt = 0;
async function askCodes(field) {
  if (!app.mayChange || !field.pending.length || Date.now() - codesAt < 2000) return;
  codesAt = Date.now();
  const answer = await app.get("/api/pending");
  if (!Array.isArray(answer)) return;
  const old = JSON.stringify([...app.codes]);
  app.codes = new Map(answer.map((one) => [one.id, one.code ?? ""]));
  if (JSON.stringify([...app.codes]) !== old) later();
}
app.accept = async (one, button) => {
  button.disabled = true;
  const answer = await app.get(`/api/pending/${encodeURIComponent(one.id)}/accept`, { code: app.codes.get(one.id) ?? "" });
  say(answer.error ? `${answer.error}: ${answer.hint}` : `${one.name || one.role} was accepted`);
  button.disabled = false;
};
function say(text) {
  at("banner").hidden = !text;
  at("banner").replaceChildren(h("p", {}, text));
}

function lock(text) {
  app.link = "locked";
  at("banner").hidden = false;
  at("banner").replaceChildren(h("p", {}, text), signInForm(app, "page-token"));
  later();
}

// ---------------------------------------------------------------- what comes
let source = null, shown = null;
function keyed(found) {
  for (const [name, key] of Object.entries(ROWS)) if (found[name]) found[name] = new Map(found[name].map((row) => [row[key], row]));
  return found;
}
function whole(text) {
  app.field = keyed(JSON.parse(text));
  came(app.field);
}
function part(text) {
  const found = keyed(JSON.parse(text));
  if (found.epoch !== app.field?.epoch) return;
  app.field = { ...app.field, ...found };
  came(found);
}
function came(found) {
  app.skew = found.at_ms - Date.now();
  app.link = "live";
  const { coordinator, run } = app.field, text = changed(shown, app.field);
  if (text) say(text);
  shown = { coordinator, run: run ?? (text ? null : shown?.run) };
  later();
}
function listen() {
  source?.close();
  source = new EventSource("/api/events");
  source.addEventListener("field", (event) => whole(event.data));
  source.addEventListener("change", (event) => part(event.data));
  source.onerror = async () => {
    if (app.link !== "locked") app.link = "lost";
    later();
    if (source.readyState !== EventSource.CLOSED) return;
    const answer = await app.get("/api/field");
    if (answer.locked) return lock(`${app.field ? "This page's token is no longer accepted: another coordinator may have this address. " : ""}${answer.error}: ${answer.hint}`);
    if (answer.hint && !app.field) say(`${answer.error}: ${answer.hint}`);
    setTimeout(listen, 3000);
  };
}

// ---------------------------------------------------------------- what is shown
let due = false;
function later() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => { due = false; draw(); });
}
function state(field) {
  const run = field?.run;
  if (app.link === "locked") return ["wait", "the page needs its token"];
  if (run?.ended_ms) return ["wait", `the run has ended${run.reason ? `: ${run.reason === "rounds" ? "all rounds are done" : run.reason}` : ""}${app.link === "lost" ? "; its coordinator has stopped, this is the last known state" : ""}`];
  if (app.link === "lost") return ["lost", run ? "the coordinator has ended, or cannot be reached: this is the last that it said" : "the coordinator cannot be reached"];
  if (!run) return ["wait", "no run yet"];
  if (run.waiting) return ["wait", run.wanted ? `waiting for ${run.waiting}: ${run.found ?? 0} of ${run.wanted}` : `waiting for ${run.waiting}${run.waiting_detail ? `: ${run.waiting_detail}` : ""}`];
  return ["live", field.running ? `round ${field.running.round} is running` : run.next_ms ? `next round ${new Date(run.next_ms).toLocaleTimeString()}` : "between rounds"];
}
function tile(name, figure, more, note) {
  return h("div", { class: "tile" }, h("p", { class: "soft" }, name), h("p", { class: "figure" }, figure, more ? h("small", {}, ` ${more}`) : ""), h("p", { class: "soft" }, note ?? "\u00a0"));
}
function tiles(field) {
  const run = field.run, money = field.money, devices = [...field.devices.values()], here = devices.filter((one) => one.online).length;
  const list = [...field.rounds.values()], settled = list.filter((one) => one.state === "done"), by = run.measures[0], key = by?.key, measured = settled.filter((one) => one.metrics?.[key] !== undefined), newest = measured.at(-1)?.metrics[key], best = measured.reduce((found, one) => Math[by?.rising ? "max" : "min"](found, one.metrics[key]), run.best ?? (by?.rising ? -Infinity : Infinity));
  const last = settled.slice(-20), ordered = last.reduce((sum, one) => sum + (one.ordered ?? 0), 0), intime = last.reduce((sum, one) => sum + (one.in_time ?? 0), 0), ahead = forecast(field);
  return [
    tile("Rounds", (run.rounds_done ?? 0).toLocaleString("en"), run.rounds_wanted ? `of ${run.rounds_wanted.toLocaleString("en")}` : "", run.rounds_wanted === 0 ? "no limit set" : settled.length > 1 ? `${seconds((settled.at(-1).opened_ms - settled[0].opened_ms) / 1000 / (settled.length - 1))} each` : ""),
    key ? tile(by.word[0].toUpperCase() + by.word.slice(1), newest === undefined ? "–" : number(newest), "", isFinite(best) ? `best ${number(best)}${run.target ? `, target ${run.target}` : ""}` : "") : null,
    tile("In time", percent(intime, ordered), "", `newest ${last.length} rounds, ${number(ordered / (last.length || 1), 1)} ordered in each`),
    app.kept ? null : tile("Devices", String(here), `of ${devices.length}`, `${field.edges.size} edge${field.edges.size === 1 ? "" : "s"}`),
    money ? tile("Spent", credits(money.settled_micro), run.unlimited ? "credits" : `of ${credits(money.granted_micro)}`, run.unlimited ? "no limit" : ahead === null ? "" : ahead.enough ? "enough to the end" : `about ${ahead.left.toLocaleString("en")} rounds left`) : null,
    app.kept ? null : tile("Alarms", String(field.alarms.length), "", field.pending.length ? `${field.pending.length} ask to join` : field.alarms.length ? "see Alarms" : "all well"),
  ].filter(Boolean);
}
function draw() {
  const field = app.field, [kind, text] = state(field);
  if (at("state").textContent !== text) at("state").textContent = text;
  at("state").className = `state ${kind}`;
  at("main").hidden = !field?.run;
  if (!field) return;
  askCodes(field);
  if (!field.run) { at("about").textContent = "nothing has run here yet"; return; }
  at("about").textContent = `${field.run.recipe} · policy ${field.run.policy} · run ${field.run.run.slice(0, 8)}`;
  document.title = `fedagent · ${field.run.recipe}`;
  at("version").textContent = field.run.software;
  at("tiles").replaceChildren(...tiles(field));
  const count = field.alarms.length + field.pending.length, alarm = at("tab-alarms");
  alarm.replaceChildren("Alarms", ...(count ? [h("span", { class: "count", "aria-label": `${count} open` }, String(count))] : []));
  made[app.view].draw(field);
}
function show(name, focus) {
  app.view = name;
  for (const [one] of VIEWS) {
    const tab = at(`tab-${one}`), chosen = one === app.view;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    at(`view-${one}`).hidden = !chosen;
    if (chosen && focus) tab.focus();
    if (chosen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  later();
}
// To a view, and in it to a device: what Back leaves again.
function go(name, id, how = "pushState", focus = false) {
  const hash = id ? `#${name}/${encodeURIComponent(id)}` : `#${name}`;
  if (location.hash !== hash) history[how]({ card: id ?? null }, "", hash);
  show(name, focus);
  if (id) openCard(app, id);
  else at("card").close();
}
function follow() {
  const [name, id] = location.hash.slice(1).split("/");
  if (made[name]) go(name, id && app.field ? decodeURIComponent(id) : null, "replaceState");
}
// A report: this page with its data in it, which asks nobody.
function report(kept) {
  app.kept = kept;
  app.open = () => {};
  app.field = keyed(kept.field);
  app.skew = app.field.at_ms - Date.now();
  const views = ["learning", "money", "fairness", "round", "overview"].map((name) => VIEWS.find((one) => one[0] === name));
  views.find((one) => one[0] === "overview")[1] = "Map";
  const links = ["tiles", "words"].map((name, i) => h("a", { href: `#${name}` }, ["The run", "In words and tables"][i]));
  at("tabs").removeAttribute("role");
  at("tabs").append(links[0]);
  for (const [name, title, make] of views) {
    const view = at(`view-${name}`);
    made[name] = make(app);
    view.append(h("h2", { class: "part" }, title), ...made[name].elements);
    view.setAttribute("role", "region");
    view.setAttribute("aria-label", title);
    view.hidden = false;
    at("words").before(view);
    at("tabs").append(h("a", { href: `#${view.id}` }, title));
  }
  at("tabs").append(links[1]);
  at("tiles").replaceChildren(...tiles(app.field));
  const all = () => views.forEach(([name]) => made[name].draw(app.field));
  const light = (on) => () => { document.documentElement.classList.toggle("print", on); all(); };
  addEventListener("resize", all);
  addEventListener("beforeprint", light(true));
  addEventListener("afterprint", light(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
}
function begin() {
  if (at("report")) return report(JSON.parse(at("report").textContent));
  const tabs = at("tabs");
  for (const [name, title, make] of VIEWS) {
    tabs.append(h("button", { role: "tab", id: `tab-${name}`, "aria-controls": `view-${name}`, onclick: () => go(name) }, title));
    at(`view-${name}`).setAttribute("aria-labelledby", `tab-${name}`);
    made[name] = make(app);
    at(`view-${name}`).append(...made[name].elements);
  }
  tabs.addEventListener("keydown", (event) => {
    const names = VIEWS.map((one) => one[0]), index = names.indexOf(app.view);
    const next = { ArrowRight: index + 1, ArrowLeft: index - 1 + names.length, Home: 0, End: names.length - 1 }[event.key];
    if (next !== undefined) { event.preventDefault(); go(names[next % names.length], null, "replaceState", true); }
  });
  addEventListener("resize", later);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", later);
  addEventListener("popstate", follow);
  at("card").addEventListener("close", () => { if (location.hash.includes("/")) history.back(); });
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  go(made[location.hash.slice(1)] ? location.hash.slice(1) : "overview", null, "replaceState");
  if (token) app.signIn(token);
  else {
    listen();
    app.get("/api/session").then((answer) => { app.mayChange = answer.may_change === true; later(); });
  }
}
begin();
