// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The JavaScript of the attention page. It inserts labels, which can be any text, as text and never as markup.

#include <string_view>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::string_view kPageScript = R"js(
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const masks = data.masks.map(bytes);
  for (const layer of data.layers) for (const head of layer.heads) head.queries = data.texts[layer.queries].length;
  const ramp = bytes(data.colors);
  const top = data.bits === 16 ? 65534 : 254;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = { layer: data.layer, head: data.head, pinned: -1, hovered: -1, scale: "query" };

  // --- Numbers -------------------------------------------------------------------------------------------------------

  const layerNow = () => data.layers[state.layer];
  const headNow = () => layerNow().heads[state.head];
  const rowsOf = (layer) => data.texts[layer.queries].length;
  const columnsOf = (layer) => data.texts[layer.keys].length;

  const codesOf = (head) => {
    if (!head.codes) {
      const raw = bytes(head.weights);
      head.codes = data.bits === 16 ? new Uint16Array(raw.buffer) : raw;
    }
    return head.codes;
  };
  // Codes are square roots, so that small weights keep their digits.
  const weightAt = (head, at) => {
    const code = codesOf(head)[at];
    return code > top ? NaN : (code / top) ** 2;
  };
  const isVisible = (head, at) => (masks[head.mask][at >> 3] >> (at & 7) & 1) === 1;
  const number = (w) => {
    if (Number.isNaN(w)) return "not a number";
    const digits = data.bits === 16 ? 4 : 3;
    return w > 0 && w < 0.1 ** digits ? "below " + (0.1 ** digits).toFixed(digits) : w.toFixed(digits);
  };
  const largestOf = (head, query) => {
    if (!head.rows) {
      const codes = codesOf(head), columns = codes.length / head.queries;
      head.rows = Array.from({ length: head.queries }, (_, q) => codes.subarray(q * columns, (q + 1) * columns)
        .reduce((most, code) => code > top ? most : Math.max(most, (code / top) ** 2), 0));
    }
    return head.rows[query];
  };
  // The weight that has the last color.
  const scaleOf = (head, query) =>
    (state.scale === "query" ? largestOf(head, query) : state.scale === "head" ? head.largest : 1) || 1;

  // --- Text ----------------------------------------------------------------------------------------------------------

  // Blanks and control characters are tokens too and must be visible.
  const shown = (text) => text === "" ? "\u2205" : text
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "\u2421").replace(/^ +| +$/g, (blanks) => "\u2423".repeat(blanks.length));
  const shortened = (text, longest) => {
    const letters = Array.from(shown(text).slice(0, 4 * longest));
    return letters.length > longest ? letters.slice(0, longest - 1).join("") + "\u2026" : letters.join("");
  };
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  // Isolates text of any writing direction from its surroundings.
  const isolated = (text) => make("bdi", {}, text);
  // The token with its position, which distinguishes equal tokens.
  const tokenAt = (text, place) => make("span", {},
    make("span", { class: "clip" }, "\u201c", isolated(shortened(text[place], 200)), "\u201d"),
    make("span", { class: "place" }, text[place] === String(place) ? "" : String(place)));
  const queryAt = (place) => tokenAt(data.texts[layerNow().queries], place);
  const keyAt = (place) => tokenAt(data.texts[layerNow().keys], place);

  // --- Colors --------------------------------------------------------------------------------------------------------

  const rgb = (t) => {
    const step = Math.round(255 * Math.min(Math.max(dark.matches ? 1 - t : t, 0), 1));
    return [ramp[3 * step], ramp[3 * step + 1], ramp[3 * step + 2]];
  };
  const css = (color) => `rgb(${color.join(" ")})`;
  const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const nanColor = () => [1, 3, 5].map((i) => parseInt(theme("--nan").slice(i, i + 2), 16));
  const colorOf = (w, head, query) => Number.isNaN(w) ? nanColor() : rgb(w / scaleOf(head, query));
  const inkOn = ([r, g, b]) => 0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff";

  const hatching = (context) => {
    const size = 5, tile = make("canvas", { width: size, height: size }), pen = tile.getContext("2d");
    pen.fillStyle = theme("--hidden");
    pen.fillRect(0, 0, size, size);
    pen.strokeStyle = theme("--hatch");
    pen.beginPath();
    for (const shift of [-size, 0, size]) {
      pen.moveTo(shift, size);
      pen.lineTo(shift + size, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  };

  // Fills a rectangle of a canvas, in device pixels. If several cells share a pixel, it shows the largest weight; hidden
  // cells leave the hatching visible.
  const paint = (context, layer, head, x, y, width, height) => {
    const rows = rowsOf(layer), columns = columnsOf(layer);
    const w = Math.min(columns, width), h = Math.min(rows, height);
    if (w === 0 || h === 0) return;
    const best = new Float32Array(w * h).fill(-1);
    for (let q = 0; q < rows; ++q) {
      const line = Math.floor(q * h / rows) * w, scale = scaleOf(head, q);
      for (let k = 0; k < columns; ++k) {
        const at = q * columns + k;
        if (!isVisible(head, at)) continue;
        const to = line + Math.floor(k * w / columns), value = weightAt(head, at) / scale;
        if (!(best[to] >= value) && !Number.isNaN(best[to])) best[to] = value;
      }
    }
    const cells = make("canvas", { width: w, height: h }), pen = cells.getContext("2d");
    const image = pen.createImageData(w, h), nan = nanColor();
    for (let i = 0; i < best.length; ++i) {
      if (best[i] < 0) continue;
      image.data.set(Number.isNaN(best[i]) ? nan : rgb(best[i]), 4 * i);
      image.data[4 * i + 3] = 255;
    }
    pen.putImageData(image, 0, 0);
    context.fillStyle = hatching(context);
    context.fillRect(x, y, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, x, y, width, height);
  };

  // --- Tokens --------------------------------------------------------------------------------------------------------

  const isOneText = () => layerNow().queries === layerNow().keys;
  const activeQuery = () => state.hovered >= 0 ? state.hovered : state.pinned;
  const chips = (id) => byId(id).querySelectorAll(".token");

  const buildTokens = () => {
    const fill = (id, texts, role, title) => {
      byId(id).replaceChildren(...texts.map((text, i) => make("span", { class: "token", role, "data-index": i },
        isolated(shortened(text, 200)), make("small"))));
      if (role === "option") chips(id).forEach((chip, i) => { chip.tabIndex = i === 0 ? 0 : -1; });
      byId(id).dataset.title = title;
    };
    const layer = layerNow();
    byId("keys").hidden = isOneText();
    fill("queries", data.texts[layer.queries], "option", isOneText() ? "" : "queries");
    fill("keys", isOneText() ? [] : data.texts[layer.keys], "listitem", "keys");
  };

  const shadeTokens = () => {
    const layer = layerNow(), head = headNow(), columns = columnsOf(layer), query = activeQuery();
    chips("queries").forEach((chip, i) => {
      chip.classList.toggle("query", i === query);
      chip.setAttribute("aria-selected", i === state.pinned);
    });
    chips(isOneText() ? "queries" : "keys").forEach((chip, k) => {
      const at = query * columns + k, off = query < 0;
      const visible = !off && isVisible(head, at), w = visible ? weightAt(head, at) : 0;
      const color = visible ? colorOf(w, head, query) : null;
      chip.classList.toggle("hatched", !off && !visible);
      chip.style.background = color ? css(color) : "";
      chip.style.color = color ? inkOn(color) : "";
      if (off) delete chip.dataset.weight; else chip.dataset.weight = visible ? number(w) : "hidden";
      chip.lastChild.textContent = !visible ? "" : Number.isNaN(w) ? "NaN" : w >= 0.005 ? Math.round(100 * w) : "";
    });
    byId("status").replaceChildren(...describe(query));
    byId("ramp-end").textContent = state.scale === "query" && query < 0 ? "the largest" : number(scaleOf(head, query));
    showCross();
  };

  const strongest = (query, count) => {
    const head = headNow(), columns = columnsOf(layerNow()), found = [];
    for (let k = 0; k < columns; ++k) {
      if (isVisible(head, query * columns + k)) found.push([weightAt(head, query * columns + k), k]);
    }
    return { visible: found.length, list: found.sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, count) };
  };
  const describe = (query) => {
    if (query < 0) {
      return ["Point at a token to see where it looks, or go through them with the arrow keys. " +
        "Click or Enter holds it, Escape lets it go. Numbers are percent."];
    }
    const { visible, list } = strongest(query, 3), text = [queryAt(query)];
    if (visible === 0) return [...text, " sees no key: its output is 0."];
    text.push(` sees ${visible} of ${columnsOf(layerNow())} keys, most of all `);
    list.forEach(([w, k], i) => text.push(i ? ", " : "", keyAt(k), " " + number(w)));
    return [...text, "."];
  };

  const choose = (query) => {
    state.hovered = query;
    shadeTokens();
  };
  const pin = (query) => {
    state.pinned = state.pinned === query ? -1 : query;
    state.hovered = -1;
    shadeTokens();
  };

  // --- Tooltip -------------------------------------------------------------------------------------------------------

  const tooltip = byId("tooltip");
  const showTooltip = (event, children) => {
    tooltip.replaceChildren(...children);
    tooltip.style.display = "block";
    const box = tooltip.getBoundingClientRect(), gap = 14;
    const x = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
    const y = event.clientY + gap + box.height > innerHeight ? event.clientY - gap - box.height : event.clientY + gap;
    tooltip.style.left = Math.max(4, x) + "px";
    tooltip.style.top = Math.max(4, y) + "px";
  };
  const hideTooltip = () => { tooltip.style.display = "none"; };
  const pairText = (query, key) => {
    const at = query * columnsOf(layerNow()) + key;
    return [queryAt(query), " \u2192 ", keyAt(key), ": ",
      isVisible(headNow(), at) ? number(weightAt(headNow(), at)) : "hidden by the mask"];
  };
  const rowTable = (query) => {
    const { visible, list } = strongest(query, 6), table = make("table");
    for (const [w, k] of list) {
      const swatch = make("i");
      swatch.style.background = css(colorOf(w, headNow(), query));
      const cells = [swatch, number(w), keyAt(k)].map((content) => make("td", {}, content));
      table.append(make("tr", {}, ...cells));
    }
    return [queryAt(query), visible === 0 ? " sees no key" : " looks at", table];
  };

  // --- One head ------------------------------------------------------------------------------------------------------

  const map = byId("map");
  let box = { left: 0, top: 0, width: 0, height: 0 };  // of the cells, in CSS pixels

  const drawMap = () => {
    const layer = layerNow(), head = headNow(), rows = rowsOf(layer), columns = columnsOf(layer);
    const density = devicePixelRatio || 1, font = 11, room = byId("detail-map").clientWidth;
    const context = map.getContext("2d"), face = `${font}px ${getComputedStyle(document.body).fontFamily}`;
    context.font = face;
    const label = (text) => shortened(text, 16);
    const longest = (texts) => texts.reduce((most, text) => Math.max(most, context.measureText(label(text)).width), 0);
    const left = Math.ceil(longest(data.texts[layer.queries])) + 8, rise = longest(data.texts[layer.keys]);
    const above = Math.ceil(rise * 0.866) + 12, overhang = Math.ceil(rise * 0.5) + 4;
    const cell = Math.min(28, (room - left - overhang) / Math.max(columns, 1), 860 / Math.max(rows, 1));
    const whole = cell >= 6 ? Math.floor(cell) : cell;
    const extent = (count) => Math.max(1, Math.round(whole * count));
    box = { left, top: above, width: extent(columns), height: extent(rows) };
    const width = box.left + box.width + overhang, height = box.top + box.height + 2;
    map.width = Math.round(width * density);
    map.height = Math.round(height * density);
    map.style.width = width + "px";
    map.style.height = height + "px";
    const pixels = (x) => Math.round(x * density);
    paint(context, layer, head, pixels(box.left), pixels(box.top), pixels(box.width), pixels(box.height));
    context.scale(density, density);
    if (whole >= 10) {
      context.fillStyle = theme("--panel");
      for (let k = 1; k < columns; ++k) context.fillRect(box.left + k * whole - 0.5, box.top, 1, box.height);
      for (let q = 1; q < rows; ++q) context.fillRect(box.left, box.top + q * whole - 0.5, box.width, 1);
    }
    context.font = face;
    context.fillStyle = theme("--quiet");
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((font + 1) / whole));
    for (let q = 0; q < rows; q += every) {
      context.textAlign = "right";
      context.fillText(label(data.texts[layer.queries][q]), box.left - 5, box.top + (q + 0.5) * whole);
    }
    for (let k = 0; k < columns; k += every) {
      context.save();
      context.translate(box.left + (k + 0.5) * whole, box.top - 5);
      context.rotate(-Math.PI / 3);
      context.textAlign = "left";
      context.fillText(label(data.texts[layer.keys][k]), 0, 0);
      context.restore();
    }
    map.setAttribute("aria-label",
      `Attention weights of ${layer.name}, head ${state.head}: ${rows} queries by ${columns} keys`);
  };

  const showCross = (key = -1) => {
    const query = activeQuery(), layer = layerNow();
    const place = (id, on, x, y, width, height) => {
      const style = byId(id).style, frame = { left: x - 1, top: y - 1, width: width + 2, height: height + 2 };
      style.display = on ? "block" : "none";
      for (const [name, value] of Object.entries(frame)) style[name] = value + "px";
    };
    const high = box.height / Math.max(rowsOf(layer), 1), wide = box.width / Math.max(columnsOf(layer), 1);
    place("cross-row", query >= 0, box.left, box.top + query * high, box.width, high);
    place("cross-column", key >= 0, box.left + key * wide, box.top, wide, box.height);
  };

  const cellAt = (event) => {
    const area = map.getBoundingClientRect(), layer = layerNow();
    const query = Math.floor((event.clientY - area.top - box.top) / box.height * rowsOf(layer));
    const key = Math.floor((event.clientX - area.left - box.left) / box.width * columnsOf(layer));
    return query >= 0 && query < rowsOf(layer) && key >= 0 && key < columnsOf(layer) ? { query, key } : null;
  };
  map.addEventListener("pointermove", (event) => {
    const cell = cellAt(event);
    if (!cell) return leave();
    choose(cell.query);
    showCross(cell.key);
    showTooltip(event, pairText(cell.query, cell.key));
  });
  map.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) pin(cell.query);
  });
  const leave = () => {
    hideTooltip();
    choose(-1);
  };
  map.addEventListener("pointerleave", leave);

  // --- All heads -----------------------------------------------------------------------------------------------------

  // Common parts of the names are omitted: "0", "1" for "layers.0.self_attn", "layers.1.self_attn".
  const shortNames = () => {
    const parts = data.layers.map((layer) => layer.name.split("."));
    const least = Math.min(...parts.map((p) => p.length)) - 1;
    const shared = (at) => parts.every((p) => p.at(at) === parts[0].at(at));
    let before = 0, after = 0;
    if (parts.length > 1) {
      while (before < least && shared(before)) ++before;
      while (after < least - before && shared(-1 - after)) ++after;
    }
    const stem = [...parts[0].slice(0, before), "*", ...parts[0].slice(parts[0].length - after)].join(".");
    const names = parts.map((p) => p.slice(before, p.length - after).join("."));
    return { stem: stem === "*" ? "" : `, ${stem}`, names };
  };
  const percent = (x) => x === null ? "undefined" : x.toFixed(2);

  const buildGrid = () => {
    const grid = byId("grid"), { stem, names } = shortNames();
    const heads = Math.max(...data.layers.map((layer) => layer.heads.length));
    byId("stem").textContent = stem;
    grid.style.gridTemplateColumns = `fit-content(11em) repeat(${heads}, minmax(34px, 76px))`;
    grid.append(make("div", { role: "row" }, make("span", { class: "corner", role: "columnheader" }, "layer"),
      ...Array.from({ length: heads }, (_, h) => make("span", { role: "columnheader" }, String(h)))));
    data.layers.forEach((layer, l) => {
      const header = make("span", { role: "rowheader", title: layer.name }, names[l] || layer.name || "attention");
      const row = make("div", { role: "row" }, header);
      layer.heads.forEach((head, h) => {
        const bar = make("span");
        bar.style.width = `${100 * (head.entropy ?? 0)}%`;
        const entropy = percent(head.entropy), name = `${layer.name}, head ${h}, entropy ${entropy}`;
        const button = make("button", {
          class: "head", "data-layer": l, "data-head": h, "data-entropy": entropy, title: name, "aria-label": name,
        }, make("canvas"), make("span", { class: "entropy" }, bar));
        button.addEventListener("click", () => select(l, h));
        row.append(make("div", { role: "gridcell", style: `grid-column: ${h + 2}` }, button));
      });
      grid.append(row);
    });
  };
  const drawGrid = () => {
    for (const button of document.querySelectorAll(".head")) {
      const canvas = button.firstChild, layer = data.layers[button.dataset.layer];
      const size = Math.round(canvas.clientWidth * (devicePixelRatio || 1));
      canvas.width = canvas.height = size;
      paint(canvas.getContext("2d"), layer, layer.heads[button.dataset.head], 0, 0, size, size);
    }
  };

  const buttonOf = (l, h) => document.querySelector(`.head[data-layer="${l}"][data-head="${h}"]`);
  const select = (l, h) => {
    const before = layerNow();
    state.layer = l;
    state.head = h;
    const layer = layerNow(), head = headNow();
    if (before.queries !== layer.queries || before.keys !== layer.keys || !byId("queries").firstChild) {
      state.pinned = state.hovered = -1;
      buildTokens();
    }
    for (const button of document.querySelectorAll(".head")) {
      const on = button === buttonOf(l, h);
      button.setAttribute("aria-pressed", on);
      button.tabIndex = on ? 0 : -1;
    }
    byId("detail-title").textContent = `${layer.name ? layer.name + ", head" : "Head"} ${h}`;
    byId("detail-entropy").textContent = head.entropy === null
      ? "No query sees more than one key, so there is no entropy."
      : `Entropy ${percent(head.entropy)} of log(visible keys), the mean over queries that see two keys or more. ` +
        `Largest weight ${number(head.largest)}.`;
    drawMap();
    shadeTokens();
  };
  const step = (by) => {
    const all = data.layers.flatMap((layer, l) => layer.heads.map((_, h) => [l, h]));
    const now = all.findIndex(([l, h]) => l === state.layer && h === state.head);
    select(...all[(now + by + all.length) % all.length]);
  };

  // --- Keys and pointer ----------------------------------------------------------------------------------------------

  byId("grid").addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const l = Math.min(Math.max(state.layer + move[0], 0), data.layers.length - 1);
    const h = Math.min(Math.max(state.head + move[1], 0), data.layers[l].heads.length - 1);
    select(l, h);
    buttonOf(l, h).focus();
  });
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));

  const queries = byId("queries");
  const tokenOf = (event) => event.target.closest?.(".token");
  const indexOf = (event) => tokenOf(event) ? Number(tokenOf(event).dataset.index) : -1;
  queries.addEventListener("pointermove", (event) => {
    const index = indexOf(event);
    if (index < 0) return leave();
    if (state.pinned < 0) {
      choose(index);
      showTooltip(event, rowTable(index));
    } else {
      showTooltip(event, isOneText() ? pairText(state.pinned, index) : rowTable(index));
    }
  });
  queries.addEventListener("pointerleave", leave);
  queries.addEventListener("click", (event) => { if (indexOf(event) >= 0) pin(indexOf(event)); });
  queries.addEventListener("focusin", (event) => {
    if (indexOf(event) >= 0 && event.target.matches(":focus-visible")) choose(indexOf(event));
  });
  queries.addEventListener("focusout", () => choose(-1));
  queries.addEventListener("keydown", (event) => {
    const index = indexOf(event), all = chips("queries");
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      pin(index);
    } else if (to !== undefined) {
      event.preventDefault();
      if (!all[to]) return;
      all[index].tabIndex = -1;
      all[to].tabIndex = 0;
      all[to].focus();
    }
  });
  byId("keys").addEventListener("pointermove", (event) => {
    if (activeQuery() >= 0 && indexOf(event) >= 0) showTooltip(event, pairText(activeQuery(), indexOf(event)));
  });
  byId("keys").addEventListener("pointerleave", hideTooltip);
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    state.pinned = -1;
    leave();
  });

  // --- Start ---------------------------------------------------------------------------------------------------------

  const redraw = () => {
    const stops = Array.from({ length: 17 }, (_, i) => css(rgb(i / 16)));
    byId("ramp").style.background = `linear-gradient(to right, ${stops})`;
    drawGrid();
    select(state.layer, state.head);
  };
  for (const input of document.querySelectorAll("input[name=scale]")) {
    input.addEventListener("change", () => {
      state.scale = input.value;
      redraw();
    });
  }
  dark.addEventListener("change", redraw);
  addEventListener("resize", redraw);

  byId("title").textContent = document.title = data.title;
  const some = (counts, noun) =>
    `${[...new Set(counts)].join(" and ")} ${noun}${counts.every((count) => count === 1) ? "" : "s"}`;
  const heads = data.layers.map((layer) => layer.heads.length), lengths = data.texts.map((text) => text.length);
  byId("summary").textContent =
    `${some([data.layers.length], "attention layer")} of ${some(heads, "head")}, ${some(lengths, "token")}. ` +
    `Weights w are kept in ${data.bits} bits: to within \u221Aw \u00B7 ${(1 / top).toPrecision(1)}.`;
  byId("legend-nan").hidden = !data.layers.some((layer) => layer.heads.some((head) => head.not_finite > 0));
  buildGrid();
  redraw();
  document.documentElement.dataset.ready = "yes";
})();
)js";

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
