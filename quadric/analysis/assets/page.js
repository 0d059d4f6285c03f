"use strict";
// Everything that comes from a file is put in as text (textContent, setAttribute), never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function draw(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const known = (value) => value !== null && value !== undefined;
const short = (value) => {
  if (!known(value)) return "–";
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + letter;
  return String(Number(value.toPrecision(3)));
};
const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en") : "–");
const digits = (value, count = 4) => (known(value) ? String(Number(value.toPrecision(count))) : "–");

// --- colors: light and dark, by neuron -------------------------------------------------------
function ink(node, neuron) {
  const style = data.styles[neuron];
  node.classList.add("ink");
  node.style.setProperty("--light", style.light);
  node.style.setProperty("--dark", style.dark);
  return node;
}
const polygon = (sides, turn, size = 1) =>
  "M" + Array.from({ length: sides }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / sides;
    return `${(5 * size * Math.sin(angle)).toFixed(2)},${(-5 * size * Math.cos(angle)).toFixed(2)}`;
  }).join("L") + "Z";
const cross = "M-1.6,-5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z";
const star = "M" + Array.from({ length: 10 }, (_, i) => {
  const length = i % 2 ? 2.4 : 6, angle = (Math.PI * i) / 5;
  return `${(length * Math.sin(angle)).toFixed(2)},${(-length * Math.cos(angle)).toFixed(2)}`;
}).join("L") + "Z";
const circle = "M-4.5,0a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0Z";
const SHAPES = {
  o: circle, s: polygon(4, Math.PI / 4, 1.2), D: polygon(4, 0, 1.15), d: polygon(4, 0, 0.9),
  "^": polygon(3, 0, 1.2), v: polygon(3, Math.PI, 1.2), "<": polygon(3, -Math.PI / 2, 1.2),
  ">": polygon(3, Math.PI / 2, 1.2), p: polygon(5, 0, 1.1), h: polygon(6, 0, 1.1),
  H: polygon(6, Math.PI / 6, 1.1), 8: polygon(8, Math.PI / 8, 1.05), "*": star, P: cross, X: cross,
};
const BAD = "M-5,-5L5,5M-5,5L5,-5";

// --- axes ------------------------------------------------------------------------------------
function scaleOf(values, from, to, wantLog) {
  let low = Math.min(...values), high = Math.max(...values);
  const log = wantLog && low > 0 && high > 4 * low;
  if (low === high) { const pad = Math.abs(low) * 0.05 || 1; low -= pad; high += pad; }
  const f = log ? Math.log10 : (x) => x;
  const pad = 0.04 * (f(high) - f(low));
  const a = f(low) - pad, b = f(high) + pad;
  const at = (x) => from + ((f(x) - a) / (b - a)) * (to - from);
  let ticks = [];
  if (log) {
    const span = b - a, steps = span < 1.2 ? [1, 2, 5] : span < 2.2 ? [1, 3] : [1];
    for (let power = Math.floor(a); power <= Math.ceil(b); power++)
      for (const step of steps) ticks.push(step * 10 ** power);
    ticks = ticks.filter((x) => f(x) >= a && f(x) <= b);
    if (ticks.length > 7) ticks = ticks.filter((_, i) => i % Math.ceil(ticks.length / 7) === 0);
  } else {
    const raw = (b - a) / 5, unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * ([1, 2, 5, 10].find((m) => m * unit >= raw) || 10);
    for (let x = Math.ceil(a / step) * step; x <= b; x += step) ticks.push(Number(x.toPrecision(12)));
  }
  return { at, ticks };
}
const BOX = { width: 420, height: 260, left: 58, right: 12, top: 10, bottom: 42 };
function panel(xs, ys, xLabel, yLabel, options = {}) {
  const { width, height, left, right, top, bottom } = BOX;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group" });
  const x = scaleOf(xs, left, width - right, options.logX), y = scaleOf(ys, height - bottom, top, options.logY);
  for (const tick of options.xTicks || x.ticks) {
    const at = x.at(tick);
    svg.append(draw("line", { class: "grid", x1: at, x2: at, y1: top, y2: height - bottom }));
    svg.append(draw("text", { x: at, y: height - bottom + 15, "text-anchor": "middle" }, short(tick)));
  }
  for (const tick of y.ticks) {
    const at = y.at(tick);
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    svg.append(draw("text", { x: left - 6, y: at + 4, "text-anchor": "end" }, short(tick)));
  }
  svg.append(draw("path", { class: "axis", fill: "none", d: `M${left},${top}V${height - bottom}H${width - right}` }));
  svg.append(draw("text", { class: "label", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, xLabel));
  svg.append(draw("text", { class: "label", transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
  return { svg, x: x.at, y: y.at };
}
function path(points, x, y) {
  let d = "", open = false;
  for (const [a, b] of points) {
    if (!known(b)) { open = false; continue; }
    d += `${open ? "L" : "M"}${x(a).toFixed(1)},${y(b).toFixed(1)}`;
    open = true;
  }
  return d;
}

// --- state and filters -----------------------------------------------------------------------
const state = { axis: "params", sort: "score", down: data.runs.some((run) => run.higher) };
const filters = { dataset: byId("by-dataset"), model: byId("by-model"), neuron: byId("by-neuron") };
for (const [key, select] of Object.entries(filters)) {
  const values = [...new Set(data.runs.map((run) => run[key]))].sort();
  select.append(make("option", { value: "all" }, `all (${values.length})`));
  values.forEach((value, i) => select.append(make("option", { value: String(i) }, value)));
  select.values = values;
  select.addEventListener("change", show);
}
byId("by-name").addEventListener("input", show);
byId("filters").addEventListener("submit", (event) => event.preventDefault());
for (const radio of document.querySelectorAll("#axis input"))
  radio.addEventListener("change", () => { state.axis = radio.value; plots(); });
function chosen() {
  const words = byId("by-name").value.toLowerCase();
  return data.runs.filter((run) =>
    run.name.toLowerCase().includes(words) &&
    Object.entries(filters).every(([key, select]) => select.value === "all" || run[key] === select.values[Number(select.value)]));
}
function show() { plots(); table(); }

// --- score against cost ----------------------------------------------------------------------
function details(run) {
  const score = run.diverged ? "diverged" : !known(run.score) ? "no score" : `${run.scoreLabel}: ${digits(run.score)}`;
  return [run.name, `${run.model}, ${run.label}, seed ${run.seed ?? "–"}`, score,
    `${whole(run.params)} parameters, ${whole(run.macs)} MACs`].join("\n");
}
function plots() {
  const runs = chosen(), names = state.axis === "params" ? "parameters" : "MACs per input";
  const home = byId("plots");
  home.replaceChildren();
  const used = [...new Set(runs.map((run) => run.neuron))];
  byId("legend").replaceChildren(...used.map((neuron) => {
    const mark = draw("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true" }, draw("g", { class: "point" }, draw("path", { d: SHAPES[data.styles[neuron].marker] })));
    return make("li", {}, ink(mark, neuron), neuron);
  }));
  for (const group of [...new Set(runs.map((run) => run.group))]) {
    const alike = runs.filter((run) => run.group === group && known(run[state.axis]) && (run.diverged || known(run.score)));
    const figure = make("figure", {}, make("figcaption", {}, group));
    home.append(figure);
    const fine = alike.filter((run) => !run.diverged);
    if (!alike.length) {
      figure.append(make("p", { class: "hint" }, `These results have no ${names}, or no score.`));
      continue;
    }
    const scores = fine.length ? fine.map((run) => run.score) : [0, 1];
    const chart = panel(alike.map((run) => run[state.axis]), scores, names, alike[0].scoreLabel, { logX: true, logY: !alike[0].higher });
    chart.svg.setAttribute("aria-label", `${alike[0].scoreLabel} against ${names} on ${group}`);
    const shown = new Set(alike.map((run) => run.index));
    const lines = data.groups.filter((group) => group.runs.some((i) => shown.has(i)) && known(group.mean) && known(group[state.axis]));
    for (const line of [...new Set(lines.map((arm) => arm.line))]) {
      const groups = lines.filter((group) => group.line === line).sort((a, b) => a[state.axis] - b[state.axis]);
      const points = groups.map((group) => [group[state.axis], group.mean]);
      chart.svg.append(ink(draw("path", { class: "line", d: path(points, chart.x, chart.y) }), groups[0].neuron));
    }
    const marks = alike.map((run) => {
      const y = run.diverged ? BOX.height - BOX.bottom - 8 : chart.y(run.score);
      const mark = draw("g", { class: run.diverged ? "point lost" : "point", tabindex: -1, role: "button",
        transform: `translate(${chart.x(run[state.axis]).toFixed(1)} ${y.toFixed(1)})`, "aria-label": details(run), "data-run": run.index },
        draw("path", { d: run.diverged ? BAD : SHAPES[data.styles[run.neuron].marker] }));
      mark.addEventListener("click", () => open(run));
      mark.addEventListener("pointerenter", () => tip(mark, run));
      mark.addEventListener("focus", () => tip(mark, run));
      for (const end of ["pointerleave", "blur"]) mark.addEventListener(end, () => { byId("tip").hidden = true; });
      chart.svg.append(ink(mark, run.neuron));
      return mark;
    });
    // One tab stop for each plot; the arrow keys go from point to point.
    marks.sort((a, b) => a.getBoundingClientRect().x - b.getBoundingClientRect().x);
    if (marks.length) marks[0].setAttribute("tabindex", "0");
    marks.forEach((mark, i) => mark.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        const next = marks[(i + step + marks.length) % marks.length];
        mark.setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        next.focus();
      } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        open(data.runs[Number(mark.dataset.run)]);
      }
    }));
    figure.append(chart.svg);
  }
}
function tip(mark, run) {
  const box = mark.getBoundingClientRect(), note = byId("tip");
  note.textContent = details(run);
  note.hidden = false;
  const own = note.getBoundingClientRect();
  note.style.left = Math.max(4, Math.min(box.right + 10, innerWidth - own.width - 4)) + "px";
  note.style.top = Math.max(4, Math.min(box.top - 8, innerHeight - own.height - 4)) + "px";
}

// --- the table -------------------------------------------------------------------------------
const COLUMNS = [
  ["name", "run"], ["label", "neuron"], ["score", "score", digits], ["scoreLabel", "measured in"],
  ["params", "parameters", whole], ["macs", "MACs", whole], ["dataset", "data set"], ["model", "network"], ["seed", "seed", whole],
  ["loss", "test loss", digits], ["share", "quadratic share", (v) => digits(v, 3)], ["seconds", "seconds", (v) => digits(v, 3)],
];
function table() {
  const runs = chosen(), head = make("tr");
  for (const [key, title, how] of COLUMNS) {
    const sorted = state.sort === key;
    const button = make("button", { type: "button", "data-key": key }, title + (sorted ? (state.down ? " ↓" : " ↑") : ""));
    button.addEventListener("click", () => {
      state.down = sorted ? !state.down : Boolean(how);
      state.sort = key;
      table();
      document.querySelector(`thead button[data-key="${key}"]`).focus();
    });
    head.append(make("th", { scope: "col", class: how ? "number" : "", "aria-sort": sorted ? (state.down ? "descending" : "ascending") : "none" }, button));
  }
  const missing = (run) => !known(run[state.sort]);
  runs.sort((a, b) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b); // what is missing comes last
    const x = a[state.sort], y = b[state.sort];
    return (x < y ? -1 : x > y ? 1 : 0) * (state.down ? -1 : 1);
  });
  byId("runs").tHead.replaceChildren(head);
  byId("runs").tBodies[0].replaceChildren(...runs.map((run) => {
    const row = make("tr");
    for (const [key, , how] of COLUMNS) {
      const cell = make("td", { class: how ? "number" : "" });
      if (key === "name") {
        const button = make("button", { type: "button" }, run.name);
        button.addEventListener("click", () => open(run));
        cell.append(button);
      } else if (key === "score" && run.diverged) {
        cell.append(make("span", { class: "bad" }, "× diverged"));
      } else if (key === "score" && !known(run.score)) {
        cell.append("none");
      } else cell.append(how ? how(run[key]) : run[key]);
      row.append(cell);
    }
    return row;
  }));
  byId("count").textContent = `${runs.length} of ${data.runs.length} runs`;
}

// --- one run ---------------------------------------------------------------------------------
function open(run) {
  byId("tip").hidden = true;
  byId("run-name").textContent = run.name;
  byId("run-body").replaceChildren(...[facts(run), curves(run), ...measured(run), texts(run)].filter(Boolean));
  byId("run").showModal();
  byId("run").scrollTop = 0;
}
byId("close").addEventListener("click", () => byId("run").close());
byId("run").addEventListener("click", (event) => { if (event.target === byId("run")) byId("run").close(); });
function facts(run) {
  const rows = [["data set", run.dataset], ["network", run.model], ["neuron", run.label], ["seed", known(run.seed) ? run.seed : "–"],
    [run.scoreLabel, known(run.score) ? digits(run.score, 5) : "–"], ["test loss", digits(run.loss)], ["parameters", whole(run.params)],
    ["MACs per input", whole(run.macs)], ["quadratic share", digits(run.share, 3)], ["seconds", digits(run.seconds, 3)], ["status", run.status], ["versions", run.versions || "–"]];
  const list = make("dl", { class: "facts" });
  for (const [name, value] of rows) list.append(make("div", {}, make("dt", {}, name), make("dd", {}, String(value))));
  return run.message ? make("div", {}, make("p", { class: "bad" }, run.message), list) : list;
}
function curves(run) {
  const box = make("div", { class: "pair", id: "curves" });
  for (const [what, label] of [["score", run.curveLabel], ["loss", "loss"]]) {
    const train = run.curves[`train_${what}`], test = run.curves[`test_${what}`];
    const all = [...train, ...test].filter((point) => known(point[1]));
    if (!all.length) continue;
    const chart = panel(all.map((p) => p[0]), all.map((p) => p[1]), "epoch", label, { logY: what === "loss" || run.curveFalls, xTicks: all.every((p) => p[0] === all[0][0]) ? [all[0][0]] : null });
    chart.svg.setAttribute("role", "img");
    chart.svg.setAttribute("aria-label", `${label} by epoch, training and test`);
    for (const [points, kind] of [[train, "line dotted"], [test, "line"]]) {
      chart.svg.append(ink(draw("path", { class: kind, d: path(points, chart.x, chart.y) }), run.neuron));
      const finite = points.filter((p) => known(p[1]));
      if (finite.length === 1) chart.svg.append(ink(draw("g", { class: points === train ? "point hollow" : "point", transform: `translate(${chart.x(finite[0][0])} ${chart.y(finite[0][1])})` }, draw("path", { d: circle })), run.neuron));
    }
    if (run.diverged) {
      const [a, b] = all[all.length - 1];
      chart.svg.append(ink(draw("g", { class: "point lost", transform: `translate(${chart.x(a)} ${chart.y(b)})` }, draw("path", { d: BAD })), run.neuron));
    }
    box.append(make("figure", {}, make("figcaption", {}, `${label}: test solid, training dotted`), chart.svg));
  }
  return box.childNodes.length ? make("section", {}, make("h3", {}, "Curves"), box) : null;
}
function measured(run) {
  const found = run.analysis;
  if (!found) return [];
  const parts = [];
  if (found.distributions.length) {
    const box = make("div", { class: "pair", id: "distributions" });
    for (const each of found.distributions) box.append(make("figure", {}, make("figcaption", {}, each.title), boxes(each, run.neuron)));
    const names = make("p", { class: "hint" }, "Layers by depth: " + found.layers.map((name, i) => `${i + 1} ${name}`).join(", ") + ". Boxes hold the middle half, lines 90 %.");
    parts.push(make("section", {}, make("h3", {}, "Parameters and true eigenvalues by depth"), box, names));
  }
  if (found.sentence) parts.push(make("section", {}, make("h3", {}, "Low frequencies"), make("p", {}, found.sentence)));
  if (found.couplings) parts.push(coupled(found.couplings));
  if (found.formula) parts.push(make("section", {}, make("h3", {}, "Formula"), make("pre", {}, found.formula)));
  if (found.responses) parts.push(maps(found.responses));
  return parts;
}
function boxes(each, neuron) {
  const values = each.boxes.flatMap((box) => (box ? [box[1], box[5]] : []));
  const places = each.boxes.map((_, i) => i + 1);
  const step = Math.ceil(places.length / 12);
  const chart = panel([0.5, places.length + 0.5], values.length ? values : [0, 1], "layer", each.title, { xTicks: places.filter((_, i) => i % step === 0) });
  chart.svg.setAttribute("role", "img");
  chart.svg.setAttribute("aria-label", `${each.title} by layer`);
  const half = Math.min(9, 120 / places.length);
  each.boxes.forEach((box, i) => {
    if (!box) return;
    const x = chart.x(i + 1), [low, first, middle, third, high] = box.slice(1, 6).map(chart.y);
    chart.svg.append(ink(draw("g", {}, draw("line", { class: "bars", x1: x, x2: x, y1: low, y2: high }),
      draw("rect", { x: x - half, width: 2 * half, y: third, height: Math.max(first - third, 0.5), fill: "currentColor", "fill-opacity": 0.4 }),
      draw("line", { class: "bars", x1: x - half, x2: x + half, y1: middle, y2: middle })), neuron));
  });
  return chart.svg;
}
function coupled(found) {
  const top = Math.max(...found.pairs.map((pair) => pair.size)) || 1;
  const heat = make("table", { class: "heat" });
  heat.append(make("tr", {}, make("th"), ...found.names.map((name) => make("th", { scope: "col" }, name))));
  found.matrix.forEach((row, i) => {
    const line = make("tr", {}, make("th", { scope: "row" }, found.names[i]));
    row.forEach((value) => {
      const part = Math.min(value / top, 1), cell = make("td", { class: "number" }, digits(value, 2));
      cell.style.background = `rgb(0 114 178 / ${(0.75 * part).toFixed(2)})`;
      if (part > 0.6) cell.style.color = "#fff";
      line.append(cell);
    });
    heat.append(line);
  });
  const list = make("ol");
  for (const pair of found.pairs) list.append(make("li", {}, `${pair.columns}: ${pair.text}`));
  return make("section", { id: "couplings" }, make("h3", {}, "What it couples"), make("p", { class: "hint" }, found.caption), make("div", { class: "scroll" }, heat), list);
}
const NEGATIVE = [[247, 247, 247], [128, 115, 172], [45, 0, 75]], POSITIVE = [[247, 247, 247], [224, 130, 20], [127, 59, 8]];
function color(level) {
  const t = (level - 128) / 127, side = t < 0 ? NEGATIVE : POSITIVE, at = Math.min(Math.abs(t), 1) * 2, i = Math.min(Math.floor(at), 1);
  return side[i].map((from, c) => from + (side[i + 1][c] - from) * (at - i));
}
function canvas(picture, signed) {
  const node = make("canvas", { width: picture.width, height: picture.height, role: "img" });
  const bytes = Uint8Array.from(atob(picture.bytes), (letter) => letter.charCodeAt(0));
  const image = new ImageData(picture.width, picture.height), count = picture.channels;
  for (let i = 0; i < picture.width * picture.height; i++) {
    const rgb = signed ? color(bytes[i]) : [0, 1, 2].map((c) => bytes[i * count + (count === 3 ? c : 0)]);
    image.data.set([...rgb, 255], 4 * i);
  }
  node.getContext("2d").putImageData(image, 0, 0);
  return node;
}
function maps(found) {
  const box = make("div", { class: "maps", id: "responses" });
  found.pictures.forEach((picture, i) => {
    const row = make("div", {}, make("figure", {}, canvas(picture, false), make("figcaption", {}, "input")));
    for (const layer of found.layers) for (const part of ["linear", "quadratic"]) {
      const map = canvas(layer[part][i], true);
      map.setAttribute("aria-label", `${part} response of ${layer.name}`);
      row.append(make("figure", {}, map, make("figcaption", {}, `${layer.name}, ${part}`)));
    }
    box.append(row);
  });
  return make("section", {}, make("h3", {}, "Responses"), make("p", { class: "hint" }, "Orange is positive, purple negative, white zero; each map has its own scale."), box);
}
function texts(run) {
  const section = make("section");
  for (const [title, text] of [["Command", run.command], ["Recipe", run.recipeText]]) {
    if (!text) continue;
    const button = make("button", { type: "button", class: "copy" }, `Copy ${title.toLowerCase()}`);
    button.addEventListener("click", () => copy(text, button));
    section.append(make("div", { class: "bar" }, make("h3", {}, title), button), make("pre", { tabindex: "0" }, text));
  }
  return section;
}
async function copy(text, button) {
  const before = button.textContent;
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch { // a browser that allows it only to servers
    const area = make("textarea");
    area.value = text;
    byId("run").append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Select the text and copy it";
  setTimeout(() => { button.textContent = before; }, 2000);
}

// --- start -----------------------------------------------------------------------------------
const theme = byId("theme");
function dress(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
}
const dark = matchMedia("(prefers-color-scheme: dark)");
dress(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => dress(dark.matches ? "dark" : "light"));
theme.addEventListener("click", () => dress(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
data.runs.forEach((run, i) => { run.index = i; });
byId("summary").textContent = data.summary;
if (data.notes.length) {
  byId("notes").hidden = false;
  byId("notes").querySelector("summary").textContent = `${data.notes.length} ${data.notes.length === 1 ? "note" : "notes"} on what could not be read`;
  for (const note of data.notes) byId("notes").querySelector("ul").append(make("li", {}, note));
}
show();
document.documentElement.dataset.ready = String(performance.now());
