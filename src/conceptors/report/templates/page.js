"use strict";
(() => {
  const root = document.documentElement;
  const KEY = "conceptors-theme";
  const system = matchMedia("(prefers-color-scheme: dark)");

  // --- theme: the system's, until the reader chooses ---------------------------------------
  function stored(value) {
    try { // pages from disk may have no storage
      if (value) localStorage.setItem(KEY, value);
      return localStorage.getItem(KEY);
    } catch { return null; }
  }
  const chosen = stored();
  if (chosen === "dark" || chosen === "light") root.dataset.theme = chosen;
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);

  function setUpTheme() {
    const button = document.getElementById("theme");
    const show = () => {
      button.setAttribute("aria-pressed", String(isDark()));
      button.title = isDark() ? "Switch to the light theme" : "Switch to the dark theme";
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      stored(root.dataset.theme);
      show();
    });
    system.addEventListener("change", show);
    button.hidden = false;
    show();
  }

  const say = (text) => { document.getElementById("live").textContent = text; };

  // --- sorting -----------------------------------------------------------------------------
  function setUpSorting(table) {
    const body = table.tBodies[0];
    for (const button of table.querySelectorAll("th button")) {
      const head = button.closest("th");
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const other = { ascending: "descending", descending: "ascending" };
        const order = other[now] || head.dataset.first;
        const sign = order === "ascending" ? 1 : -1;
        const numeric = head.dataset.kind === "number";
        const value = (row) => row.cells[head.cellIndex].dataset.v;
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (x === undefined || y === undefined) return (x === undefined) - (y === undefined);
          return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y));
        });
        body.append(...rows);
        for (const th of table.querySelectorAll("th[aria-sort]")) th.setAttribute("aria-sort", "none");
        head.setAttribute("aria-sort", order);
        say(`Sorted by ${button.textContent.trim()}, ${order}`);
      });
    }
  }

  // --- values of charts: under the pointer, or by arrow keys -------------------------------
  const SVG = "http://www.w3.org/2000/svg";

  function gridModel(group) { // many cells in one image; their values lie in an attribute
    const values = JSON.parse(group.dataset.values);
    const [left, top, width, height] = group.dataset.box.split(" ").map(Number);
    const [rowWords, columnWords, unit] = JSON.parse(group.dataset.words);
    const [w, h] = [width / values[0].length, height / values.length];
    const at = (s, i) => {
      const value = values[s]?.[i];
      if (value === undefined || value === null) return null;
      const future = values.length === values[0].length && unit === " %" && i > s;
      const text = `${rowWords} ${s + 1}, ${columnWords} ${i + 1}: ${value}${unit}`;
      return { s, i, x: left + i * w, y: top + s * h, w, h,
        text: future ? `${text} (not learned yet)` : text };
    };
    const find = (x, y) => at(Math.floor((y - top) / h), Math.floor((x - left) / w));
    return { at, find };
  }

  function markModel(marks) { // elements with titles
    const number = (el, name) => Number(el.getAttribute(name));
    const table = new Map();
    const all = marks.map((el) => {
      const point = el.tagName === "circle";
      const title = el.querySelector("title");
      const text = title.textContent;
      title.remove(); // or the browser would show it a second time
      const mark = { s: Number(el.dataset.s), i: Number(el.dataset.i), text, point,
        x: number(el, point ? "cx" : "x"), y: number(el, point ? "cy" : "y"),
        w: point ? 0 : number(el, "width"), h: point ? 0 : number(el, "height") };
      table.set(`${mark.s} ${mark.i}`, mark);
      return mark;
    });
    const far = (m, x, y) => Math.hypot(
      Math.max(m.x - x, 0, x - m.x - m.w), Math.max(m.y - y, 0, y - m.y - m.h));
    const find = (x, y, reach) => {
      let best = null, least = reach;
      for (const mark of all) {
        const d = far(mark, x, y);
        if (d < least) [best, least] = [mark, d];
      }
      return best;
    };
    return { at: (s, i) => table.get(`${s} ${i}`) ?? null, find };
  }

  function setUpChart(svg) {
    const group = svg.querySelector("[data-values]");
    const marks = [...svg.querySelectorAll("[data-s]")];
    if (!group && !marks.length) return;
    const model = group ? gridModel(group) : markModel(marks);
    const tip = document.getElementById("tip");
    let current = null, ring = null;

    function hide() {
      ring?.remove();
      ring = current = null;
      tip.hidden = true;
    }
    function show(mark) {
      if (!mark) return hide();
      if (mark === current) return undefined;
      ring?.remove();
      current = mark;
      ring = document.createElementNS(SVG, mark.point ? "circle" : "rect");
      const place = mark.point ? { cx: mark.x, cy: mark.y, r: 6 }
        : { x: mark.x, y: mark.y, width: mark.w, height: mark.h };
      for (const [name, value] of Object.entries(place)) ring.setAttribute(name, value);
      ring.setAttribute("class", "ring");
      svg.append(ring);
      tip.textContent = mark.text;
      tip.hidden = false;
      const box = ring.getBoundingClientRect(), own = tip.getBoundingClientRect();
      const x = box.left + box.width / 2 - own.width / 2;
      const above = box.top - own.height - 8;
      tip.style.left = `${Math.max(6, Math.min(x, root.clientWidth - own.width - 6))}px`;
      tip.style.top = `${above > 50 ? above : box.bottom + 8}px`;
      return undefined;
    }
    function point(event) {
      const inverse = svg.getScreenCTM()?.inverse();
      if (!inverse) return;
      const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(inverse);
      show(model.find(p.x, p.y, 36 * inverse.a));
    }
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    addEventListener("scroll", hide, { passive: true });

    if (svg.classList.contains("strip")) return; // its values are in the table anyway
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "chart, arrow keys read its values");
    const last = (make) => { let k = 0; while (make(k + 1)) k += 1; return k; };
    svg.addEventListener("keydown", (event) => {
      const { s, i } = current ?? { s: 0, i: -1 };
      const places = {
        ArrowRight: () => [s, i + 1], ArrowLeft: () => [s, i - 1],
        ArrowDown: () => [s + 1, Math.max(i, 0)], ArrowUp: () => [s - 1, Math.max(i, 0)],
        Home: () => [s, 0], End: () => [s, last((k) => model.at(s, k))],
      };
      if (event.key === "Escape") return hide();
      if (!places[event.key] || event.ctrlKey || event.altKey || event.metaKey) return undefined;
      event.preventDefault();
      const mark = model.at(...places[event.key]());
      if (mark) { show(mark); say(mark.text); }
      return undefined;
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    setUpTheme();
    document.querySelectorAll("table.sortable").forEach(setUpSorting);
    document.querySelectorAll("svg.chart").forEach(setUpChart);
  });
})();
