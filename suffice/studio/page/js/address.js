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

function addressNow() {
  const [id, state] = location.hash.slice(1).split("?");
  return { id, state: state ? unpackedState(state) : null };
}

const addressOf = (id) => (SHARED[id] ? `#${id}?${packed(SHARED[id].read())}` : `#${id}`);

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

function copyLink() {
  const open = TABS.find((one) => !byId(`panel-${one.id}`).hidden);
  history.replaceState(null, "", addressOf(open.id));
  return location.href;
}
