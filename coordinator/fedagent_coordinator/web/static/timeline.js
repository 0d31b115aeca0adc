// A round as bars: download, training, upload of each device against the deadline.
import { colour, empty, fit, pen, still } from "./draw.js";
import { seconds } from "./words.js";

const PARTS = [["download_s", "c0"], ["train_s", "c2"], ["upload_s", "c4"]];
const MOST = 150;
// Beyond so many times the longest bar a deadline is told at the side: bars must stay readable.
const FAR = 2.5;

// Seconds that the axis has, and whether the deadline is on it. Of an open round it grows by steps.
export function span(round, now) {
  const most = round.max_wait_s ?? Infinity, open = round.state === "open", deadline = round.deadline_s ?? 0;
  const longest = Math.max(open ? Math.min(now, most) : 0, ...round.bars.map((bar) => Math.min(bar.total_s ?? 0, most)));
  if (!longest || deadline <= longest * FAR) return [(Math.max(deadline, longest) || 1) * 1.08, deadline > 0];
  const step = 2 ** Math.ceil(Math.log2(longest));
  return open ? [Math.min(step, deadline) * 1.08, step >= deadline] : [longest * 1.08, false];
}

export function timeline(canvas, round, names, skew) {
  const rows = round ? [...round.bars].sort((a, b) => (b.total_s ?? 0) - (a.total_s ?? 0)) : [];
  const shown = rows.slice(0, MOST), step = shown.length > 40 ? 7 : shown.length > 20 ? 14 : 22;
  canvas.style.height = `${Math.max(120, shown.length * step + 46)}px`;
  const found = pen(canvas);
  if (!found) return;
  const { context, width, height } = found;
  if (!shown.length) return empty(found, round ? "nobody was ordered" : "no round is open");
  const left = step >= 12 ? Math.min(130, width * 0.28) : 10, right = width - 64, top = 22, bottom = height - 22;
  const open = round.state === "open", now = open ? (Date.now() + skew - round.opened_ms) / 1000 : 0;
  const [high, reached] = span(round, now);
  const x = (value) => left + (Math.min(value, high) / high) * (right - left);
  shown.forEach((bar, at) => {
    const y = top + at * step, tall = Math.max(3, step - (step > 10 ? 7 : 2));
    if (step >= 12) {
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(fit(context, names.get(bar.device)?.name ?? bar.device.slice(0, 8), left - 12), left - 8, y + tall / 2);
    }
    let from = 0;
    const parts = PARTS.map(([key, name]) => [bar[key] ?? 0, name]), known = parts.reduce((sum, part) => sum + part[0], 0);
    const rest = Math.max(0, (bar.total_s ?? 0) - known);
    for (const [value, name] of [[rest, "line"], ...parts]) {
      context.fillStyle = colour(known || name === "line" ? name : "line");
      context.fillRect(x(from), y, Math.max(0, x(from + value) - x(from)), tall);
      from += value;
    }
    if (step >= 12 && !open) {
      context.fillStyle = colour(bar.in_time ? "good" : "bad");
      context.textAlign = "left";
      context.fillText(bar.in_time ? "in time" : bar.status, Math.max(x(bar.total_s ?? 0), x(from)) + 6, y + tall / 2);
    }
  });
  context.textBaseline = "alphabetic";
  const mark = (at, text, name, dash, line = 12) => {
    context.strokeStyle = context.fillStyle = colour(name);
    context.setLineDash(dash);
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x(at), 16);
    context.lineTo(x(at), bottom + 2);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = x(at) > width * 0.7 ? "right" : "left";
    context.fillText(text, x(at) + (context.textAlign === "right" ? -4 : 4), line);
  };
  if (reached) mark(round.deadline_s, `deadline ${round.deadline_s} s`, "bad", []);
  else if (round.deadline_s) {
    context.fillStyle = colour("bad");
    context.textAlign = "right";
    context.fillText(`deadline ${round.deadline_s} s →`, width - 4, 12);
  }
  if (open && now < high) mark(now, "now", "accent", [3, 3], height - 6);
  context.fillStyle = colour("soft");
  context.textAlign = "left";
  context.fillText("0 s", left, height - 6);
  context.textAlign = "right";
  context.fillText(seconds(high), right, height - 6);
  if (rows.length > MOST) context.fillText(`${rows.length - MOST} faster devices are not drawn`, right - 60, height - 6);
  if (open && now < high && !still()) requestAnimationFrame(() => canvas.isConnected && canvas.dataset.round === String(round.round) && timeline(canvas, round, names, skew));
}
