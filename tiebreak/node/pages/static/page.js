// Clocks that count down, by the board's time; the difference between that and this machine's; whether the page is live.
"use strict";
(() => {
  const began = performance.now();
  let base = Number(document.body.dataset.now);
  let from = began;
  const now = () => base + (performance.now() - from) / 1000;
  const two = (n) => String(n).padStart(2, "0");
  const shown = (s) => {
    const left = Math.max(0, Math.floor(s));
    const rest = `${two(Math.floor((left % 3600) / 60))}:${two(left % 60)}`;
    return left >= 3600 ? `${Math.floor(left / 3600)}:${rest}` : rest;
  };
  const tick = () => {
    for (const clock of document.querySelectorAll("time[data-due]")) {
      const text = shown(Number(clock.dataset.due) - now());
      if (clock.textContent !== text) clock.textContent = text;
    }
  };
  const difference = () => {
    const place = document.getElementById("difference");
    const zone = -new Date().getTimezoneOffset();
    const hours = `${zone < 0 ? "−" : "+"}${Math.floor(Math.abs(zone) / 60)}:${two(Math.abs(zone) % 60)}`;
    const skew = Math.round(Date.now() / 1000 - now());
    const [size, unit] = [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"]].find(([s]) => Math.abs(skew) >= 2 * s) || [1, ""];
    const clock = unit ? `is ${Math.floor(Math.abs(skew) / size).toLocaleString("en")} ${unit} ${skew > 0 ? "ahead of" : "behind"} it` : "agrees with it";
    if (place) place.textContent = `; this machine is at UTC${hours}, and its clock ${clock}`;
  };
  const local = () => {
    for (const time of document.querySelectorAll("time[datetime]:not([title])")) {
      time.title = new Date(time.getAttribute("datetime")).toLocaleString();
    }
  };
  document.addEventListener("htmx:afterSettle", () => {
    const driver = document.getElementById("driver");
    if (driver) { base = Number(driver.dataset.now); from = performance.now(); }
    tick(); local();
  });
  document.addEventListener("htmx:sseOpen", () => document.body.classList.add("live"));
  document.addEventListener("htmx:sseError", () => document.body.classList.remove("live"));
  tick(); local(); difference();
  setInterval(tick, 1000);
})();
