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

  function setUpChart(svg) {
    const marks = [...svg.querySelectorAll(".tip")].map((el) => {
      const title = el.querySelector("title");
      const text = title.textContent;
      title.remove(); // or the browser would show it a second time
      return { el, text };
    });
    if (!marks.length) return;
    const tip = document.getElementById("tip");
    let current = -1, ring = null;

    function hide() {
      ring?.remove();
      ring = null;
      current = -1;
      tip.hidden = true;
    }
    function inside(el) { // where a mark lies, in the units of the chart
      const box = el.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / frame.width;
      return { x: (box.left - frame.left) * scale, y: (box.top - frame.top) * scale,
        width: box.width * scale, height: box.height * scale };
    }
    function show(k) {
      if (k < 0) return hide();
      if (k === current) return undefined;
      ring?.remove();
      current = k;
      ring = document.createElementNS(SVG, "rect");
      for (const [name, value] of Object.entries(inside(marks[k].el))) ring.setAttribute(name, value);
      ring.setAttribute("class", "ring");
      svg.append(ring);
      tip.textContent = marks[k].text;
      tip.hidden = false;
      place();
      return undefined;
    }
    function place() { // above the mark, or below it where there is no room
      if (current < 0) return;
      const box = marks[current].el.getBoundingClientRect(), frame = tip.getBoundingClientRect();
      const x = box.left + box.width / 2 - frame.width / 2;
      const above = box.top - frame.height - 8;
      tip.style.left = `${Math.max(6, Math.min(x, root.clientWidth - frame.width - 6))}px`;
      tip.style.top = `${above > 50 ? above : box.bottom + 8}px`;
    }
    function point(event) {
      let best = -1, least = 30;
      marks.forEach(({ el }, k) => {
        const b = el.getBoundingClientRect();
        const far = Math.hypot(Math.max(b.left - event.clientX, 0, event.clientX - b.right),
          Math.max(b.top - event.clientY, 0, event.clientY - b.bottom));
        if (far < least) [best, least] = [k, far];
      });
      show(best);
    }
    function vertical(sign) { // the nearest mark above (-1) or below (1)
      const middle = (k) => {
        const b = marks[k].el.getBoundingClientRect();
        return [b.left + b.width / 2, b.top + b.height / 2];
      };
      const [x, y] = middle(current);
      let best = current, least = Infinity;
      marks.forEach((_, k) => {
        const [u, v] = middle(k);
        const far = 4 * Math.abs(u - x) + Math.abs(v - y);
        if (sign * (v - y) > 1 && far < least) [best, least] = [k, far];
      });
      return best;
    }
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    addEventListener("scroll", place, { passive: true }); // focus may scroll, so the tip follows
    svg.setAttribute("tabindex", "0");
    svg.setAttribute("role", "application");
    svg.setAttribute("aria-roledescription", "chart, arrow keys read its values");
    svg.addEventListener("keydown", (event) => {
      const end = marks.length - 1;
      const places = {
        ArrowRight: () => Math.min(current + 1, end), ArrowLeft: () => Math.max(current - 1, 0),
        ArrowDown: () => (current < 0 ? 0 : vertical(1)),
        ArrowUp: () => (current < 0 ? 0 : vertical(-1)),
        Home: () => 0, End: () => end,
      };
      if (event.key === "Escape") return hide();
      if (!places[event.key] || event.ctrlKey || event.altKey || event.metaKey) return undefined;
      event.preventDefault();
      show(places[event.key]());
      say(marks[current].text);
      return undefined;
    });
  }

  // --- a hint where a table is wider than its place -----------------------------------------
  function setUpScroll(hint) {
    const table = hint.nextElementSibling;
    const check = () => { hint.hidden = table.scrollWidth <= table.clientWidth + 1; };
    new ResizeObserver(check).observe(table);
    check();
  }

  document.addEventListener("DOMContentLoaded", () => {
    setUpTheme();
    document.querySelectorAll("table.sortable").forEach(setUpSorting);
    document.querySelectorAll("svg.chart").forEach(setUpChart);
    document.querySelectorAll(".swipe").forEach(setUpScroll);
  });
})();
