// The roofline of a chip with a model's prefill and decode on it, moved by batch, context and precision.
import { h, s, slider, toggle, select, stats, announcer, significant, si } from "./kit.js";

// (query, key) pairs of a causal prompt; with a window, as in lumen.cost.causal_pairs.
export function pairs(prompt, window) {
  if (!window || prompt <= window) return (prompt * (prompt + 1)) / 2;
  return (window * (window + 1)) / 2 + (prompt - window) * window;
}

// One forward as lumen.cost counts it, activations left out. `phase` is "decode" (one token a sequence, `context` keys
// each) or "prefill" (`context` tokens a sequence). `weight` and `kv` are bytes a value; FLOP, B, s.
export function predict(model, chip, { phase, batch, context, weight, kv, math }) {
  const decode = phase === "decode";
  const rows = batch * (decode ? 1 : context);
  const kept = model.window ? Math.min(context, model.window) : context;
  const seen = batch * (decode ? kept : pairs(context, model.window));
  const flops = rows * model.linear_flops + batch * model.head_flops + seen * model.pair_flops;
  const moved = (model.step_values + rows * model.row_values) * weight
              + (decode ? batch * kept + batch : rows) * model.kv_values * kv;
  const peak = Math.max(...math.map((name) => chip.flops[name] || 0));
  const compute = flops / peak, memory = moved / chip.bandwidth, seconds = Math.max(compute, memory);
  return { flops, bytes: moved, intensity: flops / moved, compute, memory, seconds, ridge: peak / chip.bandwidth, peak,
           achieved: flops / seconds, tokens_per_s: rows / seconds, bound: memory > compute ? "memory" : "compute" };
}

// Bytes that weights and caches take in the chip's memory.
export function held(model, { batch, context, weight, kv }) {
  return model.parameters * weight + batch * (model.window ? Math.min(context, model.window) : context) * model.kv_values * kv;
}

// What was measured on this chip, with this model, format and context: [[phase, batch, its point under the roof], ...]
export function under(measured, at, { chip, model, format, context }) {
  return measured.filter((m) => m.chip === chip && m.model === model && m.format === format && m.context === context)
    .map((m) => { const p = at(m.phase, m.batch); return [m.phase, m.batch, { ...p, achieved: p.flops / m.seconds, took: m.seconds }]; });
}

function picture(chip, decode, prefill, trail, taken, phase, width) {
  const small = width < 480, height = small ? 300 : 350, box = { l: 46, r: 12, t: 22, b: 44 };
  const { ridge, peak } = decode, first = trail[0][1], last = trail[trail.length - 1][1];
  // from half of the smallest step to well beyond the ridge: the sliders move points, not axes
  const X = [Math.log10(Math.min(first.intensity, ridge / 8) * 0.5), Math.log10(Math.max(8 * ridge, 1.3 * last.intensity, 500))];
  const lowest = Math.min(10 ** X[0] * chip.bandwidth, ...taken.map(([, , p]) => 0.6 * p.achieved));
  const Y = [Math.log10(lowest), Math.log10(2.2 * peak)];
  const place = (v, [low, high]) => Math.min(1, Math.max(0, (Math.log10(v) - low) / (high - low)));
  const x = (v) => box.l + place(v, X) * (width - box.l - box.r);
  const y = (v) => box.t + (1 - place(v, Y)) * (height - box.t - box.b);
  const parts = [], line = (d, cls) => parts.push(s("path", { d, class: cls }));
  const text = (px, py, words, cls, anchor = "middle", turn) => parts.push(s("text",
    { x: px, y: py, class: cls, "text-anchor": anchor, transform: turn ? `rotate(${turn} ${px} ${py})` : null }, words));
  for (let e = Math.ceil(X[0]); e <= X[1]; e++) {
    line(`M${x(10 ** e)} ${box.t}V${height - box.b}`, "grid");
    text(x(10 ** e), height - box.b + 18, e < 0 ? "0.1" : si(10 ** e, "").replace(" ", ""), "soft");
  }
  for (let e = Math.ceil(Y[0]); e <= Y[1]; e++) {
    line(`M${box.l} ${y(10 ** e)}H${width - box.r}`, "grid");
    text(box.l - 6, y(10 ** e) + 4, si(10 ** e, "").replace(" ", ""), "soft", "end");
  }
  text((width + box.l) / 2, height - 6, small ? "FLOP per byte" : "arithmetic intensity, FLOP per byte", "soft");
  text(2, 12, "FLOP/s", "soft", "start");
  const foot = 10 ** X[0], slopeStart = Math.max(foot, lowest / chip.bandwidth);
  line(`M${x(ridge)} ${y(peak)}V${height - box.b}`, "ridge");
  text(x(ridge) + 5, height - box.b - 8, `ridge ${significant(ridge)}`, "soft", "start");
  line(`M${x(slopeStart)} ${y(slopeStart * chip.bandwidth)}L${x(ridge)} ${y(peak)}H${width - box.r}`, "roof");
  const slope = (Math.atan2(y(peak) - y(peak / 10), x(ridge) - x(ridge / 10)) * 180) / Math.PI;
  const middle = Math.sqrt(slopeStart * ridge); // of the slope, on a logarithmic axis
  text(x(middle) - 9, y(middle * chip.bandwidth) - 9, si(chip.bandwidth, "B/s"), "", "middle", slope);
  const aside = small && x(ridge) > 0.6 * width; // there is no room between the corner and prefill's name
  text(x(ridge) + (aside ? -6 : 4), y(peak) - 10, si(peak, "FLOP/s"), "", aside ? "end" : "start");
  for (const [batch, p, fits] of trail) parts.push(s("circle", { cx: x(p.intensity), cy: y(p.achieved), r: 3.5, class: fits ? "trail" : "trail full" }, s("title", {}, `decode at best, batch ${batch}${fits ? "" : ", does not fit"}`)));
  // measured: filled, under the roof, with a plumb line up to what the roof would allow
  for (const [name, batch, p] of taken) {
    const px = x(p.intensity), py = y(p.achieved);
    line(`M${px} ${py}V${y(Math.min(peak, p.intensity * chip.bandwidth))}`, "plumb " + name);
    parts.push(s("circle", { cx: px, cy: py, r: 6, class: "measured " + name }, s("title", {}, `${name}, batch ${batch}: measured ${si(p.took, "s")}`)));
  }
  // prefill's name stands above the roof, decode's below; the one the reader chose is ringed
  for (const [name, p, shape] of [["prefill", prefill, "diamond"], ["decode", decode, "dot"]]) {
    const px = x(p.intensity), py = y(p.achieved);
    if (phase === name) parts.push(s("circle", { cx: px, cy: py, r: 12, class: "halo " + name }));
    parts.push(shape === "dot" ? s("circle", { cx: px, cy: py, r: 7, class: name })
                               : s("path", { d: `M${px - 8} ${py}l8 -8l8 8l-8 8z`, class: name }));
    const end = px > width - 64, above = name === "prefill";
    text(px + (end ? 8 : above ? -8 : 12), py + (above ? -14 : 24), name, "name " + name, end ? "end" : "start");
  }
  const words = [taken.length ? "hollow: at best" : "hollow: at best, by the two clocks"];
  if (taken.length) words.push("filled: measured here");
  if (trail.some(([, , fits]) => !fits)) words.push("grey: does not fit");
  const key = small ? words.map((word) => word.split(",")[0]) : [words.join(" · ")]; // a line each where there is no room
  key.forEach((line, i) => text(box.l + 6, box.t + 12 + 16 * i, line, "soft", "start"));
  const shown = taken.map(([name, batch, p]) => `, ${name} at batch ${batch} measured at ${significant((100 * p.achieved) / Math.min(peak, p.intensity * chip.bandwidth), 2)} % of it`).join("");
  return s("svg", { viewBox: `0 0 ${width} ${height}`, style: `height:${height}px`, role: "img",
    "aria-label": `Roofline of ${chip.name}: ridge at ${significant(ridge)} FLOP per byte, decode at ${significant(decode.intensity)}, prefill at ${significant(prefill.intensity)}${shown}` }, parts);
}

function render({ state, el }) {
  const named = (list) => list.map((x) => [x.name, x.label || x.name]);
  const pick = (list, control) => list.find((x) => x.name === control.value);
  const oninput = () => draw();
  const model = select({ label: "Model", options: named(state.models), value: state.model, oninput });
  const chip = select({ label: "Chip", options: named(state.chips), value: state.chip, oninput });
  const batch = slider({ label: "Batch: sequences at once", values: state.batches, value: state.batch, oninput });
  const context = slider({ label: "Context: tokens in each", values: state.contexts, value: state.context, oninput });
  const phase = toggle({ label: "Numbers below for", options: [["decode", "Decode"], ["prefill", "Prefill"]], value: state.phase, oninput });
  const format = toggle({ label: "A weight is stored in", options: named(state.formats), value: state.format, oninput });
  const plot = h("div", {}), table = stats(), verdict = h("p", { class: "verdict" }), voice = announcer();

  function draw() {
    const m = pick(state.models, model), c = pick(state.chips, chip), f = pick(state.formats, format);
    const at = (phase, b) => predict(m, c, { phase, batch: b, context: context.value, weight: f.weight, kv: f.kv, math: f.math });
    const room = (b) => held(m, { batch: b, context: context.value, weight: f.weight, kv: f.kv });
    const decode = at("decode", batch.value), prefill = at("prefill", batch.value);
    const now = phase.value === "decode" ? decode : prefill;
    const taken = under(state.measured, at, { chip: c.name, model: m.name, format: f.name, context: context.value });
    const clocked = taken.find(([name, b]) => name === phase.value && b === batch.value);
    plot.replaceChildren(picture(c, decode, prefill, state.batches.map((b) => [b, at("decode", b), room(b) <= c.memory]), taken, phase.value, plot.clientWidth || 640));
    const tone = phase.value === "decode" ? "blue" : "orange";
    table.show([[phase.value === "decode" ? "time per step, at best" : "time of the prompt, at best", si(now.seconds, "s"), tone],
                ["tokens per second, at best", significant(now.tokens_per_s), tone], ["intensity, FLOP/B", significant(now.intensity)],
                ["bound by", now.bound === "memory" ? "memory" : "arithmetic"]]);
    const need = room(batch.value);
    const [slow, fast] = now.bound === "memory" ? [now.memory, now.compute] : [now.compute, now.memory];
    const idle = now.bound === "memory" ? "the arithmetic units are" : "the memory is";
    let text = `It moves ${si(now.bytes, "B")} in ${si(now.memory, "s")} at best and computes ${si(now.flops, "FLOP")} in ${si(now.compute, "s")} at best: ${idle} busy ${significant((100 * fast) / slow, 2)} % of the time.`;
    if (clocked) text += ` Measured here: ${si(clocked[2].took, "s")}, ${significant(clocked[2].took / now.seconds)} times the bound.`;
    if (need > c.memory) text += ` It does not fit: weights and cache take ${si(need, "B")}, this chip has ${si(c.memory, "B")}.`;
    verdict.textContent = text;
    voice.say(`${phase.value}: ${si(now.seconds, "s")}, ${significant(now.tokens_per_s)} tokens per second, bound by ${now.bound}.`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, model.row, chip.row, batch.row, context.row, phase.row, format.row), plot, table.el, verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(plot);
}

const style = `
.grid { stroke: var(--grid); } .ridge { stroke: var(--soft); stroke-dasharray: 4 4; fill: none; }
.roof { stroke: var(--ink); stroke-width: 2.5; fill: none; stroke-linejoin: round; }
.trail { fill: var(--card); stroke: var(--blue); stroke-width: 1.5; } .trail.full { stroke: var(--soft); stroke-dasharray: 1.5 1.5; } path.prefill { fill: var(--card); stroke: var(--orange); stroke-width: 2.5; }
circle.decode { fill: var(--card); stroke: var(--blue); stroke-width: 2.5; } .plumb { fill: none; stroke-dasharray: 2 3; }
path.plumb.decode, circle.measured.decode { stroke: var(--blue); } path.plumb.prefill, circle.measured.prefill { stroke: var(--orange); stroke-width: 1; }
circle.measured.decode { fill: var(--blue); } circle.measured.prefill { fill: var(--orange); } path.plumb.prefill { fill: none; }
circle.halo { fill: none; stroke-width: 2; } .halo.decode { stroke: var(--blue); } .halo.prefill { stroke: var(--orange); }
text.name { font-weight: 600; paint-order: stroke; stroke: var(--card); stroke-width: 4px; } text.name.decode { fill: var(--blue); } text.name.prefill { fill: var(--orange); }
`;

export default { title: "Roofline", style, render };
