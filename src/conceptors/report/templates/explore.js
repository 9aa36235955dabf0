"use strict";
// The page on which one moves an aperture: of digits and their NOT, OR and AND, or of layers.
document.addEventListener("DOMContentLoaded", () => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const slider = byId("aperture"), exact = byId("exact");
  const isDigits = data.kind === "digits";
  const dial = isDigits ? "aperture" : "aperture factor";
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  let parts = []; // the conceptors shown: {name, look, values: λ, and for digits n, vectors}
  let sample = 0;

  // --- what there is -------------------------------------------------------------------------
  const moments = isDigits ? readMoments() : [];
  function readMoments() { // lower triangles to matrices
    const n = data.side ** 2, numbers = new Float64Array(bytes(data.moments).buffer);
    let next = 0;
    return data.names.map(() => {
      const matrix = new Float64Array(n * n);
      for (let i = 0; i < n; i++) {
        for (let j = 0; j <= i; j++) matrix[i * n + j] = matrix[j * n + i] = numbers[next++];
      }
      return matrix;
    });
  }
  const pixels = isDigits ? bytes(data.images) : []; // [classes, samples, pixels]
  function image(k) {
    const n = data.side ** 2, start = (k * data.samples + sample) * n;
    return Float64Array.from(pixels.subarray(start, start + n), (v) => v / data.white);
  }
  function layer({ dim, odds }) { // odds of 0 are not in the file
    const values = new Float64Array(dim);
    values.set(new Float32Array(bytes(odds).buffer));
    return { values };
  }

  function choose() {
    const boxes = [...byId("choice").querySelectorAll("input:checked")].map((box) => Number(box.value));
    const named = (name, look, curve) => ({ name, look, ...curve });
    const look = (k) => data.looks[k % data.looks.length];
    if (!isDigits) {
      parts = boxes.map((k) => named(data.names[k], look(k), layer(data.layers[k])));
      return;
    }
    parts = boxes.map((k) => named(data.names[k], look(k), algebra.eigen(moments[k])));
    if (boxes.length < 2) return;
    const chosen = boxes.map((k) => moments[k]), names = boxes.map((k) => data.names[k]);
    const title = (word) => (boxes.length > 3 ? `${word} of all` : names.join(` ${word} `));
    const [forOr, forAnd] = [["circle", [1, 0]], ["square", [6, 2.5]]].map(([shape, dash]) => ({ colour: "ink", shape, dash }));
    parts.push(named(title("OR"), forOr, algebra.eigen(chosen.reduce(algebra.or))));
    parts.push(named(title("AND"), forAnd, algebra.eigen(chosen.reduce(algebra.and))));
  }

  // --- what is shown -------------------------------------------------------------------------
  const aperture = () => (exact.value && exact.checkValidity() ? Number(exact.value) : 10 ** Number(slider.value));
  const isFree = () => document.querySelector("#side input:checked").value === "free";
  const shown = (part) => (!isFree() ? part.name : part.name.includes(" ") ? `NOT (${part.name})` : `NOT ${part.name}`);
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const unit = { from: 0, to: 1, ticks: [0, 0.25, 0.5, 0.75, 1].map((v) => [v, String(v)]) };

  // Singular values, descending, of what is looked at: C, or NOT C.
  function spectrum(part, alpha) {
    const values = algebra.singular(part.values, alpha);
    return isFree() ? values.map((s) => 1 - s).reverse() : values;
  }
  function cell(kind, content, attributes = {}) {
    const element = document.createElement(kind);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(content);
    return element;
  }
  function row(head, ...cells) {
    const element = document.createElement("tr");
    element.append(cell("th", head, { scope: "row" }), ...cells);
    return element;
  }
  function headRow(...names) {
    const element = document.createElement("tr");
    element.append(...names.map((name) => cell("th", name, { scope: "col" })));
    return element;
  }

  function showQuotas(alpha) {
    byId("none").hidden = parts.length > 0;
    byId("quota-table").tBodies[0].replaceChildren(...parts.map((part) => {
      const quota = algebra.mean(algebra.singular(part.values, alpha));
      const who = cell("span", curves.key(part.look), { class: "who" });
      who.append(cell("bdi", part.name, { class: "name", title: part.name }));
      const cells = [quota, 1 - quota].map((share) => cell("td", percent(share), { class: "num" }));
      return row(who, ...cells);
    }));
    const [from, to] = [Number(slider.min), Number(slider.max)], ticks = [];
    for (let v = from; v <= to; v++) ticks.push([v, String(Number((10 ** v).toPrecision(1)))]);
    const places = Array.from({ length: 51 }, (_, k) => from + (to - from) * k / 50);
    const lines = parts.map((part) => {
      // the same wherever the dial stands, and slow for hundreds of wide layers
      part.quotas ??= places.map((v) => algebra.mean(algebra.singular(part.values, 10 ** v)));
      const points = part.quotas.map((q, k) => [places[k], isFree() ? 1 - q : q]);
      return { name: shown(part), look: part.look, points };
    });
    const label = `Quota against the aperture. ${describe(alpha)}. ${quotas(alpha)}`;
    const title = isFree() ? "quota of NOT C" : "quota";
    curves.draw(byId("quota-chart"), label, { from, to, ticks, title: dial }, { ...unit, title }, lines, Math.log10(alpha));
  }

  function showSpectra(alpha) {
    const longest = Math.max(1, ...parts.map((part) => part.values.length));
    const x = isDigits
      ? { from: 1, to: data.side ** 2, title: "direction", ticks: [1, 16, 32, 48, 64].map((v) => [v, String(v)]) }
      : { ...unit, title: "share of the directions" };
    const lines = parts.map((part) => {
      const values = spectrum(part, alpha), last = values.length - 1;
      const shownPlaces = [...new Set(Array.from({ length: 161 }, (_, k) => Math.round(last * k / 160)))];
      return { name: shown(part), look: part.look,
        points: shownPlaces.map((k) => [isDigits ? k + 1 : (k + 1) / values.length, values[k]]) };
    });
    const label = `Singular values at ${describe(alpha)}, in numbers below: ${parts.map(shown).join(", ")}`;
    curves.draw(byId("spectrum-chart"), label, x, { ...unit, title: `singular value of ${isFree() ? "NOT C" : "C"}` }, lines);
    const places = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096].filter((k) => k <= longest);
    const table = byId("spectrum-table");
    table.tHead.replaceChildren(headRow("Conceptor", ...places.map((k) => `No. ${k}`)));
    table.tBodies[0].replaceChildren(...parts.map((part) => {
      const values = spectrum(part, alpha);
      const words = (k) => (k <= values.length ? values[k - 1].toFixed(4) : "–");
      return row(shown(part), ...places.map((k) => cell("td", words(k), { class: "num" })));
    }));
  }

  function picture(x, label) {
    const canvas = cell("canvas", "", { width: data.side, height: data.side, role: "img", "aria-label": label });
    const context = canvas.getContext("2d"), drawn = context.createImageData(data.side, data.side);
    x.forEach((v, k) => drawn.data.set([v, v, v, 1].map((c) => 255 * Math.min(1, Math.max(0, c))), 4 * k));
    context.putImageData(drawn, 0, 0);
    return canvas;
  }
  function showDigits(alpha) {
    const table = byId("digit-table");
    const spectra = parts.map((part) => algebra.singular(part.values, alpha));
    table.tHead.replaceChildren(headRow("Class", "x", ...parts.map(shown)));
    table.tBodies[0].replaceChildren(...data.names.map((name, k) => {
      const x = image(k), energy = x.reduce((sum, v) => sum + v * v, 0) || 1;
      const cells = parts.map((part, i) => {
        let y = algebra.project(part, spectra[i], x);
        if (isFree()) y = y.map((v, j) => x[j] - v);
        const share = percent(y.reduce((sum, v, j) => sum + v * x[j], 0) / energy);
        const projected = cell("td", picture(y, `digit ${name} projected by ${shown(part)}: ${share} of it`));
        projected.append(share);
        return projected;
      });
      const original = cell("td", picture(x, `digit ${name}, image ${sample + 1} of ${data.samples}`));
      original.append("\u00a0");
      return row(name, original, ...cells);
    }));
  }

  // --- what moves it -------------------------------------------------------------------------
  const describe = (alpha) => `${dial} ${Number(alpha.toPrecision(3))}`;
  const quotas = (alpha) => parts.map((part) => `${shown(part)}: ${percent(algebra.mean(spectrum(part, alpha)))}`).join(", ");
  let later = 0;
  function show() {
    const alpha = aperture();
    slider.setAttribute("aria-valuetext", describe(alpha));
    showQuotas(alpha);
    showSpectra(alpha);
    if (isDigits) showDigits(alpha);
    clearTimeout(later); // one announcement when the hand rests, not one per step
    later = setTimeout(() => { byId("live").textContent = `${describe(alpha)}. ${quotas(alpha) || "no conceptor is selected"}`; }, 400);
  }
  function fromSlider() {
    exact.value = Number((10 ** Number(slider.value)).toPrecision(3));
    show();
  }
  slider.addEventListener("input", fromSlider);
  exact.addEventListener("input", () => {
    if (!exact.value || !exact.checkValidity()) return; // still being typed
    slider.value = Math.log10(aperture());
    show();
  });
  byId("choice").addEventListener("change", () => { choose(); show(); });
  byId("side").addEventListener("change", show);
  byId("others")?.addEventListener("click", () => { sample = (sample + 1) % data.samples; show(); });
  choose();
  fromSlider();
});
