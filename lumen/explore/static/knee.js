// Requests of load tests, two limits, and what each server carries of them.
import { h, s, slider, toggle, stats, announcer, si, significant } from "./kit.js";

export function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b), at = (p / 100) * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// How many of a round's requests kept both limits, and how many there were. Samples are [TTFT, TPOT or null] in seconds.
const shares = (one, ttft, tpot) => [one.samples.filter((x) => x[0] <= ttft && (x[1] === null || x[1] <= tpot)).length, one.samples.length + one.failed];
const sum = (values) => values.reduce((total, x) => total + x, 0);

// ttft, tpot: [p50, p90, least and most p90 of a round]; good: [share, least, most]. The twin of `judge` in knee.py.
export function judge(run, ttft, tpot) {
  const rounds = run.rounds, seconds = sum(rounds.map((one) => one.seconds)), counts = rounds.map((one) => shares(one, ttft, tpot));
  const good = sum(counts.map((c) => c[0])), sent = sum(counts.map((c) => c[1])), parts = counts.map(([a, b]) => (b ? a / b : 0));
  const found = { throughput: sum(rounds.map((one) => one.finished)) / seconds, tokens: sum(rounds.map((one) => one.tokens)) / seconds,
    goodput: good / seconds, good: [sent ? good / sent : 0, Math.min(...parts), Math.max(...parts)], sent };
  for (const [name, at] of [["ttft", 0], ["tpot", 1]]) {
    const each = rounds.map((one) => one.samples.map((x) => x[at]).filter((v) => v !== null)), values = each.flat();
    const tails = each.filter((part) => part.length).map((part) => percentile(part, 90));
    found[name] = values.length ? [percentile(values, 50), percentile(values, 90), Math.min(...tails), Math.max(...tails)] : null;
  }
  return found;
}

// The rate at which the share of good requests falls to `enough`. More load cannot help: shares that rise with it are
// noise and are averaged with their neighbours. The twin of `crossing` in knee.py.
export function crossing(rates, parts, enough) {
  const blocks = [];
  for (const part of parts) {
    blocks.push([part, 1]);
    while (blocks.length > 1 && blocks.at(-2)[0] / blocks.at(-2)[1] < blocks.at(-1)[0] / blocks.at(-1)[1]) {
      const [total, count] = blocks.pop(), last = blocks.pop();
      blocks.push([last[0] + total, last[1] + count]);
    }
  }
  const smooth = blocks.flatMap(([total, count]) => Array(count).fill(total / count));
  if (smooth[0] < enough) return 0;
  for (let i = 1; i < rates.length; i++) {
    if (smooth[i] < enough) return rates[i - 1] + ((smooth[i - 1] - enough) / (smooth[i - 1] - smooth[i])) * (rates[i] - rates[i - 1]);
  }
  return rates.at(-1);
}

// [rate that is carried, least and most of a single round]. The twin of `carried` in knee.py.
export function carried(runs, ttft, tpot, enough) {
  const rates = runs.map((run) => run.rate), counts = runs.map((run) => run.rounds.map((one) => shares(one, ttft, tpot)));
  const found = crossing(rates, counts.map((c) => sum(c.map((x) => x[0])) / Math.max(1, sum(c.map((x) => x[1])))), enough);
  const each = Array.from({ length: Math.min(...counts.map((c) => c.length)) }, (_, r) => crossing(rates, counts.map((c) => c[r][0] / Math.max(1, c[r][1])), enough));
  return [found, Math.min(found, ...each), Math.max(found, ...each)];
}

function inWords([value, low, high], runs) {
  if (value <= 0) return `less than ${runs[0].rate}`;
  if (value >= runs.at(-1).rate) return `${runs.at(-1).rate} or more`;
  return `${significant(value, 2)} (${significant(low, 2)} to ${significant(high, 2)})`;
}

const tones = ["blue", "orange", "green", "purple"], share = (x) => Math.round(100 * x) + " %";
const KINDS = { ttft: "p90 of TTFT", tpot: "p90 of TPOT", good: "share of requests within both limits" };
const FIRST = { good: 0, ttft: 1, tpot: 1 }; // where the number that is drawn stands; its least and most follow

function scale(kind, found, limit) {
  if (kind === "good") return { at: (v) => v, ticks: [0, 0.25, 0.5, 0.75, 1].map((v) => [v, share(v)]) };
  const values = found.flat().flatMap((x) => (x[kind] || []).slice(1)).concat(limit), low = Math.min(...values) / 1.4, high = Math.max(...values) * 1.4;
  const at = (v) => Math.log(v / low) / Math.log(high / low), ticks = [];
  for (let k = -4; k < 4; k++) for (const m of high / low > 300 ? [1] : [1, 3]) {
    const v = m * 10 ** k;
    if (v >= low && v <= high) ticks.push([v, si(v, "s", 1)]);
  }
  return { at, ticks };
}

function picture(state, kind, limit, found, chosen, width) {
  const left = 58, right = 14, top = 12, bottom = 40, tall = 280, most = Math.max(...state.engines.flatMap((e) => e.runs.map((r) => r.rate)));
  const x = (rate) => left + (rate / most) * (width - left - right), axis = scale(kind, found, limit);
  const y = (v) => tall - bottom - axis.at(v) * (tall - top - bottom), marks = [];
  for (const [v, text] of axis.ticks) marks.push(s("path", { d: `M${left} ${y(v)}H${width - right}`, class: "guide" }),
    s("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end", class: "soft" }, text));
  for (const rate of [0, most / 2, most]) marks.push(s("text", { x: x(rate), y: tall - 20, "text-anchor": rate === most ? "end" : "middle", class: "soft" }, significant(rate, 2)));
  marks.push(s("text", { x: (left + width - right) / 2, y: tall - 3, "text-anchor": "middle", class: "soft" }, "offered load (requests/s)"));
  marks.push(s("path", { d: `M${left} ${y(limit)}H${width - right}`, class: "limit" }));
  state.engines.forEach((engine, e) => {
    const value = (i) => found[e][i][kind] && found[e][i][kind].slice(FIRST[kind]);
    const points = engine.runs.map((run, i) => [x(run.rate), value(i)]).filter((p) => p[1]);
    marks.push(s("path", { d: "M" + points.map(([a, v]) => `${a} ${y(v[0])}`).join("L"), class: "line " + tones[e], "stroke-dasharray": ["", "7 4", "2 3", "9 3 2 3"][e] }));
    for (const [a, v] of points) marks.push(s("path", { d: `M${a} ${y(v[1])}V${y(v[2])}`, class: "line whisker " + tones[e] }));
    engine.runs.forEach((run, i) => { if (value(i)) marks.push(s("circle", { cx: x(run.rate), cy: y(value(i)[0]),
      r: e === chosen[0] && i === chosen[1] ? 7 : 4, class: tones[e] })); });
  });
  marks.push(s("text", { x: left + 6, y: y(limit) + (kind === "good" ? 16 : -6), class: "soft halo" }, kind === "good" ? "nine in ten" : "your limit"));
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img", "aria-label": `${KINDS[kind]} against offered load` }, marks);
}

function render({ state, el }) {
  const oninput = () => draw(), names = state.engines.map((engine, e) => [String(e), engine.name]);
  const ttft = slider({ label: "Limit on TTFT", values: state.ttfts, value: state.ttft, format: (v) => si(v, "s"), oninput });
  const tpot = slider({ label: "Limit on TPOT", values: state.tpots, value: state.tpot, format: (v) => si(v, "s"), oninput });
  const kind = toggle({ label: "Picture", options: [["ttft", "TTFT"], ["tpot", "TPOT"], ["good", "share good"]], value: "ttft", oninput });
  const who = toggle({ label: "Look closer at", options: names, value: "0", oninput: () => { fill(); draw(); } });
  const place = h("div", {}), stage = h("div", {}), table = stats(4), verdict = h("p", { class: "verdict" }), note = h("p", { class: "lead" }), voice = announcer();
  const legend = h("p", { class: "legend" }, state.engines.map((engine, e) => h("span", {}, s("svg", { viewBox: "0 0 26 12", "aria-hidden": "true" },
    s("path", { d: "M0 6H26", class: "line " + tones[e], "stroke-dasharray": ["", "7 4", "2 3", "9 3 2 3"][e] }), s("circle", { cx: 13, cy: 6, r: 4, class: tones[e] })), engine.name)));
  let load;
  const fill = () => {
    const rates = state.engines[who.value].runs.map((run) => run.rate), before = load ? load.value : rates[Math.floor(rates.length / 2)];
    load = slider({ label: "at an offered load of", values: rates, value: rates.includes(before) ? before : rates[0], format: (v) => v + " requests/s", oninput });
    place.replaceChildren(load.row);
  };

  function draw() {
    const found = state.engines.map((engine) => engine.runs.map((run) => judge(run, ttft.value, tpot.value)));
    const e = Number(who.value), engine = state.engines[e], i = engine.runs.findIndex((run) => run.rate === load.value), now = found[e][i];
    stage.replaceChildren(picture(state, kind.value, { ttft: ttft.value, tpot: tpot.value, good: state.enough }[kind.value], found, [e, i], stage.clientWidth || 600));
    const two = (pair, k) => (pair ? si(pair[k], "s") : "–");
    table.show([["good", `${share(now.good[0])} of ${now.sent}`, now.good[0] >= state.enough ? "green" : "orange"], ["goodput", significant(now.goodput) + " /s"],
      ["throughput", significant(now.throughput) + " /s"], ["tokens/s", significant(now.tokens)], ["TTFT p50", two(now.ttft, 0)], ["TTFT p90", two(now.ttft, 1)],
      ["TPOT p50", two(now.tpot, 0)], ["TPOT p90", two(now.tpot, 1)]]);
    const carries = state.engines.map((one) => [one.name, inWords(carried(one.runs, ttft.value, tpot.value, state.enough), one.runs)]);
    const text = `With ${share(state.enough)} of the requests good: ` + carries.map(([name, words]) => `${name} carries ${words} requests a second`).join("; ") + ".";
    verdict.textContent = text;
    note.textContent = engine.note;
    voice.say(`${engine.name} at ${load.value} requests per second: ${share(now.good[0])} good. ${text}`);
  }
  fill();
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead), h("div", { class: "controls" }, ttft.row, tpot.row, kind.row), legend,
    stage, verdict, h("div", { class: "controls closer" }, who.row, place), table.el, note, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; } .limit { stroke: var(--ink); stroke-dasharray: 5 4; fill: none; }
.halo { paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.line { fill: none; stroke-width: 2.5; } .whisker { stroke-width: 1.5; } path.blue { stroke: var(--blue); } path.orange { stroke: var(--orange); } path.green { stroke: var(--green); }
path.purple { stroke: var(--purple); } circle.blue { fill: var(--blue); } circle.orange { fill: var(--orange); } circle.green { fill: var(--green); }
circle.purple { fill: var(--purple); } .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; margin: 0 0 4px; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 26px; height: 12px; }
.closer { margin-top: 16px; } .stats + .lead { margin: 12px 0 0; }
`;

export default { title: "Knee explorer", style, render };
