// Numbers and times for people, and elements without markup: names come from devices.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}
export const soft = (...children) => h("p", { class: "soft" }, ...children);
// A text of which what stands between backticks is a command: one tap takes all of it.
export const hint = (text) => soft(...text.split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part)));
// What an open page says if who answers, or the run, is another one; `shown` is what it had.
const named = (run) => (run ? `${run.recipe}, run ${run.run.slice(0, 8)}` : "no run yet");
export function changed(shown, now) {
  if (!shown) return "";
  const [id, before] = [now.coordinator, shown.coordinator];
  if (id && before && id !== before) return `Another coordinator, ${id.slice(0, 8)}, now answers at this address: ${named(now.run)}. Before it was ${before.slice(0, 8)}: ${named(shown.run)}.`;
  if (now.run && shown.run && now.run.run !== shown.run.run) return `Another run is now shown: ${named(now.run)}; before it was ${named(shown.run)}.`;
  return "";
}
export function credits(micro) {
  const value = micro / 1e6;
  return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 100 ? 2 : 0 });
}
export function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size && size < 0.001) return value.toExponential(1);
  return value.toLocaleString("en", { maximumFractionDigits: size < 10 ? digits : size < 1000 ? 1 : 0 });
}
export function seconds(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 90) return `${number(value, 1)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129600) return `${number(value / 3600, 1)} h`;
  return `${Math.round(value / 86400)} days`;
}
export function ago(ms, now = Date.now()) {
  return ms ? `${seconds(Math.max(0, Math.round((now - ms) / 1000)))} ago` : "–";
}
export function rate(bps) {
  if (!bps) return "unknown";
  const [factor, unit] = bps >= 1e9 ? [1e9, "Gbit/s"] : bps >= 1e6 ? [1e6, "Mbit/s"] : bps >= 1e3 ? [1e3, "kbit/s"] : [1, "bit/s"];
  return `${number(bps / factor, 1)} ${unit}`;
}
export const percent = (part, whole) => (whole ? `${Math.round((100 * part) / whole)} %` : "–");
export function legend(...items) {
  return h("div", { class: "legend" }, ...items.map(([kind, text]) => h("span", { class: kind }, text)));
}
// A table; columns are [title, class]. Only its rows change afterwards.
export function table(caption, columns, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption),
      h("thead", {}, h("tr", {}, ...columns.map(([title, kind]) => h("th", { scope: "col", class: kind }, title)))),
      h("tbody", {}, ...rows.map((cells) => h("tr", {}, ...cells.map((cell, at) => h("td", { class: columns[at][1] }, cell ?? "–")))))));
}
