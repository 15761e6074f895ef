// Last of all: the tabs this page has.

startTabs();
window.studio = {
  answers: LOCAL,
  reach: (drawn, query) => receptive(drawn, query, 6).map((seen) => [...seen]),
};
