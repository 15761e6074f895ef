// Of several answers on their way, only the last one asked for is used.
function latest(use, refuse) {
  let asked = 0;
  return async (name, request) => {
    const own = ++asked;
    try {
      const answer = await ask(name, request);
      if (own === asked) use(answer, request);
    } catch (error) {
      if (own === asked) refuse(error);
    }
  };
}
