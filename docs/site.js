// Formulas: arithmatex leaves them as text between \\( and \\) or \\[ and \\]; KaTeX is in the site.
function drawFormulas() {
  for (const node of document.querySelectorAll(".arithmatex")) {
    const words = node.textContent.trim();
    if (!/^\\[([]/.test(words)) continue;
    katex.render(words.slice(2, -2), node, { displayMode: words.startsWith("\\["), throwOnError: false });
  }
}

// A link to the offline studio that names a tab and its state gets a frame that shows them.
function openStudios() {
  for (const link of document.querySelectorAll("a.studio")) {
    const { tab, state } = link.dataset;
    link.hash = `${tab}?${btoa(state).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "")}`;
    link.target = "_blank";
    const frame = make("iframe", { class: `studio ${tab}`, src: link.href, loading: "lazy", title: `The studio: ${tab}` });
    link.parentNode.before(frame);
  }
}

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Keys and values while a text is written, token by token, with a KV cache and without.
function stepCaches() {
  for (const box of document.querySelectorAll(".cache-steps")) {
    const { tokens, bytes, model } = box.dataset;
    const words = tokens.split(" ");
    const written = { count: 1, computed: 1 };
    const cached = make("input", { type: "checkbox", checked: "" });
    const next = make("button", { type: "button", class: "md-button md-button--primary" }, "Next token");
    const again = make("button", { type: "button", class: "md-button" }, "Start again");
    const cells = make("div", { class: "cells" });
    const counts = make("p", { "aria-live": "polite" });
    const show = () => {
      cells.replaceChildren(...words.map((word, n) => {
        const computed = n === written.count - 1 || !cached.checked;
        const state = n >= written.count ? "later" : computed ? "computed" : "read";
        return make("div", { class: state }, make("b", {}, "k"), make("b", {}, "v"), make("span", {}, n < written.count ? word : "…"));
      }));
      const kept = cached.checked ? written.count * bytes : 0;
      counts.textContent = `${written.count} ${written.count > 1 ? "tokens" : "token"}: ${written.computed} pairs of k and v computed, ` +
        `${kept / 2 ** 20} MiB kept in ${model}.`;
      next.disabled = written.count === words.length;
    };
    const start = () => {
      written.count = written.computed = 1;
      show();
    };
    next.addEventListener("click", () => {
      written.count += 1;
      written.computed += cached.checked ? 1 : written.count;
      show();
    });
    again.addEventListener("click", start);
    cached.addEventListener("change", start);
    box.append(make("div", { class: "controls" }, next, again, make("label", {}, cached, " KV cache")), cells, counts,
      make("p", { class: "legend" }, make("i", { class: "computed" }), " computed for this token ", make("i", { class: "read" }), " read from the cache"));
    start();
  }
}

function drawPage() {
  drawFormulas();
  openStudios();
  stepCaches();
}
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawPage);
else drawPage();
