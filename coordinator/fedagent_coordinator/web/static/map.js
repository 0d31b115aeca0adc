// The map: edges, the devices around them, and who reaches whom. Places are made of names alone,
// so that nothing jumps when devices come and go.
import { colour, fit, pen, empty } from "./draw.js";

const SPIRAL = Math.PI * (3 - Math.sqrt(5));
export const RATES = [["c1", "slow"], ["c3", "below the middle"], ["c4", "above the middle"], ["c0", "fast"]];

export class FieldMap {
  constructor(canvas, open) {
    this.canvas = canvas;
    this.homes = new Map();
    this.spots = new Map();
    this.near = null;
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.mark(null));
    canvas.addEventListener("click", (event) => {
      this.point(event);
      if (this.near) open(this.near);
    });
    canvas.addEventListener("keydown", (event) => {
      const ids = [...this.spots.keys()], at = ids.indexOf(this.near);
      if (event.key === "ArrowRight" || event.key === "ArrowDown") this.mark(ids[(at + 1) % ids.length]);
      else if (event.key === "ArrowLeft" || event.key === "ArrowUp") this.mark(ids[(at - 1 + ids.length) % ids.length]);
      else if (event.key === "Enter" && this.near) open(this.near);
      else return;
      event.preventDefault();
    });
  }
  mark(id) {
    if (id === this.near) return;
    this.near = id;
    if (this.field) this.draw(this.field);
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 18 * 18;
    for (const [id, [x, y]] of this.spots) {
      const far = (x - px) ** 2 + (y - py) ** 2;
      if (far < least) [best, least] = [id, far];
    }
    this.mark(best);
  }
  place(field, width, height) {
    const edges = [...field.edges.values()], wide = Math.max(1, Math.round(Math.sqrt((edges.length * width) / height)));
    const columns = Math.min(edges.length, wide) || 1, lines = Math.ceil(edges.length / columns);
    this.edges = edges.map((_, at) => {
      const line = Math.floor(at / columns), inLine = Math.min(columns, edges.length - line * columns);
      return [((at % columns) + 0.5 + (lines > 2 && inLine === columns ? (line % 2 ? 0.12 : -0.12) : 0)) * (width / inLine), (line + 0.5) * (height / lines)];
    });
    this.cell = Math.min(width / columns, height / lines) / 2;
    const members = edges.map(() => []);
    for (const device of field.devices.values()) {
      const links = field.reach.get(device.id)?.edges ?? [];
      if (!this.homes.has(device.id) && links.length) {
        const ordered = [...links].sort((one, two) => two[1] - one[1]);
        this.homes.set(device.id, ordered[0][0]);
      }
      const heard = device.edges?.length ? edges.findIndex((edge) => edge.id === device.edges[0]) : 0;
      const home = this.homes.get(device.id) ?? Math.max(0, heard);
      (members[home] ?? members[0])?.push(device);
    }
    this.spots = new Map();
    members.forEach((list, at) => {
      const [x, y] = this.edges[at], inner = Math.min(34, this.cell * 0.34), outer = this.cell * 0.9;
      const stretch = Math.min(1.5, width / columns / (2 * this.cell)), lift = Math.min(1.35, height / lines / (2 * this.cell));
      list.forEach((device, index) => {
        const far = inner + (outer - inner) * Math.sqrt((index + 0.5) / list.length), turn = index * SPIRAL + at;
        let px = x + far * Math.cos(turn) * stretch, py = y + far * Math.sin(turn) * lift;
        const links = field.reach.get(device.id)?.edges ?? [];
        for (const [edge] of links) {  // towards others that it reaches
          if (edge === at || !this.edges[edge]) continue;
          px += (this.edges[edge][0] - px) * 0.16 / links.length;
          py += (this.edges[edge][1] - py) * 0.16 / links.length;
        }
        this.spots.set(device.id, [Math.min(Math.max(px, 8), width - 8), Math.min(Math.max(py, 8), height - 14)]);
      });
    });
  }
  draw(field) {
    this.field = field;
    const found = pen(this.canvas);
    if (!found) return;
    const { context, width, height } = found;
    if (!field.edges.size) return empty(found, "no edge has been heard yet");
    this.place(field, width, height);
    const rates = [...field.reach.values()].flatMap((one) => one.edges.map((link) => link[1])).filter(Boolean).sort((a, b) => a - b);
    const cuts = [0.25, 0.5, 0.75].map((part) => rates[Math.floor(part * rates.length)] ?? 0);
    const many = field.devices.size > 150, batches = new Map();
    for (const one of field.reach.values()) {
      const spot = this.spots.get(one.id);
      if (!spot) continue;
      for (const [edge, bps, ordered] of one.edges) {
        if (!this.edges[edge]) continue;
        const name = !bps ? "soft" : RATES[cuts.filter((cut) => bps > cut).length][0];
        const kind = `${name} ${ordered ? 1 : 0} ${one.id === this.near ? 1 : 0}`;
        if (!batches.has(kind)) batches.set(kind, []);
        batches.get(kind).push([spot, this.edges[edge]]);
      }
    }
    for (const [kind, links] of [...batches].sort((one, two) => one[0].slice(-3).localeCompare(two[0].slice(-3)))) {
      const [name, ordered, near] = kind.split(" ");
      context.strokeStyle = colour(name);
      context.lineWidth = near === "1" ? 2.5 : ordered === "1" ? 1.8 : 1;
      context.globalAlpha = near === "1" ? 1 : this.near ? 0.07 : ordered === "1" ? 0.9 : many ? 0.1 : 0.28;
      context.beginPath();
      for (const [[x0, y0], [x1, y1]] of links) {
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
    const size = many ? 3 : 6;
    for (const [id, [x, y]] of this.spots) {
      const device = field.devices.get(id), ordered = field.reach.get(id)?.edges.some((link) => link[2]);
      context.fillStyle = colour(device.reason ? "warn" : device.online ? (ordered ? "good" : "ink") : "line");
      context.strokeStyle = colour("soft");
      context.beginPath();
      context.arc(x, y, id === this.near ? size + 3 : size, 0, 7);
      context.fill();
      if (!device.online) context.stroke();
      if (field.devices.size <= 40 || id === this.near) {
        context.fillStyle = colour("soft");
        context.textAlign = "center";
        context.fillText(fit(context, device.name, 90), x, y + size + 13);
      }
    }
    [...field.edges.values()].forEach((edge, at) => {
      const [x, y] = this.edges[at], half = many ? 9 : 13;
      context.fillStyle = colour("card");
      context.strokeStyle = colour(edge.failed ? "bad" : "accent");
      context.lineWidth = 2.5;
      context.beginPath();
      context.roundRect(x - half, y - half, 2 * half, 2 * half, 4);
      context.fill();
      context.stroke();
      context.fillStyle = colour("ink");
      context.textAlign = "center";
      context.font = '600 12px system-ui, "Segoe UI", Roboto, sans-serif';
      context.fillText(String(edge.devices ?? 0), x, y + 4);
      const text = fit(context, edge.name, 130), w = context.measureText(text).width;
      context.globalAlpha = 0.85;
      context.fillStyle = colour("card");
      context.fillRect(x - w / 2 - 4, y - half - 19, w + 8, 16);
      context.globalAlpha = 1;
      context.fillStyle = colour("ink");
      context.fillText(text, x, y - half - 7);
      context.font = '12px system-ui, "Segoe UI", Roboto, sans-serif';
    });
  }
}
