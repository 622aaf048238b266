// Heads or latents, layers that share, context and format: bytes and users, beside published models.
import { h, s, slider, toggle, stats, announcer, integer, bytes } from "./kit.js";

// The same sums as cache_shape.py: numbers of a token in a layer, and what a model's layers hold.
export function stored({ scheme, heads, width, rank, rope }) {
  return scheme === "heads" ? 2 * heads * width : rank + rope;
}

// layers: [count, numbers, window or null]. Bytes of a first token and of a user of `context`, users in `memory`.
export function holds({ layers, context, each, memory }) {
  const of = (tokens) => layers.reduce((sum, [count, numbers, window]) =>
    sum + count * numbers * (window == null ? tokens : Math.min(tokens, window)), 0) * each;
  return { token: of(1), user: of(context), users: Math.floor(memory / of(context)) };
}

function bars(rows, width) {
  const tall = 22, sizes = rows.map((r) => r.user);
  const low = Math.log10(Math.min(...sizes)) - 0.15, high = Math.log10(Math.max(...sizes));
  const px = (b) => Math.max(3, ((Math.log10(b) - low) / (high - low)) * (width - 190));
  const said = rows.map((r) => `${r.name} ${bytes(r.user)}`).join(", ");
  return s("svg", { viewBox: `0 0 ${width} ${rows.length * tall}`, style: `height:${rows.length * tall}px`, role: "img",
    "aria-label": `Cache of one user, largest first: ${said}` },
    rows.flatMap((r, i) => [
      s("text", { x: 112, y: i * tall + 15, "text-anchor": "end", class: r.own ? "own" : "soft" }, r.name),
      s("rect", { x: 118, y: i * tall + 3, width: px(r.user), height: tall - 6, rx: 3, class: r.own ? "mine" : "theirs" }),
      s("text", { x: 124 + px(r.user), y: i * tall + 15, class: r.own ? "own" : "" }, bytes(r.user)),
    ]));
}

function render({ state, el }) {
  const oninput = () => draw();
  const make = (name, label, format) => slider({ label, values: state.scales[name], value: state.start[name], format, oninput });
  const scheme = toggle({ label: "A layer stores", options: [["heads", "heads of keys and values"], ["latent", "one latent"]],
                          value: "heads", oninput });
  const format = toggle({ label: "A number", options: state.formats.map((f) => [f.name, f.label]), value: "bf16", oninput });
  const heads = make("heads", "Heads that are stored"), width = make("width", "Width of a head");
  const rank = make("rank", "Rank of the latent"), rope = make("rope", "Rotary key beside it");
  const layers = make("layers", "Layers"), sharing = make("sharing", "Layers that read one cache");
  const context = make("context", "Tokens of context");
  const picture = h("div", {}), table = stats(4), verdict = h("p", { class: "verdict" }), voice = announcer();

  function draw() {
    const latent = scheme.value === "latent";
    for (const one of [heads, width]) one.row.style.display = latent ? "none" : "";
    for (const one of [rank, rope]) one.row.style.display = latent ? "" : "none";
    const each = state.formats.find((f) => f.name === format.value).bytes;
    const numbers = stored({ scheme: scheme.value, heads: heads.value, width: width.value, rank: rank.value, rope: rope.value });
    const common = { context: context.value, each, memory: state.memory };
    const mine = holds({ ...common, layers: [[Math.ceil(layers.value / sharing.value), numbers, null]] });
    const rows = [...state.models.map((m) => ({ name: m.name, ...holds({ ...common, layers: m.layers }) })),
                  { name: "yours", own: true, ...mine }].sort((a, b) => b.user - a.user);
    picture.replaceChildren(bars(rows, picture.clientWidth || 600));
    table.show([["numbers a token and layer", integer(numbers)], ["bytes a token", bytes(mine.token), "blue"],
                ["bytes a user", bytes(mine.user), "blue"],
                [`users in ${Math.round(state.memory / 1e9)} GB`, integer(mine.users), mine.users ? "green" : "orange"]]);
    const larger = rows.filter((r) => !r.own && r.user > mine.user).length;
    verdict.textContent = `Of ${state.models.length} published models ${larger} keep more for such a user.`;
    voice.say(`${bytes(mine.user)} a user. ${verdict.textContent}`);
  }
  el.append(h("h3", {}, state.title), h("p", { class: "lead" }, state.lead),
    h("div", { class: "controls" }, scheme.row, format.row, heads.row, width.row, rank.row, rope.row, layers.row,
      sharing.row, context.row), table.el, verdict, picture, voice.el);
  draw();
  let seen = 0;
  new ResizeObserver(() => { if (picture.clientWidth !== seen) { seen = picture.clientWidth; draw(); } }).observe(picture);
}

const style = `
.theirs { fill: var(--line); } .mine { fill: var(--orange); } svg text.own { font-weight: 700; fill: var(--orange); }
.verdict { font-weight: 600; margin: 12px 0 8px; }
`;

export default { title: "Cache-shape explorer", style, render };
