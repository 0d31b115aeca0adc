// The views: each makes its elements once, and gets the field whenever something changed.
import { bars, lines } from "./draw.js";
import { FieldMap, RATES } from "./map.js";
import { timeline } from "./timeline.js";
import { ago, credits, h, legend, hint, number, percent, rate, seconds, soft, table } from "./words.js";

function panel(width, title, ...rest) {
  return h("section", { class: `panel ${width}` }, h("div", { class: "head" }, h("h2", {}, title), ...rest.filter((one) => one?.dataset?.head)), ...rest.filter((one) => !one?.dataset?.head));
}
const chart = (label, kind = "") => h("canvas", { class: kind, role: "img", "aria-label": label });
const top = (element) => { element.dataset.head = "1"; return element; };
// A table behind a chart, made only while it is open.
function behind(title, make) {
  const place = h("div"), found = h("details", {}, h("summary", {}, title), place);
  found.refresh = () => found.open && place.replaceChildren(make());
  found.addEventListener("toggle", found.refresh);
  return found;
}
const rounds = (field) => [...field.rounds.values()];
const done = (field) => rounds(field).filter((one) => one.state === "done");
const edgeName = (field, id) => field.edges.get(id)?.name ?? id.slice(0, 8);
const verdict = (bar) => h("span", { class: bar.in_time ? "good" : bar.status === "open" ? "" : "bad" }, bar.in_time ? "in time" : bar.status);
function openButton(app, device) {
  if (app.kept) return device.name;
  return h("button", { class: "link", onclick: () => app.open(device.id) }, device.name);
}
function roundTable(field, round) {
  return table(round ? `Orders of round ${round.round}` : "No round", [["device"], ["edge"], ["price", "n"], ["download", "n"], ["training", "n"], ["upload", "n"], ["in all", "n"], ["end"]],
    (round?.bars ?? []).map((bar) => [field.devices.get(bar.device)?.name ?? bar.device, edgeName(field, bar.edge), credits(bar.price_micro), seconds(bar.download_s), seconds(bar.train_s), seconds(bar.upload_s), seconds(bar.total_s), verdict(bar)]));
}
const PARTS = [["k0", "download"], ["k2", "training"], ["k4", "upload"], ["ks", "start, unknown"]];

function overview(app) {
  const canvas = chart("Map of edges and devices. Arrow keys go from device to device, Enter opens one.", "map");
  canvas.tabIndex = 0;
  const map = new FieldMap(canvas, app.open), last = chart("The newest round"), good = chart("How good the model is", "low"), free = chart("Money of the run, by round", "low"), title = h("h2"), cash = h("h2");
  const list = behind("The map as a table", () => table("Who reaches whom", [["device"], ["edges, with the rate of the upload"], ["now"]],
    [...app.field.devices.values()].slice(0, 300).map((one) => [openButton(app, one), (app.field.reach.get(one.id)?.edges ?? []).map(([edge, bps]) => `${[...app.field.edges.values()][edge]?.name} ${rate(bps)}`).join(", ") || "none", one.reason || (one.online ? "connected" : ago(one.seen_ms))])));
  const round = h("section", { class: "panel" }, h("div", { class: "head" }, title, legend(...PARTS)), last);
  return {
    elements: [
      panel("w7", "Edges and devices", top(legend(...RATES.map(([kind, text]) => [`k${kind.slice(1)}`, text]), ["kg", "ordered now"], ["ki", "connected"])), canvas, h("p", { class: "note" }, "Lines: who reaches which edge, coloured by the device's upload rate; strong lines train in this round. In an edge: devices connected."), list),
      h("div", { class: "panel stack w5" }, round, panel("", "Model", good), h("section", { class: "panel" }, h("div", { class: "head" }, cash), free)),
    ],
    draw(field) {
      map.draw(field);
      list.refresh();
      const shown = field.last ?? field.running;
      title.textContent = shown ? `Round ${shown.round}` : "No round yet";
      timeline(last, shown && { ...shown, bars: [...shown.bars].sort((a, b) => (b.total_s ?? 0) - (a.total_s ?? 0)).slice(0, 12) }, field.devices, app.skew);
      measure(good, field);
      cash.textContent = field.run?.unlimited ? "Money spent" : "Money left";
      burnDown(free, field);
    },
  };
}

function roundView(app) {
  const running = chart("The running round"), last = chart("The round before"), now = h("h2"), before = h("h2");
  const one = behind("As a table", () => roundTable(app.field, app.field.running)), two = behind("As a table", () => roundTable(app.field, app.field.last));
  const history = behind("The newest rounds as a table", () => table("Rounds, newest first", [["round", "n"], ["state"], ["took", "n"], ["ordered", "n"], ["in time", "n"], ["used", "n"], ["paid", "n"], ["reason"]],
    rounds(app.field).reverse().slice(0, app.kept ? 5000 : 60).map((r) => [r.round, r.state, seconds(r.seconds), r.ordered, r.in_time ?? 0, r.used ?? 0, credits(r.paid_micro ?? 0), r.reason])));
  const counts = chart("Ordered and in time, by round", "low");
  return {
    elements: [
      h("section", { class: "panel w6" }, h("div", { class: "head" }, now, legend(...PARTS)), running, one),
      h("section", { class: "panel w6" }, h("div", { class: "head" }, before, legend(...PARTS)), last, two),
      panel("", "Ordered and in time", top(legend(["ks", "ordered"], ["k0", "in time"])), counts, history),
    ],
    draw(field) {
      now.textContent = field.running ? `Round ${field.running.round} is running` : "No round is running";
      before.textContent = field.last ? `Round ${field.last.round}` : "No round before";
      running.dataset.round = field.running?.round ?? "";
      timeline(running, field.running, field.devices, app.skew);
      timeline(last, field.last, field.devices, app.skew);
      const newest = rounds(field).slice(-120);
      bars(counts, newest.map((r) => ({ label: String(r.round), parts: [[r.ordered ?? 0, "soft"], [r.in_time ?? 0, "c0"]] })), { from: newest[0]?.round });
      for (const list of [one, two, history]) list.refresh();
    },
  };
}

function points(field, pick) {
  return rounds(field).map((one) => [one.round, pick(one)]).filter((point) => point[1] !== null && point[1] !== undefined);
}
function running(list) {
  let sum = 0;
  return list.map(([x, y]) => [x, (sum += y)]);
}
function measure(canvas, field) {
  const run = field.run, key = run?.measures[0]?.key;
  const series = [{ points: points(field, (one) => one.metrics?.[key]), colour: "c2", fill: true }];
  lines(canvas, series, { low: 0, high: key === "accuracy" ? 1 : undefined, marks: run?.target ? [{ at: run.target, text: `target ${run.target}` }] : [], none: key ? "not measured yet" : "this run measures nothing" });
}
function learning(app) {
  const good = chart("How good the model is"), loss = chart("Loss"), useful = chart("Updates used"), opinion = chart("Opinions of the model");
  const name = h("h2"), opinions = panel("", "What devices think of the model", opinion);
  const list = behind("As a table", () => table("Rounds, newest first", [["round", "n"], ["measured"], ["used", "n"]], rounds(app.field).reverse().slice(0, app.kept ? 5000 : 60).map((r) => [r.round, Object.entries(r.metrics ?? {}).map(([key, value]) => `${key} ${number(value)}`).join(", "), r.used ?? 0])));
  return {
    elements: [
      h("section", { class: "panel w6" }, h("div", { class: "head" }, name), good), panel("w6", "Loss", top(legend(["k1", "held-out samples"], ["k5", "training (dashed)"])), loss),
      panel("w6", "Utility: updates used", top(legend(["k0", "in all"])), useful, h("p", { class: "note" }, "An update counts when it is part of an edge's average.")),
      opinions, panel("", "By round", list),
    ],
    draw(field) {
      const word = field.run?.measures[0]?.word;
      name.textContent = word ? word[0].toUpperCase() + word.slice(1) : "The model";
      measure(good, field);
      lines(loss, [{ points: points(field, (one) => one.metrics?.train_loss), colour: "c5", dash: [3, 3], width: 1.5 }, { points: points(field, (one) => one.metrics?.loss), colour: "c1" }], { low: 0 });
      const before = [...field.devices.values()].reduce((all, one) => all + (one.used ?? 0), 0), used = running(points(field, (one) => one.used ?? 0)), shift = before - (used.at(-1)?.[1] ?? 0);
      lines(useful, [{ points: used.map(([x, y]) => [x, y + shift]), colour: "c0", fill: true }], { low: 0 });
      const means = points(field, (one) => one.opinion), volunteers = points(field, (one) => one.volunteers);
      opinions.hidden = !means.length && !volunteers.length;
      lines(opinion, [{ points: means, colour: "c4" }, { points: volunteers, colour: "c5", step: true }], { low: 0 });
      list.refresh();
    },
  };
}

const spentIn = (one) => (one.paid_micro ?? 0) + (one.rent_micro ?? 0);
export function forecast(field) {
  const list = done(field).slice(-20), money = field.money;
  if (!money || field.run?.unlimited || list.length < 2) return null;
  const each = list.reduce((sum, one) => sum + spentIn(one), 0) / list.length, took = (list.at(-1).opened_ms - list[0].opened_ms) / 1000 / (list.length - 1);
  if (!each) return null;
  const left = Math.floor((money.free_micro + money.reserved_micro) / each), wanted = field.run.rounds_wanted;
  const until = wanted ? Math.max(0, wanted - list.at(-1).round) : Infinity;
  return { each, left, took, last: list.at(-1).round + left, enough: left >= until };
}
export function moneyLine(field) {
  const money = field.money, spent = field.run?.unlimited, found = [];
  // From the ledger's figure back: older rounds are not here.
  let level = (spent ? money?.settled_micro : money?.free_micro + money?.reserved_micro) / 1e6;
  for (const one of money ? rounds(field).reverse() : []) {
    if (one.state === "open") continue;
    found.unshift([one.round, level]);
    level += ((spent ? -1 : 1) * spentIn(one)) / 1e6;
  }
  if (found.length) found.unshift([found[0][0] - 1, level]);
  return found;
}
function burnDown(canvas, field) {
  const found = moneyLine(field);
  if (field.run?.unlimited) return lines(canvas, [{ points: found, colour: "c1" }], { low: 0, none: "this run has no limit, and nothing is spent" });
  const ahead = forecast(field), series = [{ points: found, colour: "c0", fill: true }];
  let x1;
  if (ahead && found.length) {
    const last = field.run.rounds_wanted ? Math.min(ahead.last, field.run.rounds_wanted) : ahead.last, from = found.at(-1);
    x1 = Math.min(last, from[0] + Math.max(20, found.length * 2));
    if (x1 > from[0]) series.push({ points: [from, [x1, Math.max(0, from[1] - ((x1 - from[0]) * ahead.each) / 1e6)]], colour: "c0", dash: [5, 5] });
  }
  lines(canvas, series, { low: 0, x1, none: "nothing is spent yet" });
}
function money(app) {
  const cash = h("h2"), free = chart("Money of the run by round, with a forecast"), each = chart("Spent by edge"), words = h("p", { class: "note" }), keys = h("div", { class: "legend" }), place = h("div");
  return {
    elements: [h("section", { class: "panel w7" }, h("div", { class: "head" }, cash), free, words), panel("w5", "Spent by edge, in the rounds shown", top(keys), each), panel("", "Edges", place)],
    draw(field) {
      cash.textContent = field.run?.unlimited ? "Money spent" : "Money left";
      burnDown(free, field);
      const ahead = forecast(field), unlimited = field.run?.unlimited;
      words.textContent = unlimited ? "This run has no total limit; each edge has a limit per round." : ahead === null ? "A forecast needs two settled rounds that cost something." : ahead.enough ? `Dashed: as the newest 20 rounds went on (${credits(ahead.each)} a round), it lasts to the last round.` : `Dashed: as the newest 20 rounds went on (${credits(ahead.each)} a round), it is spent after round ${ahead.last.toLocaleString("en")}, in ${seconds(ahead.left * ahead.took)}.`;
      const edges = [...field.edges.values()], few = edges.slice(0, 8);
      lines(each, few.map((edge, at) => ({ points: running(points(field, (one) => ((one.spent ?? [])[edge.index] ?? 0) / 1e6)), colour: `c${at}` })), { low: 0 });
      keys.replaceChildren(...few.map((edge, at) => h("span", { class: `k${at}` }, edge.name)));
      const newest = done(field).slice(-20), per = (edge) => newest.reduce((sum, one) => sum + ((one.spent ?? [])[edge.index] ?? 0), 0) / (newest.length || 1);
      place.replaceChildren(table("Budget is for one round, its use the mean of the newest 20; the rest is of the whole run", [["edge"], ["devices", "n"], ["budget", "n"], ["use of it"], ["spent", "n"], ["rent", "n"], ["ordered", "n"], ["in time", "n"], ["state"]],
        edges.map((edge) => {
          const used = edge.budget_micro && edge.budget_micro < 1e14 ? per(edge) / edge.budget_micro : 0, bar = h("i");
          bar.style.width = `${Math.min(100, 100 * used)}%`;
          return [edge.name, edge.devices ?? 0, (edge.budget_micro ?? 0) < 1e14 ? credits(edge.budget_micro ?? 0) : "no limit", h("span", {}, h("span", { class: "bar", "aria-hidden": "true" }, bar), `${Math.round(100 * used)} %`), credits(edge.spent_micro ?? 0), credits(edge.rent_micro ?? 0), edge.ordered ?? 0, percent(edge.in_time ?? 0, edge.ordered), edge.failed ? h("span", { class: "bad" }, edge.failed) : "ok"];
        })));
    },
  };
}

function fairness(app) {
  const counts = chart("How often each device was ordered"), even = h("strong");
  const list = behind("As a table", () => table("Devices by how often they were ordered", [["device"], ["ordered", "n"], ["in time", "n"], ["used", "n"], ["opinion", "n"]], sorted(app.field).slice(0, 300).map((one) => [openButton(app, one), one.ordered ?? 0, one.in_time ?? 0, one.used ?? 0, number(one.opinion)])));
  const sorted = (field) => [...field.devices.values()].sort((a, b) => (b.ordered ?? 0) - (a.ordered ?? 0));
  const said = chart("Opinions"), opinions = panel("", "Newest opinion of each device", said);
  return {
    elements: [panel("", "How often each was ordered", top(even), counts, legend(["ks", "ordered"], ["k0", "in time"]), list), opinions],
    draw(field) {
      const all = sorted(field), n = all.map((one) => one.ordered ?? 0), sum = n.reduce((a, b) => a + b, 0), squares = n.reduce((a, b) => a + b * b, 0);
      even.textContent = sum ? `evenness (Jain) ${number((sum * sum) / (n.length * squares), 2)} of 1` : "";
      bars(counts, all.map((one) => ({ label: one.name, parts: [[one.ordered ?? 0, "soft"], [one.in_time ?? 0, "c0"]] })));
      opinions.hidden = !all.some((one) => one.opinion !== undefined && one.opinion !== null);
      if (!opinions.hidden) bars(said, all.map((one) => ({ label: one.name, parts: [[one.opinion ?? 0, "c4"]] })), { high: 1 });
      list.refresh();
    },
  };
}

const COLUMNS = [["device", (d) => d.name], ["last seen", (d) => (d.online ? 1 : 0)], ["edge", (d, f) => (d.edges ?? []).map((id) => edgeName(f, id)).join(", ")], ["upload", (d) => d.context?.upload_bps ?? 0, "n"], ["battery", (d) => d.context?.battery ?? 2, "n"], ["°C", (d) => d.context?.temperature_c ?? 0, "n"], ["ordered", (d) => d.ordered ?? 0, "n"], ["in time", (d) => d.in_time ?? 0, "n"], ["used", (d) => d.used ?? 0, "n"], ["price", (d) => d.price_micro ?? 0, "n"], ["paid", (d) => d.paid_micro ?? 0, "n"], ["last", (d) => d.last_round ?? 0], ["software", (d) => d.software ?? ""]];
function devices(app) {
  const find = h("input", { type: "search", placeholder: "name, id or edge", "aria-label": "Find devices", oninput: () => draw(app.field) }), count = h("span", { class: "soft", role: "status" });
  const place = h("tbody"), more = h("button", { onclick: () => { shown += 100; draw(app.field); } }, "Show more");
  let by = 0, down = false, shown = 100;
  const heads = COLUMNS.map(([title, , kind], at) => h("th", { scope: "col", class: kind }, h("button", { onclick: () => { [by, down] = [at, by === at ? !down : at > 2]; draw(app.field); } }, title)));
  function draw(field) {
    const text = find.value.trim().toLowerCase(), pick = COLUMNS[by][1];
    const found = [...field.devices.values()].filter((one) => !text || [one.name, one.id, one.address ?? "", COLUMNS[2][1](one, field)].some((part) => part.toLowerCase().includes(text)));
    const order = (a, b) => { const [x, y] = [pick(a, field), pick(b, field)]; return typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y; };
    found.sort((a, b) => (down ? order(b, a) : order(a, b)));
    count.textContent = `${found.length} of ${field.devices.size}`;
    more.hidden = found.length <= shown;
    const bare = [[4, "battery"], [5, "temperature_c"]].filter(([, name]) => !found.some((one) => one.context?.[name] !== undefined)).map(([at]) => at);
    heads.forEach((head, at) => { head.hidden = bare.includes(at); });
    heads.forEach((head, at) => (at === by ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    if (place.contains(document.activeElement)) app.keep = document.activeElement.dataset.id;
    place.replaceChildren(...found.slice(0, shown).map((one) => {
      const name = openButton(app, one);
      name.dataset.id = one.id;
      const told = one.context ?? {};
      const now = one.reason ? h("span", { class: "warn", title: one.reason }, `declines${one.online ? "" : `, ${ago(one.seen_ms)}`}`) : one.online ? h("span", { class: "good" }, "connected") : ago(one.seen_ms);
      const cells = [name, now, COLUMNS[2][1](one, field) || "–", told.upload_bps ? rate(told.upload_bps) : "–", told.battery === undefined ? "–" : `${Math.round(100 * told.battery)} %`, told.temperature_c === undefined ? "–" : number(told.temperature_c, 0), one.ordered ?? 0, one.in_time ?? 0, one.used ?? 0, credits(one.price_micro ?? 0), credits(one.paid_micro ?? 0), one.last_round ? `${one.last_round} ${one.last_status}` : "–", (one.software ?? "").replace("fedagent ", "") || "–"];
      return h("tr", {}, ...cells.map((cell, at) => h("td", { class: COLUMNS[at][2], hidden: bare.includes(at) }, cell)));
    }));
    if (app.keep) place.querySelector(`[data-id="${CSS.escape(app.keep)}"]`)?.focus();
    app.keep = null;
  }
  return { elements: [panel("", "Devices", top(find), top(count), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Devices" }, h("table", {}, h("caption", { class: "hidden" }, "All devices; a heading sorts by it"), h("thead", {}, h("tr", {}, ...heads)), place)), more)], draw };
}

export function signInForm(app, id) {
  return h("form", { onsubmit: (event) => { event.preventDefault(); app.signIn(event.target.token.value); } }, h("label", { class: "hidden", for: id }, "Token"), h("input", { id, name: "token", type: "password", autocomplete: "off" }), " ", h("button", {}, "Use it"));
}
function alarms(app) {
  const list = h("div"), waiting = h("div"), sign = h("div");
  let drawn = "";
  return {
    elements: [panel("w7", "What is to be seen to", list), panel("w5", "Who asks to join", waiting, sign)],
    draw(field) {
      const key = JSON.stringify([field.alarms, field.pending, app.mayChange, [...app.codes]]);
      if (key === drawn) return;
      drawn = key;
      list.replaceChildren(...(field.alarms.length ? field.alarms.map((one) => h("div", { class: `alarm ${one.kind === "declining" || one.kind === "never_delivering" ? "mild" : ""}` }, h("strong", {}, one.text), hint(one.hint), one.since ? soft(`since ${new Date(one.since * 1000).toLocaleString()}`) : null)) : [h("p", { class: "empty" }, "Nothing. All is as it should be.")]));
      waiting.replaceChildren(...(field.pending.length ? field.pending.map((one) => h("div", { class: "alarm mild" }, h("strong", {}, `${one.name || one.id.slice(0, 12)} (${one.role})`), soft(`${one.address}, ${one.software}`), app.codes.get(one.id) ? h("p", { class: "code" }, app.codes.get(one.id)) : null, app.codes.get(one.id) ? h("button", { class: "main", onclick: (event) => app.accept(one, event.target) }, "It shows this code: let it in") : null)) : [h("p", { class: "empty" }, "Nobody waits.")]));
      sign.replaceChildren(...(app.mayChange ? [] : [soft("Accepting a device needs the token (`fedagent status --page` shows it):"), signInForm(app, "token")]));
    },
  };
}

export const VIEWS = [["overview", "Overview", overview], ["round", "Round", roundView], ["learning", "Learning", learning], ["money", "Money", money], ["fairness", "Fairness", fairness], ["devices", "Devices", devices], ["alarms", "Alarms", alarms]];
