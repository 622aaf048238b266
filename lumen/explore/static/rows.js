// Tokens in one pass against one: sixteen times the arithmetic is not sixteen times the time.
import { announcer, h, significant, slider } from "./kit.js";

// What the bars show for one measured pass: both against one token's pass, and the share of the arithmetic's growth
// that the clock saw.
export function compare([rows, ms, times]) {
  return { rows, ms, times, share: times / rows, each: ms / rows };
}

function render({ state, el }) {
  const all = state.passes.map(compare);
  const rows = slider({ label: "Tokens in one pass of the model", values: all.map((p) => p.rows), value: state.start, oninput: draw });
  const say = announcer();
  const bar = (name, tone) => {
    const fill = h("span", { class: `fill ${tone}` }), value = h("span", { class: "amount" });
    return { el: h("div", { class: "bar" }, h("span", { class: "what" }, name), h("span", { class: "track" }, fill), value),
             show(share, times) { fill.style.width = `${100 * Math.min(1, share)}%`; value.textContent = `${significant(times)} ×`; } };
  };
  const work = bar("arithmetic", "blue"), time = bar("time, measured", "orange"), verdict = h("p", { class: "verdict" });
  function draw() {
    const now = all.find((p) => p.rows === rows.value), each = significant(now.each, 3);
    work.show(1 / Math.max(1, now.share), now.rows);
    time.show(now.share / Math.max(1, now.share), now.times);
    verdict.textContent = now.rows === 1 ? `One token alone: ${each} ms. Every token of an answer is computed alone.`
      : `${now.rows} tokens together: ${significant(now.ms)} ms, ${each} ms each. The tokens of a prompt are computed together.`;
    say.say(`${now.rows} tokens: ${significant(now.times)} times the time of one.`);
  }
  el.append(h("h3", { "aria-level": 2 }, "Sixteen times the work. How many times the wait?"),
    h("p", { class: "lead" }, `SmolLM2-135M on ${state.where}. Move the slider; the bars are multiples of one token's pass.`),
    rows.row, h("div", { class: "bars" }, work.el, time.el), verdict, say.el);
  draw();
}

const style = `
.bars { margin: 10px 0 0; } .bar { display: grid; grid-template-columns: 8.2em 1fr 4.2em; gap: 10px; align-items: center; margin-top: 6px; }
.what { font-size: 14px; color: var(--soft); } .amount { font-weight: 600; font-variant-numeric: tabular-nums; }
.track { background: var(--grid); border-radius: 5px; height: 20px; overflow: hidden; }
.fill { display: block; height: 100%; border-radius: 5px; transition: width .15s; } .fill.blue { background: var(--blue); } .fill.orange { background: var(--orange); }
@media (prefers-reduced-motion: reduce) { .fill { transition: none; } }
@media (max-width: 480px) { .bar { grid-template-columns: 1fr 4.2em; } .what { grid-column: 1 / -1; margin-bottom: -6px; } }
`;

export default { title: "Tokens in one pass", style, render };
