// One server, a load, a freeze: latencies from when requests were due and from when a waiting tester sent them.
import { h, s, slider, toggle, stats, announcer, si } from "./kit.js";

const SERVICE = 0.1;

export function percentile(values, p) {
  const sorted = [...values].sort((a, b) => a - b), at = (p / 100) * (sorted.length - 1), low = Math.floor(at);
  const high = Math.min(low + 1, sorted.length - 1);
  return sorted[low] + (at - low) * (sorted[high] - sorted[low]);
}

// The twin of `play` in queue_load.py.
export function play(gaps, load, freeze) {
  const arrivals = [], due = [], sent = [], middle = Math.floor(gaps.length / 2);
  let now = 0, free = 0;
  gaps.forEach((gap, i) => {
    now += (gap * SERVICE) / load;
    const start = Math.max(now, free);
    free = start + SERVICE + (i === middle ? freeze : 0);
    arrivals.push(now);
    due.push(free - now);
    sent.push(free - start);
  });
  const stat = (values) => ({ mean: values.reduce((a, b) => a + b, 0) / values.length, p50: percentile(values, 50),
    p99: percentile(values, 99), slow: values.filter((value) => value > 2 * SERVICE + 1e-9).length });
  return { arrivals, due, sent, stats: { due: stat(due), sent: stat(sent) } };
}

function picture(run, width) {
  const left = 44, right = 14, top = 14, bottom = 40, tall = 230, most = Math.max(0.4, ...run.due);
  const x = (time) => left + (time / run.arrivals.at(-1)) * (width - left - right);
  const y = (value) => tall - bottom - (value / most) * (tall - top - bottom);
  const marks = [];
  for (const share of [0, 0.5, 1]) marks.push(s("path", { d: `M${left} ${y(share * most)}H${width - right}`, class: "guide" }),
    s("text", { x: left - 6, y: y(share * most) + 4, "text-anchor": "end", class: "soft" }, (share * most).toFixed(1)));
  marks.push(s("text", { x: left, y: tall - 8, class: "soft" }, "0 s"),
    s("text", { x: (left + width - right) / 2, y: tall - 8, "text-anchor": "middle", class: "soft" }, "when the request was due"),
    s("text", { x: width - right, y: tall - 8, "text-anchor": "end", class: "soft" }, run.arrivals.at(-1).toFixed(0) + " s"));
  run.arrivals.forEach((time, i) => {
    marks.push(s("circle", { cx: x(time), cy: y(run.due[i]), r: 3, class: "due" }));
    marks.push(s("circle", { cx: x(time), cy: y(run.sent[i]), r: 2.2, class: "sent" }));
  });
  return s("svg", { viewBox: `0 0 ${width} ${tall}`, style: `height:${tall}px`, role: "img",
    "aria-label": `Latency of 300 requests in seconds, up to ${most.toFixed(1)}` }, marks);
}

function render({ state, el }) {
  const oninput = () => draw(), percent = (share) => Math.round(100 * share) + " %";
  const load = slider({ label: "Load (share of time busy)", values: state.loads, value: state.load, format: percent, oninput });
  const freeze = slider({ label: "Length of the freeze", values: state.freezes, value: state.freeze, format: (v) => v + " s", oninput });
  const pace = toggle({ label: "Arrivals", options: [["even", "even"], ["random", "random (Poisson)"]], value: state.arrivals, oninput });
  const stage = h("div", {}), voice = announcer(), verdict = h("p", { class: "verdict" });
  const rows = [["due", "Measured from when each request was due"], ["sent", "Measured from when the tester sent it"]].map(
    ([who, name]) => ({ who, table: stats(4), name: h("p", { class: "who" }, s("svg", { viewBox: "0 0 12 12", "aria-hidden": "true" },
      s("circle", { cx: 6, cy: 6, r: 4, class: who })), name) }));

  function draw() {
    const gaps = pace.value === "even" ? state.gaps.map(() => 1) : state.gaps, run = play(gaps, load.value, freeze.value);
    stage.replaceChildren(picture(run, stage.clientWidth || 600));
    for (const { who, table } of rows) {
      const { mean, p50, p99, slow } = run.stats[who];
      table.show([["mean", si(mean, "s")], ["p50", si(p50, "s")], ["p99", si(p99, "s")], ["over 0.2 s", String(slow), who === "due" ? "orange" : "blue"]]);
    }
    const { due, sent } = run.stats;
    const many = (n) => `${n} slow request${n === 1 ? "" : "s"}`;
    const text = due.slow === sent.slow ? `Both count ${many(due.slow)}.`
      : `The tester who waits for each answer counts ${many(sent.slow)}. Counted from when they were due, there are ${due.slow}.`;
    verdict.textContent = text;
    voice.say(`${text} p99 ${si(due.p99, "seconds")} against ${si(sent.p99, "seconds")}.`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, load.row, freeze.row, pace.row), stage, ...rows.flatMap(({ name, table }) => [name, table.el]), verdict, voice.el);
  draw();
  new ResizeObserver(draw).observe(stage);
}

const style = `
.guide { stroke: var(--grid); fill: none; }
.due { fill: var(--orange); } .sent { fill: var(--blue); }
.who { display: flex; align-items: center; gap: 6px; font-size: 14px; margin: 12px 0 0; } .who svg { width: 12px; height: 12px; }
.who + .stats { margin-top: 2px; } .verdict { margin-top: 12px; }
`;

export default { title: "Queue explorer", style, render };
