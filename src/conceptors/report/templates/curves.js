"use strict";
// Line charts that are drawn anew whenever something moves, with the looks of all other charts.
const curves = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 300, LEFT = 50, RIGHT = 14, TOP = 10, BOTTOM = 48;
  const SHAPES = { // around 0, 0
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0",
    "square": "M-3.5,-3.5h7v7h-7z",
    "triangle-up": "M0,-4.5L4.5,3.5H-4.5z",
    "diamond": "M0,-5L4,0L0,5L-4,0z",
    "triangle-down": "M0,4.5L4.5,-3.5H-4.5z",
    "cross": "M-1.5,-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    "triangle-right": "M4.5,0L-3.5,4.5V-4.5z",
  };

  function make(name, attributes, ...inside) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inside);
    return element;
  }
  const line = (x1, y1, x2, y2, colour) => make("line", { x1, y1, x2, y2, stroke: `var(--${colour})` });
  function text(x, y, words, anchor, more = {}) {
    const style = { "text-anchor": anchor, "font-size": 12, fill: "var(--muted)" };
    return make("text", { x, y, ...style, ...more }, words);
  }
  function marker(look, x, y, tip) {
    const shape = { d: SHAPES[look.shape], transform: `translate(${x},${y})`, fill: `var(--${look.colour})` };
    return make("path", shape, ...(tip ? [make("title", {}, tip)] : []));
  }
  const stroke = (look) => ({ fill: "none", stroke: `var(--${look.colour})`, "stroke-width": 2,
    "stroke-dasharray": look.dash.join(" ") });

  // A piece of a curve, for a table that says which is which.
  function key(look) {
    return make("svg", { class: "key", viewBox: "0 0 40 14", "aria-hidden": "true" },
      make("path", { d: "M0,7H40", ...stroke(look) }), marker(look, 20, 7));
  }

  // `x` and `y`: {from, to, title, ticks: [[value, text]]}; `lines`: [{name, look, points}], where
  // points are [x, y]; `at`: where a vertical line says where one is.
  function draw(place, label, x, y, lines, at = null) {
    const WIDTH = Math.max(300, Math.round(place.clientWidth)); // text keeps its size on phones
    const across = (v) => LEFT + (v - x.from) / (x.to - x.from) * (WIDTH - LEFT - RIGHT);
    const up = (v) => HEIGHT - BOTTOM - (v - y.from) / (y.to - y.from) * (HEIGHT - TOP - BOTTOM);
    const bottom = HEIGHT - BOTTOM;
    const svg = make("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
    for (const [value, words] of y.ticks) {
      svg.append(line(LEFT, up(value), WIDTH - RIGHT, up(value), "grid"), text(LEFT - 8, up(value) + 4, words, "end"));
    }
    for (const [value, words] of x.ticks) {
      svg.append(line(across(value), bottom, across(value), bottom + 5, "muted"), text(across(value), bottom + 18, words, "middle"));
    }
    svg.append(line(LEFT, bottom, WIDTH - RIGHT, bottom, "muted"));
    svg.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x.title, "middle"));
    svg.append(text(0, 0, y.title, "middle", { transform: `translate(12,${(TOP + bottom) / 2}) rotate(-90)` }));
    if (at !== null) svg.append(line(across(at), TOP, across(at), bottom, "muted"));
    lines.forEach(({ name, look, points }, k) => {
      const places = points.map(([u, v]) => [across(u).toFixed(1), up(v).toFixed(1)]);
      svg.append(make("path", { d: "M" + places.join("L"), ...stroke(look) }));
      const every = Math.max(1, Math.round(points.length / 6)); // and not all at the same place
      for (let i = Math.round(every * (k % 5) / 5); i < points.length; i += every) {
        svg.append(marker(look, ...places[i], `${name}: ${points[i][1].toFixed(3)}`));
      }
    });
    place.replaceChildren(svg);
  }

  return { draw, key };
})();
