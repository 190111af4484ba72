/* Audits of a run's segments, as `tiebreak audit` makes them (tiebreak/engine/run/audit.py; the numbers of its plan
   stand here too), and the first published number that differs in a false one. */
import { Refused, refuse, refusing, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { DTYPES, piecesOf } from "./tensors.js";
import { FINITE_LOSSES } from "./job.js";
import { Replay, operationOf, tensorId } from "./replay.js";
import { SegmentLogs } from "./logs.js";
import { Asked, Fraud, Run, floatOf, folderOfRun } from "./run.js";

// ---------------------------------------------------------------- draws

/** Draws different segments of 0 ... total - 1 by a seed and the signed root, as `tiebreak audit --sample` does. */
function drawSegments(recheck, total, sample, seed, root) {
  if (!(sample >= 1 && sample <= total)) throw new Asked(`expected a sample of 1 to ${total} segments, got ${sample}`);
  const tag = hexOf(utf8("tiebreak: segments of an audit"));
  const key = recheck.sha256(bytesOf(tag + recheck.sha256(utf8(seed)) + root));
  const chosen = new Set(), fair = (1n << 64n) / BigInt(total) * BigInt(total);
  for (let number = 0; chosen.size < sample; number++) {
    const word = BigInt(`0x${recheck.sha256(bytesOf(key + number.toString(16).padStart(16, "0"))).slice(0, 16)}`);
    if (word < fair) chosen.add(Number(word % BigInt(total)));
  }
  return [...chosen].sort((a, b) => a - b);
}

const rounded = (number, digits) => String(Number(number.toPrecision(digits)));

/** The lines on a draw: the chance that it holds a false segment, of one, and of 1% and 10% of all. */
function sampleLines(total, sample, seed) {
  const counts = new Set([1, ...[0.01, 0.1].map((share) => Math.max(1, Math.ceil(share * total)))]);
  const shown = [...counts].map((tampered) => {
    let missed = 1;
    for (let k = 0; k < tampered && missed > 0; k++) missed *= Math.max(0, total - sample - k) / (total - k);
    return `${tampered > 1 ? `${tampered} false segments` : "one false segment"}: ${rounded(100 * (1 - missed), 3)}%`;
  });
  return [`sample     ${sample} of ${total} segments, drawn from the seed ${seed} and the signed root`,
    `detection  ${shown.join("; ")}`];
}

/** The number of steps that auditing segments takes, if every state in the folder is good. */
function stepsToReplay(run, records, wanted) {
  const kept = run.kept(records), later = (a, b) => (a > b ? a : b);
  let total = 0n, held = 0n;
  for (const [first, last] of wanted.map((one) => run.span(one))) {
    total += last - later(held, kept.findLast((step) => step < first) ?? 0n);
    held = last;
  }
  return Number(total);
}

// ---------------------------------------------------------------- audits of segments

/** Replays segments of a run, each from the nearest good state before it, and compares each record. */
class SegmentAudit {
  constructor(run, records, tell, budget) {
    const { precision, tolerances } = run.job;
    const replay = new Replay(run.program, Number(precision), Number(tolerances & ~FINITE_LOSSES));
    const counted = { steps: 0, entries: 0, checked: [], starts: [], refused: [] };
    Object.assign(this, { run, records, tell, budget, replay, ...counted, held: -1n, kept: run.kept(records) });
  }

  say(done = 0n, step = this.held) {
    return this.tell({ steps: this.steps, step, done, work: this.run.program.work, loss: this.loss });
  }

  /** Fills in the nearest good state at or before a step, unless a nearer one is held. */
  async start(step) {
    for (const kept of this.kept.filter((one) => one <= step && !this.refused.includes(one)).reverse()) {
      if (kept <= this.held && this.held <= step) return;
      if (await refusing(() => this.fillState(kept), () => false)) return;
      this.refused.push(kept);
    }
    if (this.held < 0n || this.held > step)
      refuse(`expected a state at or before step ${step} that is what was committed, got none`);
  }

  async fillState(step) {  // (2): it is hashed before it takes the place of one that is held
    const { run, records } = this, { tensors } = await run.identified(step, records, () => this.say());
    this.held = -1n;
    await this.replay.fill(STATE, tensors, run.rootAfter(step, records));
    this.held = step;
    return this.starts.push(step);
  }

  /** Replays to the end of a segment; throws `Fraud` at the first record that is false. */
  async segment(checkpoint) {
    const { run, records, replay } = this;
    await this.start(run.firstStep(checkpoint) - 1n);
    while (this.held < run.lastStep(checkpoint)) {
      const step = this.held + 1n, at = run.checkpointOf(step);
      if (run.isLogged && this.logs?.first !== run.firstStep(at)) {  // (4)
        this.logs = await new SegmentLogs(run, at).open(records[at].log, () => this.say());
        this.entries += this.logs.entries;
      }
      const log = await this.logs?.log(step);
      const made = await replay.step(step, log, (done) => this.say(done, step), this.budget);
      Object.assign(this, { held: step, steps: this.steps + 1, loss: floatOf(made.loss) });
      await this.say();
      if (step < run.lastStep(at)) continue;
      this.checked.push(at);
      const digest = replay.record(step, made, this.logs?.root);
      if (digest !== records[at].digest) throw await this.fraud(at, { ...made, digest });  // (5)
    }
  }

  async fraud(checkpoint, replayed) {
    const { run, records } = this, committed = records[checkpoint], [first, last] = run.span(checkpoint);
    const [place, unknown] = first < last ? [`steps ${first} to ${last}`, "step, "] : [`step ${last}`, ""];
    const what = ["state", "loss"].find((part) => committed[part] !== replayed[part]) ?? "record";
    const sentence = `the run leaves the program first in checkpoint ${checkpoint + 1} of ${records.length}, ${place}, `
      + `where the ${what} differs; a dispute with the replay of a whole audit (\`tiebreak audit ${run.name}\`) names `
      + `the ${unknown}module and instruction`;
    const record = `  record     expected ${replayed.digest}, got ${committed.digest}`;
    const details = [record, `  signed by  0x${run.job.trainer}`];
    return Object.assign(new Fraud(sentence), { details, place: await placeOf(this, last, committed, replayed) });
  }

  /** Checks the last state, which becomes the weights; whether all rollouts were the model's samples, if it says so. */
  async sampled() {
    const { run, records, checked } = this, step = run.lastStep(records.length - 1);
    if (checked.at(-1) !== records.length - 1 || !this.kept.includes(step)) return null;
    const { ids } = await refusing(() => run.identified(step, records), (said) => refuse(
      `expected the state after step ${step} that the trainer committed to, which is right, got another file; fetch it `
        + `again or take the replay's: ${said}`));
    const slot = run.program.state.findIndex(({ name }) => name === SAMPLED), one = [Uint8Array.of(0, 0, 128, 63)];
    return slot < 0 ? null : ids[slot] === await tensorId(run.recheck, { dtype: 0, dims: [] }, one);
  }

  /** The words of `tiebreak audit` on what was checked and what was not. */
  lines(sampled) {
    const { run, records, checked, starts, refused, steps, entries } = this, spans = [];
    for (const [first, last] of checked.map((one) => run.span(one))) {
      if (spans.at(-1)?.[1] === first - 1n) spans.at(-1)[1] = last;
      else spans.push([first, last]);
    }
    const total = records.length, left = total - checked.length;
    const shown = starts.slice(0, 8).concat(starts.length > 8 ? "..." : []);
    return [
      ...refused.map((step) => `warning: the state after step ${step} is not what was committed; not used`),
      ...(run.isLogged ? [`logs       ${entries} entries in ${steps} steps`] : []),
      ...Object.entries(lateWords(run.program, sampled)).map(([name, words]) => `${name.padEnd(10)} ${words}`),
      `replayed   ${steps} steps, from the states after steps ${shown.join(", ")}`,
      `unchecked  ${left ? `${left} of ${total} signed segments` : "nothing that is signed"}`,
      `agrees: steps ${spans.map(([first, last]) => `${first} to ${last}`).join(", ")}`,
    ];
  }
}

const REWARD = /^model\.rollouts\.mean_reward_[0-9]+_(.*)$/;
const SAMPLED = "model.rollouts_sampled", OF_SAMPLES = ["completion_ids", "completion_mask", "num_items_in_batch"];
const listed = (names) => names.map((name) => name.replace(/[^A-Za-z0-9_.()-]/gu, "?")).join(", ");

/** Who answers for each part of late data. sampled: whether the last state says that rollouts were samples, or null. */
export function lateWords({ late, state }, sampled) {
  const [names, entries] = [late, state].map((slots) => slots.map(({ name }) => name));
  const isChecked = entries.includes(SAMPLED), found = {};
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

/**
 * Audits the run in what was dropped: a sample, these segments, or all. Anything but a refusal is thrown.
 * @param {Map<string, object>} dropped files by path
 * @param {{segments?: number[], sample?: number, seed?: string}} asked
 * @param {(progress: object) => Promise<void>} tell called often: it may wait, to pause, and throw, to stop. At first
 *   it gets {memory, due, wanted, work, total, last}: bytes, steps to replay, segments, terms of a step, how many
 *   segments are signed, the job's last step; then {steps, step, done, work, loss}
 * @returns {Promise<{verdict: "agrees" | "fraud" | "could not check" | "asked", said: string, lines: string[],
 *   place?: object}>} place: see `placeOf`
 */
export async function auditDropped(recheck, dropped, asked, tell = async () => {}, budget = undefined) {
  const mark = recheck.exports.mark();
  try {
    const run = await Run.open(recheck, dropped, folderOfRun(dropped)), { head, records } = await run.signed();
    const { segments, sample, seed = hexOf(crypto.getRandomValues(new Uint8Array(16))) } = asked;
    const total = records.length, all = records.map((_, k) => k);
    const drawn = sample ? drawSegments(recheck, total, sample, seed, head.run_root) : all;
    const wanted = [...new Set(segments ?? drawn)].sort((a, b) => a - b);
    if (!wanted.length || wanted[0] < 0 || wanted.at(-1) >= total)
      throw new Asked(`expected a checkpoint below ${total}, got ${wanted.at(-1)}`);
    const { memory, work } = run.program, due = stepsToReplay(run, records, wanted);
    await tell({ memory, due, wanted, work, total, last: Number(run.job.steps) });
    const audit = new SegmentAudit(run, records, tell, budget);
    const data = await run.tensors("data.safetensors", run.program.data);
    await audit.replay.fill(DATA, data, run.job.data_root, `${run.name}/data.safetensors`);  // (3)
    for (const checkpoint of wanted) await audit.segment(checkpoint);
    const lines = [...(sample ? sampleLines(total, sample, seed) : []), ...audit.lines(await audit.sampled())];
    const { steps, entries } = audit, said = lines.pop();
    return { verdict: "agrees", said, lines, wanted, steps, entries };
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const verdict = error instanceof Fraud ? "fraud" : error instanceof Asked ? "asked" : "could not check";
    const { message: said, details = [], place = null } = error;
    return { verdict, said, lines: [...details, ...(place?.note ? [place.note] : [])], place };
  } finally {
    recheck.exports.release(mark);
  }
}

// ---------------------------------------------------------------- what differs

const KINDS = [[Uint32Array, 8], [BigUint64Array, 16], [Uint8Array, 2]];
const isNaNs = (...all) => all.every((bits) => (bits & 0x7fffffff) > 0x7f800000);

/** The number that an element's bits stand for. Nine digits tell any two FP32 numbers apart. */
function decimal(dtype, bits) {
  if (dtype) return dtype === 1 ? BigInt.asIntN(64, bits).toLocaleString("en-US") : String(Boolean(bits));
  const number = floatOf(bits);
  if (Number.isNaN(number)) return "not a number";
  return (Object.is(number, -0) ? "-0" : rounded(number, 9)).replace("Infinity", "∞").replaceAll("-", "−");
}

const claim = (dtype, bits) =>
  ({ bits: `0x${bits.toString(16).padStart(KINDS[dtype][1], "0")}`, decimal: decimal(dtype, bits) });

/**
 * The first published number that differs, after a segment whose record is false: of the entries of the state that the
 * trainer kept of its end, the one that the earliest instruction makes. The values of a step are in no folder of a run:
 * an earlier instruction may have been the first that was false, and a dispute finds it. null: nothing of it differs.
 * It is {step, what, expected, got}, each of the two {bits, decimal}, and of an entry of the state {instruction, of,
 * operation, origin, element, kind, at, differing, entries} as well; or {note}, if nothing can be compared.
 */
async function placeOf({ run, records, replay }, step, committed, replayed) {
  const { program, recheck } = run;
  if (committed.state === replayed.state)
    return committed.loss === replayed.loss ? null
      : { step: Number(step), what: "loss", expected: claim(0, replayed.loss), got: claim(0, committed.loss) };
  if (!run.kept(records).includes(step))
    return { note: `the state after step ${step} was not kept, so no number of it can be compared` };
  return refusing(async () => {
    const { tensors, ids } = await run.identified(step, records), all = program.state;
    const differing = all.filter((_, k) => ids[k] !== replayed.ids[k]).sort((a, b) => a.operand - b.operand);
    const [slot] = differing, { name, dtype, dims, operand } = slot, [View] = KINDS[dtype];
    let at = replay.place(STATE, all.indexOf(slot)), before = 0;
    for await (const piece of piecesOf(tensors.get(name))) {
      const [mine, theirs] = [recheck.get(at, piece.length), piece].map((bytes) => new View(bytes.buffer));
      const k = mine.findIndex((bits, n) => bits !== theirs[n] && (dtype || !isNaNs(bits, theirs[n])));
      if (k >= 0) {
        const element = before + k, origin = await run.origin(operand), place = [];
        dims.reduceRight((rest, dim) => { place.unshift(rest % dim); return Math.floor(rest / dim); }, element);
        return {
          step: Number(step), what: `state entry ${name}`, instruction: operand, of: program.body, origin, element,
          operation: operationOf(program.all[operand]), kind: `${DTYPES[dtype].toLowerCase()}[${dims.join(", ")}]`,
          at: place, differing: differing.length, entries: all.length,
          expected: claim(dtype, mine[k]), got: claim(dtype, theirs[k]),
        };
      }
      at += piece.length;
      before += mine.length;
    }
    return null;
  }, (said) => ({ note: `the state after step ${step} is in the folder, but is not what was committed: ${said}` }));
}
