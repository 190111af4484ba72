// The jobs of a key, over the interface that any client uses. Every text is set as text, never as HTML.
"use strict";
(() => {
  const UNFINISHED = ["queued", "running", "paused"];
  const ACTIONS = { queued: ["pause", "cancel"], running: ["pause", "cancel"], paused: ["resume", "cancel"] };
  const TONES = { running: "live", succeeded: "good", failed: "bad" };
  const KEY = "tiebreak.key";
  const SECONDS = 3;
  const byId = (id) => document.getElementById(id);
  const view = byId("content");
  let turn = 0; // counts views, so that an answer for an earlier one is dropped
  let timer = 0;

  // ---------------------------------------------------------------- elements

  const make = (name, { text, on, ...attributes } = {}, ...children) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    for (const [event, handler] of Object.entries(on || {})) made.addEventListener(event, handler);
    made.append(...children);
    return made;
  };
  const svg = (name, attributes, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  };
  const whole = (n) => (Number.isFinite(n) ? n.toLocaleString("en") : "–");
  const short = (n) => (Number.isFinite(n) ? n.toPrecision(4) : "–");
  const time = (seconds) => {
    const iso = new Date(seconds * 1000).toISOString();
    return make("time", { datetime: iso, text: `${iso.slice(0, 10)} ${iso.slice(11, 16)} UTC` });
  };
  const tag = (status) => make("span", { class: `tag ${TONES[status] || ""}`, text: status });
  const figure = (value, more, name) =>
    make("div", {}, make("b", { text: value }, make("i", { text: more })), make("span", { text: name }));
  const fail = (error) => { byId("problem").textContent = error.message; };

  // ---------------------------------------------------------------- the interface

  const ask = async (path, method = "GET") => {
    const answer = await fetch(path, { method, headers: { authorization: `Bearer ${sessionStorage.getItem(KEY)}` } });
    if (answer.ok) return answer;
    const told = await answer.json().catch(() => ({}));
    const error = new Error(told.error ? told.error.message : `The service answered ${answer.status}.`);
    if (answer.status === 401) { sessionStorage.removeItem(KEY); show(error.message); }
    throw error;
  };
  const get = async (path) => (await ask(path)).json();
  const newest = async (path, known, limit) => {
    // Objects of a list, the newest first, up to the first one that is known.
    const found = [];
    for (let after = ""; ;) {
      const page = await get(`${path}${path.includes("?") ? "&" : "?"}limit=${limit}${after && `&after=${after}`}`);
      for (const one of page.data) {
        if (one.id === known) return found;
        found.push(one);
      }
      if (!page.has_more) return found;
      after = page.last_id;
    }
  };
  const download = async (file) => {
    const url = URL.createObjectURL(await (await ask(`/v1/files/${file.id}/content`)).blob());
    make("a", { href: url, download: file.filename.split("/").pop() }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60000);
  };

  // ---------------------------------------------------------------- all jobs

  const row = (job) =>
    make("li", {}, make("a", { class: "row", href: `#${job.id}` },
      make("span", { class: "what" },
        make("strong", { text: job.user_provided_suffix ? `${job.model}, ${job.user_provided_suffix}` : job.model }),
        make("span", { class: "soft", text: job.id })),
      make("span", { class: "spark soft" }, time(job.created_at)),
      ...[["epochs", job.hyperparameters.n_epochs], ["tokens", whole(job.trained_tokens)], ["files", job.result_files.length]]
        .map(([name, value]) => make("span", { class: "num" }, make("b", { text: value }), make("span", { class: "soft", text: name }))),
      make("span", { class: "end" }, tag(job.status))));

  const showJobs = async (mine) => {
    const jobs = await newest("/v1/fine_tuning/jobs", "", 100);
    if (mine !== turn) return false;
    document.title = "Fine-tuning · Tiebreak";
    const list = make("ul", { class: "jobs" }, ...jobs.map(row));
    view.replaceChildren(
      make("section", { class: "lead" }, make("h1", { text: "Your fine-tuning jobs" })),
      make("section", {}, jobs.length ? list : make("p", { class: "none", text: "None yet. Any client of OpenAI’s interface orders one here." })));
    return jobs.some((job) => UNFINISHED.includes(job.status));
  };

  // ---------------------------------------------------------------- one job

  const curve = (points, total) => {
    const losses = points.map(([, loss]) => loss);
    const [low, high] = [Math.min(...losses), Math.max(...losses)];
    const places = points.map(([step, loss]) => [(1000 * step) / total, 6 + (288 * (high - loss)) / (high - low || 1)]);
    const path = places.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    const box = { class: "curve", viewBox: "0 0 1000 300", preserveAspectRatio: "none", role: "img", "aria-label": `Loss by step, ${points.length} points` };
    const drawn = !points.length ? [] : [
      svg("polygon", { class: "area", points: `${places[0][0]},300 ${path} ${places.at(-1)[0]},300` }),
      svg("polyline", { class: "loss", points: path })];
    return make("figure", { class: "chart" },
      make("div", { class: "scale" }, ...(points.length ? [make("span", { text: short(high) }), make("span", { text: short(low) })] : [])),
      svg("svg", box, ...drawn),
      make("figcaption", {}, make("span", { text: "step 1" }), make("span", { text: points.length ? "training loss" : "no losses yet" }), make("span", { text: whole(total) })));
  };

  const table = (files) =>
    make("table", {}, make("tbody", {}, ...files.map((file) =>
      make("tr", {}, make("td", { "data-label": "File", text: file.filename }), make("td", { "data-label": "Size", class: "n", text: `${whole(file.bytes)} bytes` }),
        make("td", { "data-label": "", class: "n" }, make("button", { type: "button", class: "plain", text: "Download", "aria-label": `Download ${file.filename}`, on: { click: () => download(file).catch(fail) } }))))));

  const results = (files) => {
    if (!files.length) return [make("p", { class: "none", text: "None yet." })];
    const evidence = files.filter((file) => file.filename.startsWith("run/"));
    const others = files.filter((file) => !evidence.includes(file));
    const folded = make("details", {}, make("summary", { text: `What a check needs: ${whole(evidence.length)} files of the run` }), table(evidence));
    return [table(others), ...(evidence.length ? [folded] : [])];
  };

  const facts = (job) => Object.entries({
    "Base model": job.model, Method: job.method.type, Epochs: job.hyperparameters.n_epochs, "Batch size": job.hyperparameters.batch_size,
    "Rate multiplier": job.hyperparameters.learning_rate_multiplier, Seed: job.seed, "Training file": job.training_file,
    "Validation file": job.validation_file || "none", Result: job.fine_tuned_model || "none yet",
  }).map(([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", { text: value })));

  const known = { id: "", events: [], files: [], results: "" };
  const showJob = async (mine, id) => {
    const path = `/v1/fine_tuning/jobs/${encodeURIComponent(id)}`;
    if (known.id !== id) Object.assign(known, { id, events: [], files: [], results: "" });
    const job = await get(path);
    const news = await newest(`${path}/events`, known.events.length ? known.events[0].id : "", 100);
    if (mine !== turn) return false;
    known.events.unshift(...news);
    if (known.results !== job.result_files.join()) {
      const files = await newest("/v1/files?purpose=fine-tune-results", "", 10000);
      if (mine !== turn) return false;
      known.results = job.result_files.join();
      known.files = files.filter((file) => job.result_files.includes(file.id)).sort((a, b) => a.filename.localeCompare(b.filename));
    }
    const told = known.events.filter((event) => event.type === "metrics" && event.data && Number.isFinite(event.data.train_loss)).reverse();
    const shown = known.events.filter((event) => event.type !== "metrics" || event === told.at(-1));
    const points = told.map((event) => [event.data.step, event.data.train_loss]);
    const last = told.length ? told.at(-1).data : {};
    const press = (action) => make("button", { type: "button", text: action[0].toUpperCase() + action.slice(1), on: { click: async () => {
      if (action === "cancel" && !window.confirm("Cancel this job? It cannot be resumed.")) return;
      try { await ask(`${path}/${action}`, "POST"); } catch (error) { fail(error); return; }
      show();
    } } });
    document.title = `${job.model} · Fine-tuning · Tiebreak`;
    const open = view.querySelector("details[open]") !== null;
    view.replaceChildren(
      make("nav", { class: "crumbs", "aria-label": "Where you are" }, make("a", { href: "#", text: "Jobs" })),
      make("section", { class: "lead" },
        make("h1", {}, make("span", { text: job.user_provided_suffix || job.model }), tag(job.status)),
        make("p", { class: "say" }, make("code", { text: job.id }), ", ordered ", time(job.created_at)),
        ...(job.error ? [make("p", { class: "bad aside", text: job.error.message })] : []),
        make("div", { class: "search aside" }, ...(ACTIONS[job.status] || []).map(press))),
      make("div", { class: "columns run" },
        make("div", {},
          make("section", { "aria-label": "Training" },
            make("div", { class: "figures small" }, figure(short(last.train_loss), "", "loss"),
              figure(whole(last.step || 0), last.total_steps ? `/${whole(last.total_steps)}` : "", "steps"),
              figure(short(last.full_valid_loss), "", "validation loss"), figure(whole(job.trained_tokens), "", "trained tokens")),
            curve(points, last.total_steps || 1)),
          make("section", {}, make("h2", { text: "Result files" }), ...results(known.files)),
          make("section", {}, make("h2", { text: "Check it yourself" }),
            make("p", { class: "soft", text: "This command makes the job again from your own file and base model, and convicts a service that trained anything else." }),
            make("p", { class: "aside" }, make("code", { text: `tiebreak receipt check --service ${location.origin} --job ${job.id} --data FILE --base FOLDER` })))),
        make("aside", {},
          make("section", {}, make("h2", { text: "Order" }), make("dl", { class: "facts" }, ...facts(job))),
          make("section", {}, make("h2", { text: "Events" }),
            make("ol", { class: "said" }, ...shown.map((event) =>
              make("li", {}, time(event.created_at), make("span", { class: event.level === "error" ? "bad" : "", text: event.message }))))))));
    const folded = view.querySelector("details");
    if (folded) folded.open = open;
    return UNFINISHED.includes(job.status);
  };

  // ---------------------------------------------------------------- what is shown

  const refresh = async (mine) => {
    let again = true;
    try {
      const id = decodeURIComponent(location.hash.slice(1));
      again = id.startsWith("ftjob-") ? await showJob(mine, id) : await showJobs(mine);
      if (mine === turn) byId("problem").textContent = "";
    } catch (error) {
      if (mine === turn) fail(error);
    }
    if (again && mine === turn && sessionStorage.getItem(KEY)) timer = setTimeout(() => (document.hidden ? wait(mine) : refresh(mine)), SECONDS * 1000);
  };
  const leave = () => { sessionStorage.removeItem(KEY); show(); };
  const wait = (mine) => document.addEventListener("visibilitychange", () => mine === turn && refresh(mine), { once: true });
  const show = (problem = "") => {
    turn += 1;
    clearTimeout(timer);
    const has = Boolean(sessionStorage.getItem(KEY));
    byId("enter").hidden = has;
    view.hidden = !has;
    byId("session").replaceChildren(...(has ? [make("button", { type: "button", text: "Forget the key", on: { click: leave } })] : []));
    byId("problem").textContent = problem;
    if (has) refresh(turn);
    else view.replaceChildren();
  };

  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(KEY, byId("key").value.trim());
    byId("key").value = "";
    show();
  });
  window.addEventListener("hashchange", () => { if (location.hash !== "#content") show(); });
  fetch("/healthz").then((answer) => answer.json()).then((health) => {
    byId("trainer").textContent = `Certificates of this service are signed by ${health.trainer}.`;
  }).catch(() => {});
  show();
})();
