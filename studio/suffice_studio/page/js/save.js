// Pictures as files, links and frames: SVG with its colours written out, PNG of it, CSV of the numbers.

const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "font-size", "font-weight", "text-anchor", "opacity", "paint-order"];
const CHART_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif";

function svgFile(svg, title) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg.querySelectorAll("*"), copy.querySelectorAll("*")];
  from.forEach((node, n) => {
    if (node.tagName === "title") return;
    const style = getComputedStyle(node);
    for (const name of STYLED) {
      const value = style.getPropertyValue(name);
      if (value && value !== "none" && value !== "normal") to[n].setAttribute(name, value);
      else if (name === "fill" && value === "none") to[n].setAttribute("fill", "none");
    }
    to[n].removeAttribute("class");
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.setAttribute("font-family", CHART_FONT);
  copy.removeAttribute("class");
  copy.prepend(drawing("rect", { width, height, fill: colour("paper") }));
  if (title) copy.prepend(drawing("title", {}, title));
  return `${new XMLSerializer().serializeToString(copy)}\n`;
}

async function pngFile(text, sharp = 2) {
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  const image = new Image();
  try {
    await new Promise((done, failed) => {
      image.onload = done;
      image.onerror = () => failed(new Error("the picture could not be drawn."));
      image.src = url;
    });
    const canvas = element("canvas", {});
    canvas.width = image.width * sharp;
    canvas.height = image.height * sharp;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}

const csvCell = (value) => {
  const words = value === null || value === undefined ? "" : String(value);
  return /[",\n\r]/.test(words) ? `"${words.replace(/"/g, '""')}"` : words;
};
const csvFile = (rows) => `${rows.map((row) => row.map(csvCell).join(",")).join("\r\n")}\r\n`;

/* The menu of a picture or a table, saved in files called name(). svg() gives its element or a text,
   rows() the numbers with a head; either may be absent. picture: its name in addresses, for what can
   be shown alone. */
function saveTools(name, { svg, rows, label = name, picture }) {
  const file = typeof name === "function" ? name : () => name;
  const text = () => {
    const drawn = svg();
    return typeof drawn === "string" ? drawn : svgFile(drawn, label);
  };
  const words = element("textarea", { class: "snippet", rows: "3", readonly: "", hidden: true });
  const share = (kind, content) => () => {
    words.value = content();
    words.setAttribute("aria-label", kind);
    words.hidden = false;
    words.focus();
    words.select();
    navigator.clipboard?.writeText(words.value).then(() => announce(`${kind}: copied`), () => announce(`${kind}: selected, copy it`));
  };
  const button = (kind, title, act) =>
    element("button", { type: "button", class: "quiet", "aria-label": title, on: { click: act } }, kind);
  const node = element("div", { class: "save", role: "group", "aria-label": `Save or share ${label}` },
    element("span", { "aria-hidden": "true" }, "Save"),
    svg && button("SVG", `Save ${label} as SVG`, () => download(`${file()}.svg`, text(), "image/svg+xml")),
    svg && button("PNG", `Save ${label} as PNG`, async () => download(`${file()}.png`, await pngFile(text()), "image/png")),
    rows && button("CSV", `Save ${label} as CSV`, () => download(`${file()}.csv`, csvFile(rows()), "text/csv")),
    picture && button("Link", `Link to ${label}`, share(`Link to ${label}`, () => linkTo(picture))),
    picture && button("Embed", `Embed ${label}`, share(`Embed ${label}`, () => frameOf(picture, label))),
    words);
  return node;
}

// A picture inside another page. The program that serves this one lets nobody frame it; its export does.
function frameOf(picture, label) {
  const parts = [...document.querySelectorAll(`.panel:not([hidden]) [data-picture~="${picture}"]`)];
  const height = parts.reduce((sum, part) => sum + part.offsetHeight, 60);
  const address = CARRIES ? linkTo(picture) : `index.html${addressOf(openedTab(), picture)}`;
  const note = CARRIES ? "" : "<!-- index.html: suffice studio --export FOLDER -->\n";
  const frame = element("iframe", { src: address, title: label, width: "100%", height: String(height), loading: "lazy" });
  frame.style.border = "0";
  return note + frame.outerHTML;
}

// What an error made old is greyed out and cannot be used.
function stale(node, error) {
  node.classList.toggle("stale", Boolean(error));
  node.inert = Boolean(error);
}
