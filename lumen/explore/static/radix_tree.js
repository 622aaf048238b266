// A prefix cache as a radix tree over pages: what a request finds, what it adds, where it splits, what is forgotten.
import { h, slider, toggle, stats, announcer, integer } from "./kit.js";

// The requests with the time of day as first or last word, as with_clock in radix.py.
export function withClock(requests, where) {
  if (where === "none") return requests;
  return requests.map(([prompt, answer], i) => {
    const time = "10:" + String(i + 1).padStart(2, "0");
    return [where === "top" ? `${time} ${prompt}` : `${prompt} ${time}`, answer];
  });
}

const cut = (words, size, count) => Array.from({ length: count }, (_, i) => words.slice(i * size, (i + 1) * size).join(" "));

// Where a match ends: the node, how many of its pages match, and how many pages match in all.
function walk(root, pages) {
  let node = root, inside = 0, total = 0;
  while (total < pages.length && node.children.has(pages[total])) {
    node = node.children.get(pages[total]);
    inside = 0;
    while (inside < node.pages.length && total < pages.length && node.pages[inside].text === pages[total]) { inside += 1; total += 1; }
    if (inside < node.pages.length) break;
  }
  return { node, inside, total };
}

const make = (parent, pages, used) => ({ parent, pages, used, children: new Map() });

function split(node, at) {
  const rest = make(node, node.pages.slice(at), node.used);
  rest.children = node.children;
  for (const child of rest.children.values()) child.parent = rest;
  node.pages = node.pages.slice(0, at);
  node.children = new Map([[rest.pages[0].text, rest]]);
}

function* below(node, depth = -1) {
  if (depth >= 0) yield [depth, node];
  for (const child of node.children.values()) yield* below(child, depth + 1);
}

// Pages from the least recently used leaf, last page first; a page that the request reads is locked.
function evict(root, count, locked) {
  const gone = [];
  const waiting = [...below(root)].map(([, node]) => node).filter((node) => !node.children.size);
  while (waiting.length && gone.length < count) {
    waiting.sort((a, b) => a.used - b.used);
    const leaf = waiting.shift(), first = leaf.pages[0].text;
    while (leaf.pages.length && gone.length < count && !locked.has(leaf.pages.at(-1))) gone.push(leaf.pages.pop().text);
    if (!leaf.pages.length) {
      leaf.parent.children.delete(first);
      if (leaf.parent.pages.length && !leaf.parent.children.size) waiting.push(leaf.parent);
    }
  }
  return gone;
}

// Serve (prompt, answer) pairs one after the other; the state after each. The twin of `replay` in radix.py.
export function replay(requests, size, room) {
  const root = make(null, [], 0), capacity = Math.floor(room / size), steps = [];
  let clock = 0;
  const touch = (node) => { clock += 1; for (; node; node = node.parent) node.used = clock; };
  requests.forEach(([prompt, answer], now) => {
    const asked = prompt.split(" "), tokens = [...asked, ...answer.split(" ").slice(0, -1)];
    const match = walk(root, cut(asked, size, Math.floor((asked.length - 1) / size)));
    const locked = new Set(match.node.pages.slice(0, match.inside));
    for (let up = match.node.parent; up; up = up.parent) up.pages.forEach((page) => locked.add(page));
    if (root.children.size) touch(match.node);
    const held = match.total, count = [...below(root)].reduce((sum, [, node]) => sum + node.pages.length, 0);
    const short = Math.ceil(tokens.length / size) - held - (capacity - count);
    const gone = short > 0 ? evict(root, short, locked) : [];
    const pages = cut(tokens, size, Math.floor(tokens.length / size)), end = walk(root, pages);
    let node = end.node, parted = false;
    if (end.total < pages.length) {
      if (end.inside < node.pages.length) { split(node, end.inside); parted = true; }
      const child = make(node, pages.slice(end.total).map((text) => ({ text, born: now })), 0);
      node.children.set(pages[end.total], child);
      node = child;
    }
    if (pages.length) touch(node);
    const nodes = [...below(root)];
    steps.push({ held: held * size, run: asked.length - held * size, evicted: gone.length, gone, parted, asked, answer,
      remembered: nodes.reduce((sum, [, one]) => sum + one.pages.length, 0),
      tree: nodes.map(([depth, one]) => [depth, one.pages.map((page) => page.text)]),
      kinds: nodes.map(([, one]) => one.pages.map((page) => (page.born === now ? "new" : locked.has(page) ? "held" : "old"))) });
  });
  return steps;
}

const SAID = { held: "found", new: "new", old: "not read" };

// The list of (depth, pages) as nested lists.
function branches(step) {
  const top = h("ul", { class: "tree" }), open = [top];
  step.tree.forEach(([depth, pages], i) => {
    const item = h("li", {}, h("span", { class: "run" }, pages.map((text, j) =>
      h("span", { class: "page " + step.kinds[i][j] }, text, h("span", { class: "sr" }, ` (${SAID[step.kinds[i][j]]})`)))));
    open.length = depth + 1;
    open[depth].append(item);
    const deeper = step.tree[i + 1] && step.tree[i + 1][0] > depth ? h("ul", {}) : null;
    if (deeper) { item.append(deeper); open.push(deeper); }
  });
  return top;
}

function render({ state, el }) {
  let at = 1, steps = [];
  const again = () => { steps = replay(withClock(state.requests, clock.value), page.value, room.value); draw(); };
  const page = slider({ label: "Tokens in a block", values: state.pages, value: state.page, oninput: again });
  const room = slider({ label: "Room in the cache (tokens)", values: state.rooms, value: state.room, oninput: again });
  const clock = toggle({ label: "The time of day in the prompt", value: state.clock, oninput: again,
    options: [["none", "none"], ["top", "first word"], ["end", "last word"]] });
  const go = (to) => () => { at = Math.min(steps.length, Math.max(1, to())); draw(); };
  const back = h("button", { type: "button", onclick: go(() => at - 1) }, "Back");
  const next = h("button", { type: "button", class: "first", onclick: go(() => at + 1) }, "Next request");
  const start = h("button", { type: "button", onclick: go(() => 1) }, "Start over");
  const where = h("p", { class: "where" }), asked = h("p", { class: "asked" }), tree = h("div", {}), table = stats();
  const verdict = h("p", { class: "verdict" }), voice = announcer();
  const legend = h("p", { class: "legend" }, Object.entries(SAID).map(([kind, text]) => h("span", {}, h("span", { class: "page " + kind }, "block"), text)));

  function draw() {
    const step = steps[at - 1], past = steps.slice(0, at);
    const sum = (key) => past.reduce((total, one) => total + one[key], 0);
    where.replaceChildren(h("b", {}, `Request ${at} of ${steps.length}. `),
      `${step.held} of ${step.asked.length} prompt tokens are found, ${step.run} must be run.`);
    asked.replaceChildren(h("span", { class: "found" }, step.asked.slice(0, step.held).join(" ")), " ",
      h("span", { class: "ran" }, step.asked.slice(step.held).join(" ")), " ", h("span", { class: "said" }, "→ " + step.answer));
    tree.replaceChildren(branches(step));
    table.show([["found in this prompt", `${step.held} of ${step.asked.length}`, "blue"], ["run", integer(step.run), "orange"],
      ["hit rate so far", Math.round((100 * sum("held")) / (sum("held") + sum("run"))) + " %"],
      ["blocks remembered", `${step.remembered} of ${Math.floor(room.value / page.value)}`]]);
    verdict.textContent = [step.parted ? "A node was split where this request leaves it." : "",
      step.evicted ? `Forgotten to make room, the least recently used leaf first: ${step.gone.map((text) => `“${text}”`).join(", ")}.` : "Nothing was forgotten."].join(" ").trim();
    back.disabled = start.disabled = at === 1;
    next.disabled = at === steps.length;
    voice.say(`Request ${at}: ${step.held} tokens found, ${step.run} run, ${step.evicted} blocks forgotten.`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, page.row, room.row, clock.row), h("div", { class: "buttons" }, back, next, start),
    where, asked, tree, legend, table.el, verdict, voice.el);
  again();
}

const style = `
.buttons { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 12px; } .where { margin-bottom: 4px; }
.asked { min-height: 3em; overflow-wrap: anywhere; } .asked .found { color: var(--blue); text-decoration: underline; text-underline-offset: 3px; }
.asked .ran { color: var(--orange); } .asked .said { color: var(--soft); }
ul { list-style: none; margin: 0; padding: 0; } ul ul { margin-left: 9px; padding-left: 11px; border-left: 2px solid var(--line); }
li { margin: 5px 0; } .run { display: inline-flex; flex-wrap: wrap; gap: 3px; vertical-align: top; }
.page { border: 1.5px solid var(--line); border-radius: 5px; padding: 0 6px; font-size: 14px; background: var(--page); }
.page.held { background: var(--bluewash); border-color: var(--blue); text-decoration: underline; text-underline-offset: 3px; }
.page.new { background: var(--orangewash); border-color: var(--orange); border-style: dashed; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 10px 0 0; }
.legend > span { display: inline-flex; align-items: center; gap: 6px; } .legend .page { color: var(--ink); }
`;

export default { title: "A radix tree, request by request", style, render };
