// One device: what it is now, what became of its orders, and why it was chosen or not.
import { ago, credits, h, number, percent, rate, seconds, soft, table } from "./words.js";

const facts = (pairs) => h("dl", {}, ...pairs.filter((pair) => pair[1] !== null && pair[1] !== undefined && pair[1] !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
const WHAT = { price: "price", rate: "rate", compute: "compute", budget: "budget of the edge", run_budget: "money of the run", availability: "being there" };
function changed(one, names) {
  const say = (value) => (["price", "budget", "run_budget"].includes(one.what) ? `${credits(value)} credits` : one.what === "rate" ? rate(value) : number(value));
  return `${WHAT[one.what] ?? one.what}${one.edge ? ` at ${names(one.edge)}` : ""}: ${say(one.from)} → ${say(one.to)}`;
}
function explained(said, names) {
  const parts = [h("p", {}, h("span", { class: `chip ${said.state === "selected" ? "good" : "warn"}` }, said.state.replace("_", " ")), ` in round ${said.round}, policy ${said.policy || "unknown"}`), h("ul", {}, ...said.reasons.map((one) => h("li", {}, one)))];
  if (said.nearest_change.length) parts.push(h("h3", {}, "What would have selected it"), h("ul", {}, ...said.nearest_change.map((one) => h("li", {}, changed(one, names)))));
  if (said.scores.length) parts.push(table("Scores", [["score"], ["this device", "n"], ["the last chosen", "n"]], said.scores.map((one) => [one.name, number(one.device), number(one.last_chosen)])));
  return parts;
}
export async function openCard(app, id) {
  const dialog = document.getElementById("card"), names = (edge) => app.field.edges.get(edge)?.name ?? edge.slice(0, 8), card = app.field.devices.get(id);
  if (!card) return;
  const body = h("div", {}, soft("reading")), why = h("div", { "aria-live": "polite" }, soft("asking"));
  const round = h("input", { type: "number", min: "1", "aria-label": "Round", placeholder: "newest" });
  async function ask(nearest) {
    const answer = await app.get(`/api/devices/${encodeURIComponent(id)}/why?nearest=${nearest ? 1 : 0}${round.value ? `&round=${Number(round.value)}` : ""}`);
    why.replaceChildren(...(answer.error ? [h("p", { class: "warn" }, answer.error), soft(answer.hint)] : explained(answer, names)));
    if (nearest || answer.error || answer.state === "selected") return;
    why.append(h("button", { onclick: (event) => { event.target.disabled = true; event.target.textContent = "Deciding the round again"; ask(true); } }, "What would have selected it?"));
  }
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", { id: "card-name" }, card.name), h("button", { onclick: () => dialog.close() }, "Close")), body,
    h("div", { class: "head" }, h("h3", {}, "Why"), h("form", { onsubmit: (event) => { event.preventDefault(); ask(); } }, h("label", {}, "round ", round), " ", h("button", {}, "Ask"))), why);
  if (!dialog.open) dialog.showModal();
  const found = await app.get(`/api/devices/${encodeURIComponent(id)}`);
  if (found.error) body.replaceChildren(h("p", { class: "warn" }, found.error));
  else {
    const one = found.card;
    body.replaceChildren(
      facts([["now", one.reason || (one.online ? "connected" : `last seen ${ago(one.seen_ms)}`)], ["edges", (one.edges ?? []).map(names).join(", ") || "none"], ["software", one.software], ["address", one.address], ["id", one.id], ["price", one.price_micro ? `${credits(one.price_micro)} credits` : ""], ["paid", `${credits(one.paid_micro ?? 0)} credits`], ["in time", `${one.in_time ?? 0} of ${one.ordered ?? 0} (${percent(one.in_time ?? 0, one.ordered)})`], ["trust", one.trust === undefined ? "" : `${Math.round(100 * one.trust)} %`], ["took over claimed", one.claim_gap === undefined ? "" : `${number(one.claim_gap, 2)} ×`], ["opinion", one.opinion === undefined ? "" : number(one.opinion)]]),
      ...found.contexts.map((context) => h("details", {}, h("summary", {}, `Context at ${names(context.edge)}, round ${found.round}: ${context.bound.replace("_", " ")}`), facts(Object.entries(context.features).map(([name, value]) => [name, name.endsWith("_bps") ? rate(value) : number(value)])))),
      h("h3", {}, "Newest orders"), found.orders.length ? table("Newest first", [["round", "n"], ["edge"], ["took", "n"], ["price", "n"], ["end"], ["reason"]], found.orders.slice(0, 10).map((order) => [order.round, names(order.edge_id), seconds(order.tau_s), credits(order.price_micro), h("span", { class: order.in_time ? "good" : "bad" }, order.in_time ? "in time" : order.status), order.reason ?? ""])) : soft("none yet"));
  }
  await ask();
}
