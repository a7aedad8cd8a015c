"""What is wrong with the layout of a page in a browser: texts over each other, text cut at the edge of a box, lines."""

from playwright.sync_api import Page

_OVERLAPS = """() => {
  const seen = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest(".skip, .hidden, script, svg, option")) continue;
    if (!parent.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true})) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = {left: rect.left, right: rect.right, top: rect.top, bottom: rect.bottom};
      // What its box hides is not drawn.
      for (let holder = parent; holder; holder = holder.parentElement) {
        if (getComputedStyle(holder).overflowX === "visible") continue;
        const bounds = holder.getBoundingClientRect();
        box.left = Math.max(box.left, bounds.left);
        box.right = Math.min(box.right, bounds.right);
        box.top = Math.max(box.top, bounds.top);
        box.bottom = Math.min(box.bottom, bounds.bottom);
      }
      if (box.right - box.left > 1 && box.bottom - box.top > 1) seen.push({text: node.data.trim(), node, box});
    }
  }
  // Line boxes of neighbouring lines may touch; a pixel or two of their heights is no overlap.
  const meets = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4;
  const found = [];
  seen.forEach((a, k) => seen.slice(k + 1).forEach((b) => {
    if (a.node !== b.node && meets(a.box, b.box)) found.push(`${a.text.slice(0, 40)} | ${b.text.slice(0, 40)}`);
  }));
  return [...new Set(found)];
}"""
_CUT = """() => {
  const found = [];
  for (const box of document.querySelectorAll(".scroll")) {
    if (box.scrollWidth > box.clientWidth) {
      found.push(`${box.getAttribute("aria-label")}: ${box.scrollWidth} of ${box.clientWidth} px`);
    }
  }
  for (const cell of document.querySelectorAll("td, th, .figure dd")) {
    if (!cell.clientWidth || cell.scrollWidth <= cell.clientWidth + 1) continue;
    found.push(`cell ${cell.textContent.trim().slice(0, 60)}`);
  }
  return found;
}"""
_LABELS = """() => {
  const found = [];
  for (const chart of document.querySelectorAll("figure.chart svg[role=img]")) {
    if (!chart.checkVisibility()) continue;
    const texts = [...chart.querySelectorAll("text")];
    const labels = texts.map((label) => [label.textContent, label.getBoundingClientRect()]);
    labels.forEach(([text, box], k) => {
      if (box.height < 9) found.push(`${text}: ${box.height.toFixed(1)} px high`);
      if (box.left < 0 || box.right > innerWidth) found.push(`${text} leaves the screen`);
      for (const [other, at] of labels.slice(k + 1)) {
        if (Math.min(box.right, at.right) - Math.max(box.left, at.left) > 1
          && Math.min(box.bottom, at.bottom) - Math.max(box.top, at.top) > 2) found.push(`${text} | ${other}`);
      }
    });
  }
  return found;
}"""
_LINES = """() => new Set([...document.querySelectorAll("header.top > *, header.top nav li")]
  .map((one) => one.getBoundingClientRect())
  .map((box) => Math.round((box.top + box.bottom) / 2 / 8))).size"""


def overlapping_texts(page: Page) -> list[str]:
    """Return the pairs of visible texts that are drawn over each other."""
    found: list[str] = page.evaluate(_OVERLAPS)
    return found


def cut_tables(page: Page) -> list[str]:
    """Return the tables that are wider than their box, and the cells whose text leaves them."""
    found: list[str] = page.evaluate(_CUT)
    return found


def unreadable_labels(page: Page) -> list[str]:
    """Return the labels of charts that are tiny, leave the screen or lie over each other."""
    found: list[str] = page.evaluate(_LABELS)
    return found


def lines_of_the_header(page: Page) -> int:
    """Return on how many lines the brand, the links and the name stand."""
    lines: int = page.evaluate(_LINES)
    return lines
