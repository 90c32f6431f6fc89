// SPDX-License-Identifier: MIT
#pragma once
#include <heed/core/hide_macros.hpp>

/// @file
/// The style sheet of the attention page.

#include <string_view>

#include <heed/core/config.hpp>

HEED_NAMESPACE_BEGIN

namespace detail {

inline constexpr std::string_view kPageStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --panel: #ffffff; --line: #dcdcd8; --text: #20211f; --quiet: #62645f; --accent: #0b57d0;
  --hidden: #ececea; --hatch: #c3c3bf; --nan: #e6007e;
  --shadow: 0 1px 2px rgb(0 0 0 / .06), 0 4px 16px rgb(0 0 0 / .06);
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #141517; --panel: #1c1e21; --line: #34373c; --text: #e8e9ea; --quiet: #a0a4aa; --accent: #8ab4f8;
    --hidden: #2a2c30; --hatch: #4a4d53; --nan: #ff5cb0;
    --shadow: 0 1px 2px rgb(0 0 0 / .4), 0 4px 16px rgb(0 0 0 / .4);
  }
}
* { box-sizing: border-box; }
[hidden] { display: none !important; }
body {
  margin: 0 auto; padding: 24px clamp(12px, 2.5vw, 36px) 48px; max-width: 1560px;
  background: var(--page); color: var(--text); font: 15px/1.45 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
h1 { margin: 0 0 2px; font-size: 1.45rem; overflow-wrap: anywhere; }
h2 { margin: 0 0 8px; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: 0; }
.quiet { color: var(--quiet); font-size: .86rem; }
.below { margin-top: 8px; }
section {
  margin-top: 16px; padding: 14px 16px; background: var(--panel); border: 1px solid var(--line); border-radius: 10px;
}
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.hatched {
  background: repeating-linear-gradient(135deg, var(--hatch) 0 1px, transparent 1px 4px), var(--hidden) !important;
}

#legend { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 22px; margin-top: 12px; font-size: .86rem; }
#legend > * { display: flex; align-items: center; gap: 7px; }
#legend label { display: inline-flex; align-items: center; gap: 4px; cursor: pointer; }
#legend input { margin: 0; accent-color: var(--accent); }
.ramp { width: 150px; height: 13px; border-radius: 3px; border: 1px solid var(--line); }
.swatch { width: 15px; height: 15px; border-radius: 3px; border: 1px solid var(--line); }

.swatch.nan { background: var(--nan); }

.tokens { display: flex; flex-wrap: wrap; gap: 4px 3px; max-height: 46vh; overflow: auto; padding: 2px; }
.tokens + .tokens { margin-top: 12px; padding-top: 12px; border-top: 1px dashed var(--line); }
.tokens::before {
  content: attr(data-title); align-self: center; margin-right: 8px; color: var(--quiet); font-size: .8rem;
}
.tokens[data-title=""]::before { display: none; }
.token {
  display: inline-flex; flex-direction: column; align-items: center; min-width: 1.75em; max-width: 13em;
  padding: 2px 5px 0; border-radius: 5px; border: 1px solid var(--line); cursor: default; line-height: 1.3;
}
#queries .token { cursor: pointer; }
.token bdi { max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: pre; }
.token small { min-height: 1.3em; font-size: .68rem; font-variant-numeric: tabular-nums; opacity: .85; }
.token.query { box-shadow: 0 0 0 2px var(--accent); }
.token.hatched { color: var(--quiet); }
#status { min-height: 1.45em; margin-top: 8px; overflow-wrap: anywhere; }

#views { display: flex; flex-wrap: wrap; gap: 16px; align-items: flex-start; margin-top: 16px; }
#views > section { flex: 1 1 440px; min-width: 0; margin-top: 0; }
#grid { display: grid; gap: 5px; justify-content: start; overflow-x: auto; padding: 2px; }
#grid [role=row] { display: contents; }
#grid [role=rowheader], #grid [role=columnheader], #grid .corner {
  align-self: center; color: var(--quiet); font-size: .76rem; font-weight: 400; max-width: 11em;
  overflow-wrap: break-word;
}
#grid [role=columnheader] { text-align: center; }
#grid [role=rowheader] { padding-right: 4px; text-align: right; font-variant-numeric: tabular-nums; }
.head {
  display: block; width: 100%; padding: 2px; border: 1px solid var(--line); border-radius: 6px; background: none;
  color: inherit; font: inherit; cursor: pointer; text-align: left;
}
.head:hover { border-color: var(--quiet); }
.head[aria-pressed=true] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
.head canvas { display: block; width: 100%; aspect-ratio: 1; border-radius: 4px; }
.entropy {
  display: block; height: 3px; margin: 3px 1px 1px; border-radius: 2px; background: var(--line); overflow: hidden;
}
.entropy span { display: block; height: 100%; background: var(--quiet); }

#detail-head { display: flex; justify-content: space-between; align-items: baseline; gap: 12px; }
#detail-head div { flex: none; }
#detail-head button {
  padding: 1px 9px; border: 1px solid var(--line); border-radius: 6px; background: none; color: inherit; font: inherit;
  cursor: pointer;
}
#detail-map { position: relative; margin-top: 10px; overflow: hidden; }
#detail-map canvas { display: block; }
.cross { position: absolute; display: none; border: 1px solid var(--accent); pointer-events: none; }
#tooltip {
  position: fixed; z-index: 9; display: none; max-width: min(360px, 90vw); padding: 7px 10px; border-radius: 7px;
  background: var(--panel); border: 1px solid var(--line); box-shadow: var(--shadow); font-size: .86rem;
  pointer-events: none; overflow-wrap: anywhere;
}
#tooltip table { border-collapse: collapse; }
#tooltip td { padding: 0 10px 0 0; font-variant-numeric: tabular-nums; vertical-align: top; }
#tooltip i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; border: 1px solid var(--line); }
.place { margin-left: 3px; color: var(--quiet); font-size: .8em; }
.clip {
  display: inline-block; max-width: 230px; overflow: hidden; text-overflow: ellipsis; white-space: pre;
  vertical-align: bottom;
}
)css";

inline constexpr std::string_view kPageBody = R"html(
<header>
  <h1 id="title"></h1>
  <p class="quiet" id="summary"></p>
  <div id="legend">
    <div><span>weight 0</span><span class="ramp" id="ramp"></span><span id="ramp-end"></span></div>
    <div><span class="swatch hatched"></span><span>hidden by the mask</span></div>
    <div id="legend-nan" hidden><span class="swatch nan"></span><span>not a number</span></div>
    <div role="radiogroup" aria-label="Color scale"><span class="quiet">colors up to</span>
      <label><input type="radio" name="scale" value="query" checked>each query&#8217;s largest weight</label>
      <label><input type="radio" name="scale" value="head">the head&#8217;s</label>
      <label><input type="radio" name="scale" value="one">1</label></div>
  </div>
</header>
<main>
  <section aria-labelledby="tokens-title">
    <h2 id="tokens-title">Where a token looks</h2>
    <div class="tokens" id="queries" role="listbox" aria-label="Query tokens"></div>
    <div class="tokens" id="keys" role="list" aria-label="Key tokens" hidden></div>
    <p class="quiet" id="status" role="status" aria-live="polite"></p>
  </section>
  <div id="views">
    <section aria-labelledby="grid-title">
      <h2 id="grid-title">All heads</h2>
      <div id="grid" role="grid" aria-labelledby="grid-title"></div>
      <p class="quiet below">A row for each layer<span id="stem"></span>. The bar under a map is its entropy: empty
        looks at one key, full looks at all visible keys alike. Arrow keys choose a head.</p>
    </section>
    <section aria-labelledby="detail-title" id="detail">
      <div id="detail-head"><h2 id="detail-title"></h2>
        <div><button id="previous" aria-label="Previous head">&#8249;</button>
          <button id="next" aria-label="Next head">&#8250;</button></div></div>
      <p class="quiet" id="detail-entropy"></p>
      <div id="detail-map"><canvas id="map" role="img"></canvas>
        <div class="cross" id="cross-row"></div><div class="cross" id="cross-column"></div></div>
    </section>
  </div>
</main>
<div id="tooltip" role="tooltip"></div>
<noscript>This page draws attention weights with JavaScript, which is switched off.</noscript>
)html";

}  // namespace detail

HEED_NAMESPACE_END

#include <heed/core/restore_macros.hpp>
