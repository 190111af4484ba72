/* Audits of a run's segments, as `tiebreak audit` makes them (tiebreak/engine/run/audit.py), and what differs in a false one. */
import { Refused, refuse, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { quoted } from "./formats.js";
import { DTYPES, piecesOf } from "./tensors.js";
import { FINITE_LOSSES } from "./job.js";
import { Replay, operationOf, tensorId } from "./replay.js";
import { LogFile } from "./logs.js";
import { Asked, CannotCheck, Fraud, Run, floatOf, runIn } from "./run.js";

// ---------------------------------------------------------------- draws

/** Draws different segments of 0 ... total - 1 by a seed and the signed root, as `tiebreak audit --sample` does. */
export function drawSegments(recheck, total, sample, seed, root) {
  if (!(sample >= 1 && sample <= total)) throw new Asked(`expected a sample of 1 to ${total} segments, got ${sample}`);
  const parts = [utf8("tiebreak: segments of an audit"), bytesOf(recheck.sha256(utf8(seed))), bytesOf(root)];
  const key = recheck.sha256(Uint8Array.from(parts.flatMap((part) => [...part])));
  const chosen = new Set(), fair = (1n << 64n) / BigInt(total) * BigInt(total);
  for (let number = 0; chosen.size < sample; number++) {
    const word = BigInt(`0x${recheck.sha256(bytesOf(key + number.toString(16).padStart(16, "0"))).slice(0, 16)}`);
    if (word < fair) chosen.add(Number(word % BigInt(total)));
  }
  return [...chosen].sort((a, b) => a - b);
}

/** The chance that a sample holds a false segment, for one of them and for 1% and 10%: [false segments, chance]. */
export function chances(total, sample) {
  return [...new Set([1, ...[0.01, 0.1].map((share) => Math.max(1, Math.ceil(share * total)))])].map((tampered) => {
    const [few, many] = [sample, tampered].sort((a, b) => a - b);
    let missed = few + many > total ? 0 : 1;
    for (let k = 0; missed && k < few; k++) missed *= (total - many - k) / (total - k);
    return [tampered, 1 - missed];
  });
}

/** A number to so many digits, as `%g` writes it. */
export function digits(number, count) {
  if (!number || !Number.isFinite(number)) return number ? String(number).replace("Infinity", "∞") : Object.is(number, -0) ? "-0" : "0";
  const [mantissa, power] = number.toExponential(count - 1).split("e"), exponent = Number(power);
  const short = (text) => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
  if (exponent >= -4 && exponent < count) return short(number.toFixed(Math.max(0, count - 1 - exponent)));
  return `${short(mantissa)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

/** The lines on a draw. */
export function sampleLines(total, sample, seed) {
  const what = (count) => count > 1 ? `${count} false segments` : "one false segment";
  const shown = chances(total, sample).map(([count, chance]) => `${what(count)}: ${digits(100 * chance, 3)}%`);
  return [`sample     ${sample} of ${total} segments, drawn from the seed ${seed} and the signed root`, `detection  ${shown.join("; ")}`];
}

// ---------------------------------------------------------------- audits of segments

/** The number of steps that auditing segments takes, if every state in the folder is good. */
export function stepsToReplay(run, records, wanted) {
  const kept = run.kept(records);
  let total = 0n, at = -1n;
  for (const checkpoint of wanted) {
    const start = kept.filter((step) => step < run.firstStep(checkpoint)).at(-1) ?? 0n;
    total += run.lastStep(checkpoint) - (start > at ? start : at);
    at = run.lastStep(checkpoint);
  }
  return total;
}

/** Replays segments of a run, each from the nearest good state before it, and compares each record. */
class SegmentAudit {
  constructor(run, records, tell, budget) {
    Object.assign(this, { run, records, tell, budget, held: -1n, checked: [], starts: [], refused: [] });
    Object.assign(this, { steps: 0, entries: 0, loggedSteps: 0 });
  }

  async open() {
    const { run } = this, { job, program } = run;
    this.replay = new Replay(program, Number(job.precision), Number(job.tolerances & ~FINITE_LOSSES));
    const data = await run.data(), found = await this.replay.fill(DATA, data);  // (3)
    if (found !== job.data_root) refuse(`${run.name}/data.safetensors: expected root ${job.data_root}, got ${found}`);
    this.kept = run.kept(this.records);
  }

  /** Fills in the nearest good state at or before a step, unless a nearer one is held. */
  async start(step) {
    for (const kept of this.kept.filter((one) => one <= step).reverse()) {
      if (kept <= this.held && this.held <= step) return;
      if (!await this.isGood(kept)) continue;
      this.starts.push(kept);
      this.held = kept;
      return;
    }
    if (this.held < 0n || this.held > step)
      throw new CannotCheck(`expected a state at or before step ${step} that is what was committed, got none`);
  }

  async isGood(step) {  // (2): it is hashed before it takes the place of one that is held
    const { run, records } = this, root = run.rootAfter(step, records);
    try {
      const { tensors } = await run.identified(step, root, () => this.tell(this.progress()));
      if (await this.replay.fill(STATE, tensors) === root) return true;
      this.held = -1n;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
    }
    this.refused.push(step);
    this.kept = this.kept.filter((kept) => kept !== step);
    return false;
  }

  progress(step = this.held, done = 0n) { return { steps: this.steps, step, done, work: this.replay.work, loss: this.loss }; }

  /** Opens the logs of a segment, which must have the committed root (4). */
  async openLogs(checkpoint) {
    const { run, records } = this, { recheck, program, name } = run, first = run.firstStep(checkpoint), last = run.lastStep(checkpoint);
    const path = `logs/${String(last).padStart(12, "0")}.log`, roots = this.logRoots = [];
    this.logs = null;
    for (let step = first; step <= last; step++) {
      roots.push(await this.readLog(step, async () => {
        this.logs ??= await new LogFile(run.file(path), `${name}/${path}`, program, run.id, first, last).open();
        const log = await this.logs.read(step);
        return recheck.scratch(() => {
          const { at, size } = this.logs.put(log, step);
          return recheck.digest("step_log", program.at, at, size);
        });
      }));
      await this.tell(this.progress());
    }
    this.logRoot = recheck.tree(roots);
    if (this.logRoot !== records[checkpoint].log)
      throw new CannotCheck(`${name}: logs of steps ${first} to ${last}: expected log root ${records[checkpoint].log}, as committed, `
        + `got ${this.logRoot}; without the committed logs nobody can say whether these steps are right`);
  }

  async readLog(step, work) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      const said = "expected what was committed, got none that can be read";
      throw new CannotCheck(`${this.run.name}: log of step ${step}: ${said}: ${error.message}`);
    }
  }

  async step(number) {
    const { run } = this, checkpoint = run.checkpointOf(number);
    if (run.isLogged && (!this.logs || this.logs.first !== run.firstStep(checkpoint))) await this.openLogs(checkpoint);
    let put = null;
    if (run.isLogged) {
      const log = await this.readLog(number, () => this.logs.read(number));
      put = () => {
        const { at, size, count } = this.logs.put(log, number), expected = this.logRoots[Number(number - this.logs.first)];
        const found = run.recheck.digest("step_log", run.program.at, at, size);
        if (found !== expected)
          throw new CannotCheck(`${run.name}: log of step ${number}: expected ${expected}, as it was before, got ${found}`);
        this.entries += count;
        this.loggedSteps++;
        return [at, size];
      };
    }
    const made = await this.replay.step(number, put, (done) => this.tell(this.progress(number, done)), this.budget);
    Object.assign(this, { held: number, steps: this.steps + 1, loss: floatOf(made.loss) });
    await this.tell(this.progress());
    return made;
  }

  /** Replays to the end of a segment; throws `Fraud` at the first record that is false. */
  async segment(checkpoint) {
    const { run, records } = this, zeros = "00".repeat(32);
    await this.start(run.firstStep(checkpoint) - 1n);
    while (this.held < run.lastStep(checkpoint)) {
      const made = await this.step(this.held + 1n), at = run.checkpointOf(this.held);
      if (this.held < run.lastStep(at)) continue;
      const log = run.isLogged ? this.logRoot : zeros, committed = records[at];
      const digest = run.recheck.record(this.held, made.state, BigInt(made.loss), log), replayed = { ...made, log, digest };
      this.checked.push(at);
      if (digest !== committed.digest) await this.fraud(at, committed, replayed);  // (5)
    }
  }

  async fraud(checkpoint, committed, replayed) {
    const { run, records } = this, [first, last] = [run.firstStep(checkpoint), run.lastStep(checkpoint)];
    const isLong = first < last, place = isLong ? `steps ${first} to ${last}` : `step ${last}`;
    const unknown = `${isLong ? "step, " : ""}module and instruction`;
    const what = committed.state !== replayed.state ? "state" : committed.loss !== replayed.loss ? "loss" : "record";
    const finder = `a dispute with the replay of a whole audit (\`tiebreak audit ${run.name}\`)`;
    throw new Fraud(
      `the run leaves the program first in checkpoint ${checkpoint + 1} of ${records.length}, ${place}, where the ${what} differs; `
        + `${finder} names the ${unknown}`,
      [`  record     expected ${replayed.digest}, got ${committed.digest}`, `  signed by  0x${run.job.trainer}`],
      await placeOf(this, checkpoint, committed, replayed),
    );
  }
}

/**
 * Audits segments of a run.
 * @param {Run} run @param {number[]} wanted segments from 0
 * @param {(progress: {steps: number, step: bigint, done: bigint, work: bigint, loss: number}) => Promise<void>} tell called
 *   often: it may wait, to pause, and throw, to stop @returns the lines of `tiebreak audit`, and what it counted
 */
export async function auditSegments(run, { head, records }, wanted, tell = async () => {}, budget = undefined) {
  if (!wanted.length || wanted.some((one) => one < 0 || one >= records.length))
    throw new Asked(`expected a checkpoint below ${records.length}, got ${wanted.at(-1)}`);
  const audit = new SegmentAudit(run, records, tell, budget), mark = run.recheck.exports.mark(), began = performance.now();
  try {
    await audit.open();
    for (const checkpoint of [...new Set(wanted)].sort((a, b) => a - b)) await audit.segment(checkpoint);
    const { checked, starts, refused, steps, entries } = audit, last = run.lastStep(Number(head.count) - 1);
    const reached = checked.at(-1) === records.length - 1 && run.kept(records).includes(last);
    const sampled = reached ? await sampledIn(run, records, last) : null;
    const seconds = (performance.now() - began) / 1000, lines = linesOf(run, audit, records.length, sampled);
    return { checked, starts, refused, steps, entries, seconds, lines };
  } finally {
    run.recheck.exports.release(mark);
  }
}

/** Checks the last state, which becomes the weights; whether all rollouts were the model's samples, if it says so. */
async function sampledIn(run, records, last) {
  try {
    const { ids } = await run.identified(last, run.rootAfter(last, records));
    const slot = run.program.state.findIndex(({ name }) => name === SAMPLED);
    return slot < 0 ? null : ids[slot] === await tensorId(run.recheck, { dtype: 0, dims: [] }, [Uint8Array.of(0, 0, 128, 63)]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    throw new CannotCheck(`expected the state after step ${last} that the trainer committed to, which is right, got another file; `
      + `fetch it again or take the replay's: ${error.message}`);
  }
}

const REWARD = /^model\.rollouts\.mean_reward_[0-9]+_(.*)$/;
const SAMPLED = "model.rollouts_sampled", OF_SAMPLES = ["completion_ids", "completion_mask", "num_items_in_batch"];
const listed = (names) => names.map((name) => name.replace(/[^A-Za-z0-9_.()-]/gu, "?")).join(", ");

/** Who answers for each part of late data. sampled: whether the last state says that rollouts were samples; null: unknown. */
export function lateWords({ late, state }, sampled) {
  const names = late.map(({ name }) => name), entries = state.map(({ name }) => name), isChecked = entries.includes(SAMPLED), found = {};
  if (names.includes(OF_SAMPLES[0])) {
    const result = sampled === null ? "" : sampled ? ", all of them" : ", which found others";
    found.rollouts = isChecked ? `sampled, checked by the program${result}` : "declared";
    found.prompts = names.includes("prompt_ids") ? "declared" : "data of the job";
    found.advantages = names.includes("advantages") ? "declared" : "by the program";
    const rewards = entries.map((name) => REWARD.exec(name)?.[1]).filter((name) => name !== undefined);
    if (rewards.length) found.rewards = `by the program: ${listed(rewards)}`;
  }
  const named = names.filter((name) => !(isChecked && OF_SAMPLES.includes(name)));
  if (named.length) found.declared = `by the trainer: ${listed(named)}`;
  return found;
}

/** The folder that paths have in common. */
function sharedFolder(paths) {
  const shared = paths.reduce((all, path) => all.slice(0, all.split("").findIndex((c, k) => c !== path[k]) >>> 0), paths[0] ?? "");
  return shared.replace(/\/?[^/]*$/, "");
}

/** A seed that nobody knows. */
const newSeed = () => hexOf(crypto.getRandomValues(new Uint8Array(16)));

/**
 * Audits the run in what was dropped: a sample, these segments, or all. Anything but a refusal is thrown.
 * @param {Map<string, object>} dropped files by path @param {{segments?: number[], sample?: number, seed?: string}} asked
 * @param {(progress: object) => Promise<void>} tell see `auditSegments`; {memory, due, work} come first: bytes, steps to replay,
 *   and terms of each
 * @returns {Promise<{verdict: "agrees" | "fraud" | "could not check" | "asked", said: string, lines: string[]}>}
 */
export async function auditDropped(recheck, dropped, { segments, sample, seed = newSeed() }, tell = async () => {}, budget = undefined) {
  const mark = recheck.exports.mark();
  try {
    const { name, files } = runIn(dropped) ?? { name: sharedFolder([...dropped.keys()]), files: dropped };
    const run = await Run.open(recheck, name, files), signed = await run.signed(), total = signed.records.length;
    const drawn = sample ? drawSegments(recheck, total, sample, seed, signed.head.run_root) : signed.records.map((_, k) => k);
    const wanted = segments ?? drawn, known = new Set(wanted.filter((one) => one < total));
    const work = BigInt.asUintN(64, recheck.exports.work(run.program.at)), last = Number(run.job.steps);
    await tell({ memory: run.program.memory, due: Number(stepsToReplay(run, signed.records, known)), wanted, work, total, last });
    const done = await auditSegments(run, signed, wanted, tell, budget);
    const lines = [...(sample ? sampleLines(total, sample, seed) : []), ...done.lines];
    return { ...done, verdict: "agrees", said: lines.at(-1), lines: lines.slice(0, -1), wanted };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const verdict = error instanceof Fraud ? "fraud" : error instanceof Asked ? "asked" : "could not check";
    return { verdict, said: error.message, lines: [...(error.details ?? []), ...placeLines(error.place)], place: error.place };
  } finally {
    recheck.exports.release(mark);
  }
}

/** The words of `tiebreak audit` on what was checked and what was not. */
function linesOf(run, { checked, starts, refused, steps, entries, loggedSteps }, total, sampled) {
  const spans = [];
  for (const one of checked) {
    const first = run.firstStep(one), last = run.lastStep(one);
    if (spans.length && spans.at(-1)[1] + 1n === first) spans.at(-1)[1] = last;
    else spans.push([first, last]);
  }
  const left = total - checked.length, shown = [...starts.slice(0, 8), ...(starts.length > 8 ? ["..."] : [])];
  return [
    ...refused.map((step) => `warning: the state after step ${step} is not what was committed; not used`),
    ...(run.isLogged ? [`logs       ${entries} entries in ${loggedSteps} steps`] : []),
    ...Object.entries(lateWords(run.program, sampled)).map(([name, words]) => `${name.padEnd(10)} ${words}`),
    `replayed   ${steps} steps, from the states after steps ${shown.join(", ")}`,
    left ? `unchecked  ${left} of ${total} signed segments` : "unchecked  nothing that is signed",
    `agrees: steps ${spans.map(([first, last]) => `${first} to ${last}`).join(", ")}`,
  ];
}

// ---------------------------------------------------------------- what differs

const MAX_TEXT = 160;
const minus = (text) => text.replaceAll("-", "−").replace("e−0", "e−").replace("e+0", "e+");

/** The number that an element's bits stand for. Nine digits tell any two FP32 numbers apart. */
export function decimal(dtype, bits) {
  if (dtype === 2) return bits ? "true" : "false";
  if (dtype === 1) return BigInt.asIntN(64, bits).toString().replace(/\B(?=(\d{3})+$)/g, ",");
  const number = floatOf(Number(bits));
  if (Number.isNaN(number)) return "not a number";
  return Number.isFinite(number) ? Object.is(number, -0) ? "-0" : minus(digits(number, 9)) : number > 0 ? "∞" : "-∞";
}

const elementOf = (bytes, size, k) => bytes.subarray(size * k, size * k + size).reduceRight((all, byte) => all << 8n | BigInt(byte), 0n);

/**
 * The first published number that differs, after a segment whose record is false: of the entries of the state that the
 * trainer kept of its end, the one that the earliest instruction makes. The values of a step are in no folder of a run: an
 * earlier instruction may have been the first that was false, and a dispute finds it. null: nothing published differs.
 */
async function placeOf({ run, records, replay }, checkpoint, committed, replayed) {
  const step = run.lastStep(checkpoint), { program, recheck } = run;
  if (committed.state === replayed.state) {
    if (committed.loss === replayed.loss) return null;
    return { step, what: "loss", ...claims(0, BigInt(replayed.loss), BigInt(committed.loss)) };
  }
  if (!run.kept(records).includes(step))
    return { step, note: `the state after step ${step} was not kept, so no number of it can be compared` };
  try {
    const { tensors, ids } = await run.identified(step, committed.state);
    const differing = program.state.filter((_, k) => ids[k] !== replayed.ids[k]).sort((a, b) => a.operand - b.operand);
    const slot = differing[0], size = slot.bytes / slot.elements, own = replay.place(STATE, program.state.indexOf(slot));
    let at = 0;
    for await (const theirs of piecesOf(tensors.get(slot.name))) {
      const mine = recheck.get(own + at, theirs.length), canonical = recheck.scratch(() => canonicalOf(recheck, slot.dtype, theirs));
      const k = mine.findIndex((byte, n) => byte !== canonical[n]);
      if (k >= 0) {
        const element = Math.floor((at + k) / size), local = Math.floor(k / size), instruction = program.describe(slot.operand);
        const origin = (await run.origins())[slot.operand];
        return {
          step, what: `state entry ${slot.name}`, differing: differing.length, instruction: slot.operand, of: program.body,
          operation: operationOf(instruction), origin: typeof origin === "string" ? origin : "", element,
          kind: `${DTYPES[slot.dtype].toLowerCase()}[${slot.dims.join(", ")}]`, entries: program.state.length,
          at: slot.dims.reduceRight(([place, rest], dim) => [[rest % dim, ...place], Math.floor(rest / dim)], [[], element])[0],
          ...claims(slot.dtype, elementOf(mine, size, local), elementOf(canonical, size, local)),
        };
      }
      at += theirs.length;
    }
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return { step, note: `the state after step ${step} is in the folder, but is not what was committed: ${error.message}` };
  }
  return null;
}

/** A piece of a tensor with its NaNs as they are hashed. */
function canonicalOf(recheck, dtype, piece) {
  if (dtype) return piece;
  const out = piece.slice(), words = new DataView(out.buffer);
  for (let k = 0; k < out.length; k += 4) if ((words.getUint32(k, true) & 0x7fffffff) > 0x7f800000) words.setUint32(k, 0x7fc00000, true);
  return out;
}

function claims(dtype, expected, got) {
  const hex = (bits) => `0x${bits.toString(16).padStart([8, 16, 2][dtype], "0")}`;
  return { expected: { bits: hex(expected), decimal: decimal(dtype, expected) }, got: { bits: hex(got), decimal: decimal(dtype, got) } };
}

/** A difference in words. */
export function placeLines(place) {
  if (!place) return [];
  if (place.note) return [place.note];
  const claim = (who, { bits, decimal: number }) => `  ${who.padEnd(9)} ${bits} (${number})`;
  const where = place.what === "loss" ? `the loss of step ${place.step}` : `step ${place.step}, ${place.what}, element ${place.element}`;
  const origin = place.origin ? quoted(place.origin).slice(1, -1).slice(0, MAX_TEXT) : "";
  const more = place.what === "loss" ? [] : [
    `made by instruction ${place.instruction} of ${place.of}: ${place.operation}${origin && `, of ${origin}`}`,
    `at [${place.at.join(", ")}] of ${place.kind}; ${place.differing} of ${place.entries} entries of the state differ`,
    "an earlier instruction may be the first that was false: only the trainer's values of the step show it, in a dispute",
  ];
  return [where, ...more, claim("expected", place.expected), claim("got", place.got)];
}
