// Requests over one small pool of blocks: tables, copy-on-write, preemption. `play` is the twin of `play` in paged.py.
import { h, s, slider, stats, announcer, integer } from "./kit.js";

// The state after `events` ("new", "step", "fork A", "end A"), with a log of the last one.
export function play(events, size, { positions, prompts, names, answer }) {
  const blocks = positions / size, refs = Array(blocks).fill(0);
  const free = Array.from({ length: blocks }, (_, i) => blocks - 1 - i); // the last freed is used next
  const rows = [], sum = { copies: 0, recomputed: 0, preemptions: 0 };
  let log = [], requests = 0;
  const running = () => rows.filter((r) => r.state === "running");
  const take = () => { const b = free.pop(); refs[b] = 1; return b; };
  const release = (table) => table.forEach((b) => { if (--refs[b] === 0) free.push(b); });
  const drop = (row, state) => { release(row.table); row.table = []; row.state = state; };
  const full = (row) => row.table.length * size === row.length;
  const shared = (row) => refs[row.table.at(-1)] > 1;

  function admit() { // first come, first served, while one block stays free for each that runs
    for (const row of rows) {
      if (row.state !== "waiting") continue;
      const need = Math.ceil(row.length / size);
      const want = need + running().length;
      if (want > free.length) { log.push(["wait", row.name, want, free.length]); return; }
      row.table = Array.from({ length: need }, take);
      row.state = "running";
      log.push([row.again ? "resume" : "start", row.name, row.length, [...row.table]]);
      if (row.again) sum.recomputed += row.length;
    }
  }
  function room(row) { // preempt from the youngest on until `row` can write
    while ((full(row) || shared(row)) && !free.length) {
      const victim = running().at(-1); // a row alone always fits
      log.push(["preempt", victim.name, row.name]);
      sum.preemptions += 1;
      victim.again = true;
      drop(victim, "waiting");
      if (victim === row) return false;
    }
    return true;
  }
  function write(row) {
    if (full(row)) { row.table.push(take()); log.push(["take", row.name, row.table.at(-1)]); }
    else if (shared(row)) {
      const old = row.table.pop();
      row.table.push(take());
      release([old]);
      sum.copies += 1;
      log.push(["copy", row.name, old, row.table.at(-1)]);
    }
    row.length += 1;
  }
  const act = {
    new() {
      if (rows.length === names.length) return;
      const length = prompts[requests++ % prompts.length];
      rows.push({ name: names[rows.length], length, end: length + answer, table: [], state: "waiting", again: false });
      admit();
    },
    fork(name) {
      const row = running().find((r) => r.name === name);
      if (!row || rows.length === names.length) return;
      row.table.forEach((b) => { refs[b] += 1; });
      rows.push({ name: names[rows.length], length: row.length, end: row.end, table: [...row.table], state: "running", again: false });
      log.push(["fork", name, rows.at(-1).name]);
    },
    end(name) {
      const row = rows.find((r) => r.name === name && r.state !== "ended");
      if (row) { drop(row, "ended"); log.push(["end", name]); }
    },
    step() {
      admit();
      for (const row of running())
        if (row.state === "running" && room(row)) {
          write(row);
          if (row.length === row.end) act.end(row.name);
        }
    },
  };
  for (const event of events) { log = []; const [word, name] = event.split(" "); act[word](name); }
  const filled = refs.map(() => 0);
  for (const row of rows) row.table.forEach((b, i) => { filled[b] = Math.max(filled[b], Math.min(size, row.length - i * size)); });
  return { rows: rows.map(({ name, length, table, state }) => ({ name, length, table, state })), free: free.length, filled, ...sum, log };
}

const SAY = {
  start: (a, n, t) => `${a} comes in with ${n} tokens and takes ${t.length === 1 ? "block" : "blocks"} ${t.join(", ")}.`,
  resume: (a, n, t) => `${a} comes back: its ${n} tokens are computed again, into ${t.join(", ")}.`,
  wait: (a, n, f) => `${a} waits for ${n} free blocks (${f} are): its own, and one for each that runs. Whoever came later waits behind it.`,
  fork: (a, b) => `${b} is a second sample of ${a}: the same table, no copy.`,
  end: (a) => `${a} is done and gives its blocks back.`,
  take: (a, b) => `${a} takes block ${b}.`,
  copy: (a, b, c) => `${a} shares block ${b}, so it copies it to ${c} before it writes.`,
  preempt: (a, b) => a === b ? `No block is free for ${a}, the youngest: it gives up its own and waits.`
    : `${b} needs a block and none is free: ${a}, the youngest, gives up its own and waits.`,
};
const STATE = { running: "running", waiting: "waiting", ended: "ended" };

function render({ state, el }) {
  const events = [...state.events], start = events.length;
  let at = state.names[0];
  const size = slider({ label: "Positions in a block", values: state.sizes, value: state.size, oninput: draw });
  const who = h("select", { onchange: () => { at = who.value; draw(); } });
  const push = (event) => () => { events.push(event()); draw(); };
  const button = (text, event, first) => h("button", { type: "button", class: first ? "first" : "", onclick: push(event) }, text);
  const token = button("Next token", () => "step", true), request = button("New request", () => "new");
  const fork = button("Fork", () => `fork ${at}`), end = button("End", () => `end ${at}`);
  const back = h("button", { type: "button", onclick: () => { events.pop(); draw(); } }, "Back");
  const over = h("button", { type: "button", onclick: () => { events.splice(start); draw(); } }, "Start over");
  const said = h("p", { class: "said" }), pool = h("div", { class: "pool" }), tables = h("div", { class: "tables", role: "list" });
  const table = stats(), voice = announcer();

  function drawPool(now) {
    const across = 16, w = Math.min(40, (pool.clientWidth || 600) / across), tall = 22, line = tall + 40;
    const lines = state.positions / across, step = size.value, parts = [];
    const touched = new Set(now.log.flatMap((e) => e[0] === "take" ? [e[2]] : e[0] === "copy" ? [e[3]] : e[0] === "start" || e[0] === "resume" ? e[3] : []));
    now.filled.forEach((count, b) => {
      const x = ((b * step) % across) * w, y = Math.floor((b * step) / across) * line + 16;
      const held = now.rows.filter((r) => r.table.includes(b)).map((r) => r.name);
      const tone = held.length > 1 ? "both" : held.length ? `c${state.names.indexOf(held[0]) % 5}` : "none";
      for (let i = 0; i < step; i++)
        parts.push(s("rect", { x: x + i * w + 1.5, y: y + 2, width: w - 3, height: tall - 4, rx: 2, class: `place ${i < count ? tone : "empty"}` }));
      parts.push(s("rect", { x: x + 0.5, y: y - 0.5, width: step * w - 1, height: tall + 1, rx: 4, class: `block ${touched.has(b) ? "new" : ""} ${held.length ? "" : "free"}` }),
        s("text", { x: x + (step * w) / 2, y: y - 4, class: "soft", "text-anchor": "middle" }, String(b)),
        s("text", { x: x + (step * w) / 2, y: y + tall + 14, class: "owner", "text-anchor": "middle" },
          step === 1 && held.length > 1 ? `×${held.length}` : held.join(" ")));
    });
    const used = state.positions / step - now.free;
    pool.replaceChildren(s("svg", { viewBox: `0 0 ${across * w} ${lines * line}`, role: "img",
      style: `width:${across * w}px;height:${lines * line}px`,
      "aria-label": `Pool: ${used} of ${state.positions / step} blocks of ${step} are taken. ` +
        now.rows.filter((r) => r.table.length).map((r) => `${r.name} holds ${r.table.join(", ")}`).join("; ") }, parts));
  }

  function draw() {
    const now = play(events, size.value, state), live = now.rows.filter((r) => r.state !== "ended");
    if (!live.some((r) => r.name === at)) at = live[0]?.name ?? "";
    who.replaceChildren(...live.map((r) => h("option", { value: r.name, selected: r.name === at }, `${r.name} (${STATE[r.state]})`)));
    drawPool(now);
    tables.replaceChildren(...now.rows.map((r) => h("p", { role: "listitem", class: r.state }, h("b", {}, r.name), ` ${r.length} tokens, `,
      r.state === "running" ? h("code", {}, `[${r.table.join(", ")}]`) : STATE[r.state])));
    const text = now.log.map(([word, ...rest]) => SAY[word](...rest)).join(" ") || "Every running sequence had room in its last block.";
    said.textContent = events.length ? text : "The pool is empty.";
    const taken = now.filled.length - now.free, stored = now.filled.reduce((a, b) => a + b, 0);
    const tokens = now.rows.reduce((a, r) => a + (r.state === "running" ? r.length : 0), 0);
    table.show([["taken positions with a token", taken ? `${stored} of ${taken * size.value}` : "none", "blue"],
                ["tokens that running ones see", integer(tokens)],
                ["blocks copied on write", integer(now.copies), "orange"],
                ["tokens computed again", integer(now.recomputed), "orange"]]);
    const mine = live.find((r) => r.name === at), many = now.rows.length === state.names.length;
    request.disabled = many;
    fork.disabled = many || mine?.state !== "running";
    end.disabled = who.disabled = !mine;
    token.disabled = !live.length;
    back.disabled = !events.length;
    over.disabled = events.length === start;
    voice.say(said.textContent);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "buttons" }, token, request, back, over),
    h("div", { class: "controls" }, size.row, h("div", { class: "pick" },
      h("label", { class: "control" }, h("span", { class: "name" }, "Sequence"), who), fork, end)),
    said, pool, tables, table.el, voice.el);
  draw();
  new ResizeObserver(draw).observe(pool);
}

const style = `
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 12px; } .said { min-height: 3em; margin: 4px 0 8px; }
.pick { display: flex; gap: 8px; align-items: flex-end; } .pick .control { flex: 1; }
.pool svg { max-width: 100%; } .place.empty { fill: none; stroke: var(--grid); }
.place.c0 { fill: var(--blue); } .place.c1 { fill: var(--orange); } .place.c2 { fill: var(--green); }
.place.c3 { fill: var(--purple); } .place.c4 { fill: var(--ochre); } .place.both { fill: var(--soft); }
.block { fill: none; stroke: var(--line); stroke-width: 1.5; } .block.free { stroke-dasharray: 2 3; }
.block.new { stroke: var(--ink); stroke-width: 2.5; } .pool text { font-size: 12px; } .owner { font-weight: 600; }
.tables { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; } .tables p { margin: 0; }
.tables .waiting, .tables .ended { color: var(--soft); }
`;

export default { title: "Block tables, step by step", style, render };
