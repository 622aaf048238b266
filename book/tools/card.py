"""book/static/card.png, the picture of link previews, drawn with the browser that the tests use.

    CHROMIUM=/usr/bin/chromium python book/tools/card.py

Run it by hand after a change of the drawing; nothing else makes it, because fonts differ from machine to machine.
"""

from __future__ import annotations

import os

import repo
import sharing

WIDTH, HEIGHT = sharing.CARD_SIZE
STYLE = f"""
  body {{ margin: 0; width: {WIDTH}px; height: {HEIGHT}px; background: #10283b; color: #f4f6f8; overflow: hidden;
    font-family: "Liberation Sans", Helvetica, Arial, sans-serif; position: relative; }}
  main {{ position: absolute; left: 72px; top: 64px; width: 430px; }}
  h1 {{ font-size: 104px; margin: 0; letter-spacing: -2px; }}
  p {{ font-size: 38px; line-height: 1.3; margin: 12px 0 0; color: #c9d6e0; }}
  footer {{ position: absolute; left: 72px; bottom: 56px; font-size: 27px; color: #f9b58c; }}
  svg {{ position: absolute; right: 0; bottom: 0; }}
"""
POINTS = [(130, 494), (240, 402), (350, 322), (470, 258), (600, 240)]
GRID = "M60 500H740 M60 400H740 M120 300H740 M230 200H740 M160 540V290 M300 540V150 M440 540V150 M580 540V150"
PAGE = f"""<!doctype html><meta charset="utf-8"><style>{STYLE}</style>
<main><h1>Lumen</h1><p>LLM inference, taken apart and measured on a real model.</p></main>
<footer>Predict · measure · explain</footer>
<svg width="760" height="600" viewBox="0 0 760 600" fill="none" stroke-linecap="round" stroke-linejoin="round">
  <path d="{GRID}" stroke="#1d3f58" stroke-width="2"/>
  <path d="M60 520 420 220H740" stroke="#f4f6f8" stroke-width="9"/>
  <path d="M420 220V540" stroke="#5ab4ee" stroke-width="3" stroke-dasharray="4 12"/>
  {"".join(f'<circle cx="{x}" cy="{y}" r="15" fill="#f58a4b"/>' for x, y in POINTS)}
</svg>"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or "/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_content(PAGE)
        page.screenshot(path=repo.ROOT / "book/static/card.png")
        browser.close()


if __name__ == "__main__":
    main()
