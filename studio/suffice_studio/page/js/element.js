// Elements of the page, made from JavaScript. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else if (name in node && !(node instanceof SVGElement) && typeof value !== "string") {
      node[name] = value;
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

const element = (tag, attributes, ...children) =>
  fill(document.createElement(tag), attributes, children);

const drawing = (tag, attributes, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const replace = (node, ...children) => {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child || child === 0));
  return node;
};

const byId = (id) => document.getElementById(id);
const FACTS = JSON.parse(byId("facts").textContent);
const CARRIES = "answers" in FACTS; // the page is an export and asks no program

function later(work, milliseconds) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...words), milliseconds);
  };
}

// Work that is asked for often and done once a frame.
function eachFrame(work) {
  let asked = 0;
  return () => {
    asked ||= requestAnimationFrame(() => {
      asked = 0;
      work();
    });
  };
}

// Tells a screen reader what has changed, once it has stopped changing.
const announce = later((words) => { byId("status").textContent = words; }, 500);

// A colour as the page has it now, light or dark.
const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const SERIES = 8;
const series = (number) => `var(--series-${(number % SERIES) + 1})`;

function download(name, content, type) {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function copyButton(words, name = "Copy") {
  const button = element("button", {
    type: "button",
    class: "quiet",
    on: {
      click: async () => {
        const content = words();
        try {
          await navigator.clipboard.writeText(content);
          button.textContent = "Copied";
        } catch {
          button.textContent = name === "Copy" ? "Select it and copy" : "It is in the address";
        }
        setTimeout(() => { button.textContent = name; }, 1500);
      },
    },
  }, name);
  return button;
}
