"use strict";
// Asks now and then whether there is news, and exchanges only what has changed: no reload, no
// flicker. The line at the top and the page are exchanged together, so that they show one moment.
{
  const bar = document.getElementById("live");
  const words = document.getElementById("live-words");
  const KEPT = "a, summary, .wide, .canvas, pre, button, input"; // what may have the focus
  const partsOf = (root) =>
    new Map([...root.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const textsOf = (root) =>
    new Map([...partsOf(root)].map(([name, part]) => [name, part.outerHTML]));
  let version = bar.dataset.version;
  let known = textsOf(document);

  const exchange = (old, fresh) => {
    const node = document.importNode(fresh, true);
    const openness = [...old.querySelectorAll("details")].map((details) => details.open);
    const scrolled = [...old.querySelectorAll(".wide")].map((frame) => frame.scrollLeft);
    const focused = [...old.querySelectorAll(KEPT)].indexOf(document.activeElement);
    old.replaceWith(node);
    enhance(node);
    node.querySelectorAll("details").forEach((details, place) => {
      details.open = openness[place] ?? details.open;
    });
    node.querySelectorAll(".wide").forEach((frame, place) => {
      frame.scrollLeft = scrolled[place] ?? 0;
    });
    if (focused >= 0) node.querySelectorAll(KEPT)[focused]?.focus({ preventScroll: true });
  };

  const showProgress = (fresh) => {
    const [old, next] = [document, fresh].map((root) => root.getElementById("live-bar"));
    const [failed, fails] = [document, fresh].map((root) => root.getElementById("live-failed"));
    bar.className = fresh.getElementById("live").className;
    words.textContent = fresh.getElementById("live-words").textContent;
    old.hidden = next.hidden;
    [old.max, old.value] = [next.max, next.value];
    failed.hidden = fails.hidden;
    if (failed.textContent !== fails.textContent) {
      failed.replaceChildren(...[...fails.children].map((line) => document.importNode(line, true)));
    }
  };

  const renew = async () => {
    const answer = await fetch(".", { cache: "no-cache" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const news = textsOf(fresh);
    const here = partsOf(document);
    if ([...news.keys()].join() === [...known.keys()].join()) {
      for (const [name, part] of partsOf(fresh)) {
        if (news.get(name) !== known.get(name)) exchange(here.get(name), part);
      }
    } else { // other parts than before: the first measurement of a run, say
      for (const name of ["header", "main"]) {
        exchange(document.querySelector(name), fresh.querySelector(name));
      }
    }
    showProgress(fresh);
    known = news;
    document.title = fresh.title;
    version = fresh.getElementById("live").dataset.version;
    for (const sheet of document.querySelectorAll(".sheet")) sheet.dispatchEvent(new Event("renewed"));
  };

  const look = async () => {
    let pause = 1000;
    try {
      const answer = await fetch("state", { cache: "no-cache" });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const state = await answer.json();
      const wasLost = bar.classList.contains("lost");
      if (state.version !== version || wasLost) await renew();
      if (!["running", "reading"].includes(state.status)) pause = 3000;
    } catch (error) {
      bar.className = "live lost";
      words.textContent =
        "no answer: is `equipoise watch` still running? This page shows its last state.";
      pause = 3000;
    }
    setTimeout(look, document.hidden ? 4 * pause : pause);
  };
  setTimeout(look, 1000);
}
