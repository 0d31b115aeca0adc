// Charts on canvas. Every chart is a function of its data, drawn anew when they change.
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
const FONT = '12px system-ui, "Segoe UI", Roboto, sans-serif';

// Return a context in CSS pixels, cleared, or nothing where the canvas is not shown.
export function pen(canvas) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = Math.min(devicePixelRatio || 1, 2);
  if (!width || !height) return null;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = FONT;
  context.lineJoin = "round";
  return { context, width, height };
}
function ticks(low, high, most) {
  const rough = (high - low) / most || 1, unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * ([1, 2, 5, 10].find((one) => one * unit >= rough) ?? 10), found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}
const short = (value) => (Math.abs(value) >= 1e6 ? `${+(value / 1e6).toFixed(1)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toFixed(1)}k` : String(+value.toFixed(3)));

// Axes for x in [x0, x1] and y in [y0, y1]; returns what places a point.
function axes({ context, width, height }, x0, x1, y0, y1, label) {
  const left = 46, right = 10, top = 10, bottom = 26;
  const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (value) => height - bottom - ((value - y0) / (y1 - y0 || 1)) * (height - top - bottom);
  context.strokeStyle = colour("line");
  context.fillStyle = colour("soft");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const value of ticks(y0, y1, Math.max(2, height / 60))) {
    context.beginPath();
    context.moveTo(left, Math.round(y(value)) + 0.5);
    context.lineTo(width - right, Math.round(y(value)) + 0.5);
    context.stroke();
    context.fillText(short(value), left - 6, y(value));
  }
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  for (const value of ticks(x0, x1, Math.max(2, width / 110))) {
    if (Number.isInteger(value) || x1 - x0 < 8) context.fillText(short(value), Math.min(Math.max(x(value), left), width - 18), height - 8);
  }
  if (label) {
    context.textAlign = "right";
    context.fillText(label, width - right, height - bottom - 6);
  }
  return { x, y, left, right: width - right, top, bottom: height - bottom };
}

// lines: [{points: [[x, y]], colour, dash, fill, width, step}]; options: {low, high, x0, x1, marks, label}
export function lines(canvas, series, options = {}) {
  const found = pen(canvas);
  if (!found) return;
  const all = series.flatMap((one) => one.points);
  if (!all.length) return empty(found, options.none ?? "nothing measured yet");
  const xs = all.map((one) => one[0]), ys = all.map((one) => one[1]);
  let low = options.low ?? Math.min(...ys), high = options.high ?? Math.max(...ys);
  for (const mark of options.marks ?? []) high = Math.max(high, mark.at);
  if (high === low) high = low + (Math.abs(low) || 1);
  const place = axes(found, options.x0 ?? Math.min(...xs), Math.max(options.x1 ?? -Infinity, ...xs), low, high + (options.high === undefined ? (high - low) * 0.05 : 0), options.label ?? "");
  const { context } = found;
  for (const mark of options.marks ?? []) {
    context.strokeStyle = context.fillStyle = colour(mark.colour ?? "soft");
    context.setLineDash([4, 4]);
    context.beginPath();
    context.moveTo(place.left, place.y(mark.at));
    context.lineTo(place.right, place.y(mark.at));
    context.stroke();
    context.textAlign = "right";
    context.fillText(mark.text, place.right - 4, place.y(mark.at) + 14);
  }
  for (const one of series) {
    if (!one.points.length) continue;
    context.strokeStyle = context.fillStyle = colour(one.colour);
    context.lineWidth = one.width ?? 2;
    context.setLineDash(one.dash ?? []);
    context.beginPath();
    one.points.forEach(([px, py], at) => {
      if (at && one.step) context.lineTo(place.x(px), place.y(one.points[at - 1][1]));
      context[at ? "lineTo" : "moveTo"](place.x(px), place.y(py));
    });
    context.stroke();
    if (one.fill) {
      context.lineTo(place.x(one.points.at(-1)[0]), place.bottom);
      context.lineTo(place.x(one.points[0][0]), place.bottom);
      context.globalAlpha = 0.12;
      context.fill();
      context.globalAlpha = 1;
    }
    if (one.points.length === 1) {
      context.beginPath();
      context.arc(place.x(one.points[0][0]), place.y(one.points[0][1]), 3, 0, 7);
      context.fill();
    }
  }
  context.setLineDash([]);
}
export function empty({ context, width, height }, text) {
  context.fillStyle = colour("soft");
  context.textAlign = "center";
  context.fillText(text, width / 2, height / 2);
}
// bars: [{label, parts: [[value, colour]]}]; parts lie over each other, largest first.
export function bars(canvas, rows, options = {}) {
  const found = pen(canvas);
  if (!found) return;
  if (!rows.length) return empty(found, options.none ?? "nothing yet");
  const high = Math.max(1e-9, ...rows.flatMap((row) => row.parts.map((part) => part[0])), options.high ?? 0);
  const from = options.from ?? 0, place = axes(found, from, from + rows.length, 0, high * 1.05, "");
  const { context } = found, step = (place.right - place.left) / rows.length, gap = step > 6 ? 2 : 0;
  rows.forEach((row, at) => {
    for (const [value, name] of row.parts) {
      context.fillStyle = colour(name);
      const px = place.left + at * step + gap / 2, py = place.y(value);
      context.fillRect(px, py, Math.max(1, step - gap), place.bottom - py);
    }
  });
  if (step > 44) {
    context.fillStyle = colour("soft");
    context.clearRect(place.left - 4, place.bottom + 1, place.right, 30);
    context.textAlign = "center";
    rows.forEach((row, at) => context.fillText(fit(context, row.label, step - 6), place.left + (at + 0.5) * step, place.bottom + 18));
  }
}
export function fit(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let end = text.length;
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}
