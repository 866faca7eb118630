"use strict";
// Asks now and then whether there is news, and puts what has changed in the place of what was there: nothing is loaded anew, nothing flickers.
{
  const bar = document.getElementById("live"), words = document.getElementById("live-words"), progress = document.getElementById("live-bar");
  const failed = document.getElementById("live-failed");
  const parts = (of) => new Map([...of.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  const texts = (of) => new Map([...parts(of)].map(([name, part]) => [name, part.outerHTML]));
  let version = bar.dataset.version, known = texts(document);

  const say = (state) => {
    bar.className = `live ${state.status}`;
    if (words.textContent !== state.words) words.textContent = state.words;
    progress.hidden = !state.rounds;
    if (state.rounds) { progress.max = state.rounds; progress.value = state.round; }
    const lines = (state.failed ?? []).map((text) => Object.assign(document.createElement("li"), { textContent: text }));
    failed.hidden = !lines.length;
    if (failed.textContent.trim() !== lines.map((line) => line.textContent).join("")) failed.replaceChildren(...lines);
  };

  const swap = async (old, fresh) => {
    const node = document.importNode(fresh, true);
    // A picture is decoded before it is shown, so that there is no moment without one.
    await Promise.all([...node.querySelectorAll("img")].map((image) => image.decode().catch(() => {})));
    const [was, is] = [old, node].map((part) => ({ details: part.querySelectorAll("details"), frames: part.querySelectorAll(".wide") }));
    was.details.forEach((one, place) => { if (is.details[place]) is.details[place].open = one.open; });
    const scrolled = [...was.frames].map((frame) => frame.scrollLeft);
    const focused = old.contains(document.activeElement) ? [...old.querySelectorAll("a, summary, .wide, pre")].indexOf(document.activeElement) : -1;
    old.replaceWith(node);
    is.frames.forEach((frame, place) => { frame.scrollLeft = scrolled[place] ?? 0; });
    if (focused >= 0) node.querySelectorAll("a, summary, .wide, pre")[focused]?.focus({ preventScroll: true });
    ready(node);
  };

  const renew = async () => {
    const answer = await fetch(".", { cache: "no-cache" });
    if (!answer.ok) throw new Error(`${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html"), news = texts(fresh), here = parts(document);
    if ([...news.keys()].join() === [...known.keys()].join()) {
      for (const [name, part] of parts(fresh)) if (news.get(name) !== known.get(name)) await swap(here.get(name), part);
    } else { // other parts than before: the first measurement of a run, say
      for (const name of ["header", "main"]) await swap(document.querySelector(name), fresh.querySelector(name));
    }
    known = news;
    document.title = fresh.title;
    version = fresh.getElementById("live").dataset.version;
    document.dispatchEvent(new Event("swapped"));
  };

  const look = async () => {
    let pause = 1000;
    try {
      const answer = await fetch("state", { cache: "no-cache" });
      if (!answer.ok) throw new Error(`${answer.status}`);
      const state = await answer.json();
      say(state);
      if (state.version !== version) await renew();
      if (state.status !== "running") pause = 3000;
    } catch (error) {
      bar.className = "live lost";
      words.textContent = "no answer: is `equipoise watch` still running? This page shows what it knew last.";
      pause = 3000;
    }
    setTimeout(look, document.hidden ? 4 * pause : pause);
  };
  setTimeout(look, 1000);
}
