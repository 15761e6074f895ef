// Last of all: the tabs this page has.

startTabs();
window.studio = {
  modelOfConfig,
  knownModels,
  configWarning,
  calculate,
  articleClaims,
  pattern: patternDrawing,
  reach: (drawn, query) => receptive(drawn, query, 6).map((seen) => [...seen]),
};
