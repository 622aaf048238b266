// How much memory a KV cache takes, and how many users fit beside the weights.
import { h, s, slider, toggle, select, stats, announcer, integer, significant, bytes } from "./kit.js";

// The same sums as lumen.cost: kv_bytes, weight_storage, max_users, overtaking_batch. Bytes in, bytes out.
export function sizes(model, { context, users, kv, weight, memory, reserve }) {
  const kept = model.window ? Math.min(context, model.window) : context;
  const perToken = model.kv_values * kv, perUser = perToken * kept, weights = model.parameters * weight;
  const cache = perUser * users, room = memory * (1 - reserve) - weights;
  return { perToken, perUser, cache, weights, room, fit: Math.max(0, Math.floor(room / perUser)), overtakes: weights / perUser };
}

function bar(r, memory, reserve, width) {
  const total = Math.max(memory, r.weights + r.cache), px = (b) => (b / total) * width, y = 20, tall = 34;
  const edge = px(memory), kept = px(memory * reserve);
  const parts = [
    s("rect", { x: 0, y, width: edge, height: tall, class: "free" }),
    s("rect", { x: edge - kept, y, width: kept, height: tall, class: "reserve" }),
    s("rect", { x: 0, y, width: px(r.weights), height: tall, class: "weights" }),
    s("rect", { x: px(r.weights), y, width: px(r.cache), height: tall, class: "cache" }),
    s("rect", { x: edge, y, width: width - edge, height: tall, class: "over" }),
    s("path", { d: `M${edge} ${y - 6}V${y + tall + 6}`, class: "limit" }),
    s("text", { x: Math.min(edge, width) - 6, y: 11, "text-anchor": "end", class: "soft" }, `memory ${bytes(memory)}`),
  ];
  return s("svg", { viewBox: `0 0 ${width} ${y + tall + 8}`, style: `height:${y + tall + 8}px`, role: "img",
    "aria-label": `Weights ${bytes(r.weights)}, cache ${bytes(r.cache)}, memory ${bytes(memory)}` }, parts);
}

function render({ state, el }) {
  const named = (list) => list.map((x) => [x.name, x.label || x.name]);
  const pick = (list, control) => list.find((x) => x.name === control.value);
  const oninput = () => draw();
  const model = select({ label: "Model", options: named(state.models), value: state.model, oninput });
  const chip = select({ label: "Memory of", options: named(state.chips), value: state.chip, oninput });
  const context = slider({ label: "Tokens of context a user", values: state.contexts, value: state.context, oninput });
  const users = slider({ label: "Users at once", values: state.users_scale, value: state.users, oninput });
  const kv = toggle({ label: "A cached value", options: named(state.formats), value: state.kv, oninput });
  const weight = toggle({ label: "A weight", options: named(state.formats), value: state.weight, oninput });
  const picture = h("div", {}), table = stats(3), verdict = h("p", { class: "verdict" }), voice = announcer();
  const legend = h("p", { class: "legend" }, ["weights", "cache", "reserve", "over"].map((kind) => h("span", {},
    s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, s("rect", { x: 1, y: 1, width: 14, height: 14, class: kind })),
    { reserve: `kept free (${Math.round(100 * state.reserve)} %)`, over: "beyond the memory" }[kind] || kind)));

  function draw() {
    const m = pick(state.models, model), c = pick(state.chips, chip);
    const r = sizes(m, { context: context.value, users: users.value, memory: c.memory, reserve: state.reserve,
                         kv: pick(state.formats, kv).bytes, weight: pick(state.formats, weight).bytes });
    picture.replaceChildren(bar(r, c.memory, state.reserve, picture.clientWidth || 600));
    table.show([["cache of one token", bytes(r.perToken)], ["cache of one user", bytes(r.perUser)],
                [`cache of ${integer(users.value)} ${users.value === 1 ? "user" : "users"}`, bytes(r.cache), "blue"],
                ["weights", bytes(r.weights)], ["users that fit", integer(r.fit), r.fit < users.value ? "orange" : "green"],
                ["cache = weights at a batch of", significant(r.overtakes)]]);
    let text = r.fit >= users.value ? `Fits: ${integer(r.fit)} such users would.` : r.room < 0
      ? `Does not fit: the weights alone need more than ${bytes(c.memory)} less the share kept free.`
      : `Does not fit: there is room for ${integer(r.fit)} of ${integer(users.value)} users.`;
    if (m.window && context.value > m.window) text += ` The window keeps only the last ${integer(m.window)} tokens of each.`;
    else if (context.value > m.positions) text += ` Beware: this model was trained up to ${integer(m.positions)} tokens.`;
    verdict.textContent = text;
    voice.say(`${bytes(r.cache)} of cache. ${text}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, model.row, chip.row, context.row, users.row, kv.row, weight.row),
    picture, legend, verdict, table.el, voice.el);
  draw();
  new ResizeObserver(draw).observe(picture);
}

const style = `
.weights { fill: var(--ochre); } .cache { fill: var(--blue); } .free { fill: var(--grid); } .reserve { fill: var(--line); }
.over { fill: var(--orange); } .limit { stroke: var(--ink); stroke-width: 2; fill: none; } .verdict { font-weight: 600; margin-top: 8px; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--soft); margin: 4px 0 0; }
.legend span { display: inline-flex; align-items: center; gap: 6px; } .legend svg { width: 16px; height: 16px; }
`;

export default { title: "Cache-size calculator", style, render };
