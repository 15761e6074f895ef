// What is edited stands in the address behind #tab?, so that a link shows the same page again.

const SHARED = {}; // by tab: read() gives plain data, write(data) takes it

const packed = (data) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(data))))
    .replace(/\+/g, "-")
    .replace(/\//g, "_")
    .replace(/=+$/, "");

function unpackedState(words) {
  try {
    const letters = atob(words.replace(/-/g, "+").replace(/_/g, "/"));
    const data = JSON.parse(new TextDecoder().decode(Uint8Array.from(letters, (one) => one.charCodeAt(0))));
    return data && typeof data === "object" ? data : null;
  } catch {
    return null; // a link that was cut
  }
}

// The pictures of each tab that can be shown alone.
const PICTURES = { calculator: ["fits", "cache"], patterns: ["flow", "pattern"], steps: ["left", "right"], compare: ["tradeoff", "curves"] };

// #tab?state&picture=name
function addressNow() {
  const [id, rest = ""] = location.hash.slice(1).split("?");
  const [state, name] = rest.split("&picture=");
  const picture = (PICTURES[id] || []).includes(name) ? name : "";
  return { id, picture, state: state ? unpackedState(state) : null };
}

const PICTURE = addressNow().picture; // the one that this page shows alone; "" is the whole page

function addressOf(id, picture = PICTURE) {
  const state = SHARED[id] ? packed(SHARED[id].read()) : "";
  const ending = picture ? `&picture=${picture}` : "";
  return state || ending ? `#${id}?${state}${ending}` : `#${id}`;
}

/* Marks a node as a part of pictures, names with spaces between. A page that shows one picture alone
   hides what is no part of it. */
function partOf(names, node) {
  node.dataset.picture = names;
  node.classList.toggle("sole", names.split(" ").includes(PICTURE));
  return node;
}

// Of plain data that anyone may have written, the fields that are known and of their kind.
function known(model, data) {
  const fields = Object.entries(data || {}).filter(([name, value]) => name in model && typeof value === typeof model[name] && (typeof value !== "number" || Number.isFinite(value)));
  return Object.fromEntries(fields);
}

const remember = later((id) => {
  if (byId(`panel-${id}`).hidden) return;
  history.replaceState(null, "", addressOf(id));
}, 250);

// Declares that a tab's data is part of the address; takes what the address holds now.
function sharedState(id, read, write) {
  SHARED[id] = { read, write };
  const { id: open, state } = addressNow();
  if (open === id && state) write(state);
}

const openedTab = () => TABS.find((one) => !byId(`panel-${one.id}`).hidden).id;

const linkTo = (picture) => location.href.split("#")[0] + addressOf(openedTab(), picture);

function copyLink() {
  history.replaceState(null, "", addressOf(openedTab()));
  return location.href;
}
