// Formulas: arithmatex leaves them as text between \\( and \\) or \\[ and \\]; KaTeX is in the site.
function drawFormulas() {
  for (const node of document.querySelectorAll(".arithmatex")) {
    const words = node.textContent.trim();
    if (!/^\\[([]/.test(words)) continue;
    katex.render(words.slice(2, -2), node, { displayMode: words.startsWith("\\["), throwOnError: false });
  }
}
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", drawFormulas);
else drawFormulas();
