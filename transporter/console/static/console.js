/* Everything the pages do by themselves: a tick each second while the tab is seen, a banner when a
   look fails, keys, copying, and local times. Without it, pages are plain links and forms. */
"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const keys = { o: "overview", l: "entries", p: "parked", a: "audit", c: "config", h: "health", e: "events", t: "history", u: "cluster" };
  let frozen = false;
  let pending = "";
  let seen = "";

  const showState = () => {
    const state = $("page-state");
    if (!state) return;
    seen = state.dataset.seen;
    if (document.title !== state.dataset.title) document.title = state.dataset.title;
    const icon = `${document.body.dataset.icons}${state.dataset.tone}.svg`;
    if ($("icon").getAttribute("href") !== icon) $("icon").setAttribute("href", icon);
  };

  const showBanner = (text) => {
    const banner = $("banner");
    banner.textContent = text;
    banner.hidden = !text;
  };

  const fail = (status) => {
    const at = seen ? `Last seen ${seen.slice(11, 19)}Z. ` : "";
    const why = {
      0: "The console does not answer; trying again.",
      401: "You are logged out: print a new link with 'transporter ui --login'.",
    };
    showBanner(at + (why[status] || `The console cannot show this page now (${status}); trying again.`));
  };

  const showTimes = (root) => {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const ago = Math.max(0, Math.round((Date.now() - at.getTime()) / 1000));
      const unit = [[86400, "d"], [3600, "h"], [60, "min"]].find(([width]) => ago >= 2 * width) || [1, "s"];
      time.title = `${at.toLocaleString()} here, ${Math.round(ago / unit[0])} ${unit[1]} ago`;
    }
  };

  const freeze = () => {
    frozen = !frozen;
    $("freeze").setAttribute("aria-pressed", String(frozen));
    $("freeze").textContent = frozen ? "Frozen" : "Freeze";
  };

  const tick = () => {
    const live = $("live");
    if (live && !frozen && document.visibilityState === "visible" && window.htmx) {
      window.htmx.trigger(live, "tick");
    }
  };

  const copy = async (button) => {
    const from = button.dataset.copyFrom;
    await navigator.clipboard.writeText(from ? $(from).textContent : button.dataset.copy);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };

  const reveal = (root) => {
    if (!navigator.clipboard) return;
    for (const button of root.querySelectorAll("[data-copy],[data-copy-from]")) button.hidden = false;
  };

  document.addEventListener("htmx:after:request", (event) => {
    const status = event.detail.ctx.response.status;
    if (status >= 400) {
      event.preventDefault();  // keep the last picture
      fail(status);
    } else {
      showBanner("");
    }
  });
  document.addEventListener("htmx:error", () => fail(0));
  document.addEventListener("htmx:after:swap", () => {
    showState();
    showTimes(document);
    reveal(document);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.id === "freeze") freeze();
    if (button.dataset.copy || button.dataset.copyFrom) copy(button);
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input,select,textarea")) return;
    const link = pending === "g" && document.querySelector(`[data-nav="${keys[event.key]}"]`);
    pending = event.key;
    if (link) link.click();
    else if (event.key === "f" && $("live")) freeze();
    else if (event.key === "?") document.querySelector(".who a").click();
    else if (event.key === "/") {
      event.preventDefault();
      if ($("search")) $("search").focus();
      else document.querySelector('[data-nav="entries"]')?.click();
    }
  });
  document.addEventListener("DOMContentLoaded", () => {
    showState();
    showTimes(document);
    reveal(document);
    if ($("live")) $("freeze").hidden = false;
    setInterval(tick, 1000);
  });
})();
