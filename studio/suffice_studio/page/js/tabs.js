// The tabs: arrow keys move between them, the address says which one is open.

const TABS = [];

function tab(id, title, build) {
  TABS.push({ id, title, build, built: false });
}

function openTab(id, focus) {
  const chosen = TABS.find((one) => one.id === id) || TABS[0];
  for (const one of TABS) {
    const open = one === chosen;
    const button = byId(`tab-${one.id}`);
    button.setAttribute("aria-selected", String(open));
    button.tabIndex = open ? 0 : -1;
    byId(`panel-${one.id}`).hidden = !open;
    if (open && focus) button.focus();
  }
  if (!chosen.built) {
    chosen.built = true;
    // after the first paint, so that the page is there at once
    requestAnimationFrame(() => setTimeout(() => buildTab(chosen), 0));
  }
  if (addressNow().id !== chosen.id) history.replaceState(null, "", chosen.built && SHARED[chosen.id] ? addressOf(chosen.id) : `#${chosen.id}`);
}

function buildTab(one) {
  const panel = byId(`panel-${one.id}`);
  replace(panel);
  one.build(panel);
}

// The address was changed by hand or by going back.
function followAddress() {
  const { id, state, picture } = addressNow();
  if (picture !== PICTURE) location.reload();
  const one = TABS.find((other) => other.id === id);
  if (!one) return;
  openTab(id, false);
  if (one.built && state && SHARED[id] && packed(state) !== packed(SHARED[id].read())) buildTab(one);
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (!step) return;
  event.preventDefault();
  const now = TABS.findIndex((one) => byId(`tab-${one.id}`) === document.activeElement);
  const wanted = Number.isFinite(step) ? (now + step + TABS.length) % TABS.length : step > 0 ? -1 : 0;
  openTab(TABS.at(wanted).id, true);
}

// The page inside another one: one picture, and a way to the whole page.
function showPictureAlone() {
  document.body.classList.add("alone");
  const whole_ = element("a", { class: "sole whole", href: "#", target: "_blank", rel: "noopener", on: { click: () => { whole_.href = linkTo(""); } } }, "Open in suffice studio");
  byId("panels").append(whole_);
}

function startTabs() {
  const bar = byId("tabs");
  for (const one of TABS) {
    bar.append(
      element(
        "button",
        {
          id: `tab-${one.id}`,
          role: "tab",
          type: "button",
          "aria-controls": `panel-${one.id}`,
          on: { click: () => openTab(one.id, false) },
        },
        one.title,
      ),
    );
    byId("panels").append(
      element("section", {
        id: `panel-${one.id}`,
        role: "tabpanel",
        class: "panel",
        "aria-labelledby": `tab-${one.id}`,
        hidden: true,
      }),
    );
  }
  bar.addEventListener("keydown", moveTab);
  byId("link").append(copyButton(copyLink, "Copy link"));
  if (PICTURE) showPictureAlone();
  addEventListener("hashchange", followAddress);
  openTab(addressNow().id, false);
}
