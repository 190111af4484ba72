/* A run's folder (tiebreak/engine/run/directory.py): what its job, its heads, its records and its states say. */
import { Refused, refuse, bytesOf, hexOf, STATE, DATA } from "./module.js";
import { parseJson } from "./formats.js";
import { piecesOf, readWhole, tensorsOf } from "./tensors.js";
import { SignedHead, SignedJob } from "./job.js";
import { Program, rootOf, tensorId } from "./replay.js";

/** What the files cannot decide. */
export class CannotCheck extends Refused {}
/** A request for what is not there. */
export class Asked extends Refused {}
/** A replay contradicts what the trainer signed. details: lines to show below the sentence. place: see `placeOf`. */
export class Fraud extends Refused {
  constructor(sentence, details = [], place = null) {
    super(sentence);
    Object.assign(this, { details, place });
  }
}

const MAX_FILE = 1 << 16, MAX_RECORDS = 1 << 25, MAX_PROGRAM = 1 << 30, RECORD = 76;
const STATE_NAME = /^checkpoints\/([0-9]{12,20})\.safetensors$/;

const depthOf = (count) => BigInt(count - 1n).toString(2).length * (count > 1n ? 1 : 0);
const named = (prefix, work) => {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return refuse(`${prefix}: ${error.message}`);
  }
};

/** Bits of an f32 as a number. */
export const floatOf = (bits) => new Float32Array(Uint32Array.of(bits).buffer)[0];

/** An opened run. */
export class Run {
  /**
   * Opens a run, perhaps a stranger's: its job, signed by both, and its program, which must be the job's.
   * @param {import("./module.js").Recheck} recheck @param {string} name of the folder, for messages
   * @param {Map<string, {size: number, slice: (from: number, to: number) => Promise<Uint8Array>}>} files by path
   */
  static async open(recheck, name, files) {
    const run = new Run();
    Object.assign(run, { recheck, name, files });
    if (!files.get("job.bin")) throw new Asked(`expected the folder of a run, got ${name}, which has no job.bin; see \`tiebreak agree\``);
    const raw = await run.whole("job.bin", MAX_FILE);
    named(`${name}/job.bin`, () => run.readJob(raw));
    const program = await run.whole("program.tbp", MAX_PROGRAM);
    run.program = named(`${name}/program.tbp`, () => new Program(recheck, program));
    const { job } = run, { root, body, state, data } = run.program;
    const found = { root, body: BigInt(body), state: BigInt(state.length), data: BigInt(data.length) };
    const expected = { root: job.program_root, body: job.body_count, state: job.state_count, data: job.data_count };
    for (const key in expected)
      if (expected[key] !== found[key]) refuse(`program ${key}: expected ${expected[key]} as in the job, got ${found[key]}`);
    return run;
  }

  /** A file of the folder, which must be there. */
  file(path) { return this.files.get(path) ?? refuse(`${this.name}/${path}: cannot be read: there is no such file`); }
  whole(path, limit) { return readWhole(this.file(path), `${this.name}/${path}`, limit); }

  readJob(raw) {
    const agreement = new SignedJob(this.recheck, raw), { job, id, checkpoints, isLogged } = agreement;
    agreement.verify();
    Object.assign(this, { agreement, job, id, checkpoints, isLogged });
  }

  firstStep(checkpoint) { return BigInt(checkpoint) * this.job.checkpoint_interval + 1n; }
  lastStep(checkpoint) {
    const end = (BigInt(checkpoint) + 1n) * this.job.checkpoint_interval;
    return end < this.job.steps ? end : this.job.steps;
  }
  checkpointOf(step) { return Number((step - 1n) / this.job.checkpoint_interval); }

  /** The names of head files, ascending. */
  get headNames() { return [...this.files.keys()].filter((path) => /^heads\/[^/]*\.bin$/.test(path)).sort(); }

  /** A signed head, checked. */
  async head(path) {
    const raw = await this.whole(path, MAX_FILE);
    const head = named(`${this.name}/${path}`, () => {
      const signed = new SignedHead(raw);
      signed.verify(this.agreement);
      return signed.head;
    });
    if (path !== `heads/${String(head.count).padStart(12, "0")}.bin`)
      refuse(`${this.name}/${path}: expected the head of this file's count, got one of ${head.count}`);
    return head;
  }

  /** All records of the folder: step, state, loss bits, log, digest. An incomplete last one is ignored. */
  async records() {
    const most = BigInt(RECORD) * this.checkpoints + BigInt(RECORD - 1), limit = most < MAX_RECORDS ? Number(most) : MAX_RECORDS;
    const raw = await this.whole("records.bin", limit), view = new DataView(raw.buffer, raw.byteOffset);
    return Array.from({ length: Math.floor(raw.length / RECORD) }, (_, k) => {
      const at = RECORD * k, step = view.getBigUint64(at), hex = (from, size) => hexOf(raw.subarray(at + from, at + from + size));
      if (step !== this.lastStep(k)) refuse(`${this.name}/records.bin: record ${k} is of step ${step}`);
      const record = { step, state: hex(8, 32), loss: view.getUint32(at + 40), log: hex(44, 32) };
      return { ...record, digest: this.recheck.record(step, record.state, BigInt(record.loss), record.log) };
    });
  }

  rootOver(records) {
    const depth = depthOf(this.checkpoints), count = BigInt(records.length);
    if (!records.length) return this.recheck.empty(depth);
    return this.recheck.digest("pad", bytesOf(this.recheck.tree(records.map(({ digest }) => digest))), depthOf(count), depth);
  }

  /** The last signed head, and the records that it commits to: step (1) of an audit. */
  async signed() {
    const name = this.headNames.at(-1);
    if (!name) throw new Asked(`${this.name}: expected at least one signed head, got none; train with the key that signs them`);
    const head = await this.head(name), records = (await this.records()).slice(0, Number(head.count)), root = this.rootOver(records);
    if (BigInt(records.length) < head.count || root !== head.run_root)
      throw new CannotCheck(`expected ${head.count} records with the signed root ${head.run_root}, got ${records.length} with ${root}; `
        + "a whole audit needs none of them");
    for (const { step, loss } of records) this.agreement.checkLoss(step, BigInt(loss), Fraud);
    return { head, records };
  }

  /** The steps, ascending, whose states are kept of the initial state and these records. */
  kept(records) {
    const last = records.length ? this.lastStep(records.length - 1) : 0n;
    const isKept = (step) => step <= last && step === this.lastStep(this.checkpointOf(step));
    return [...this.files.keys()].filter((path) => STATE_NAME.test(path)).map((path) => [path, BigInt(STATE_NAME.exec(path)[1])])
      .filter(([path, step]) => path === statePath(step) && (!step || isKept(step))).map(([, step]) => step).sort((a, b) => Number(a - b));
  }

  /** The tensors of the state after a step, by name, none of them read yet. */
  async state(step) {
    const { program, name } = this, path = statePath(step);
    const found = await tensorsOf(this.file(path), `${name}/${path}`, program.state, step ? program.frozen : new Set(), true);
    if (program.state.every((slot) => found.has(slot.name))) return found;
    const first = statePath(0n), whole = await tensorsOf(this.file(first), `${name}/${first}`, program.state, new Set(), true);
    return new Map([...whole, ...found]);
  }

  /** The ids of a state's tensors, read in pieces, which must lead to its root. */
  async identified(step, root, tell = async () => {}) {
    const tensors = await this.state(step), ids = [];
    for (const slot of this.program.state) {
      ids.push(await tensorId(this.recheck, slot, piecesOf(tensors.get(slot.name))));
      await tell();
    }
    const found = rootOf(this.recheck, STATE, this.program.state, ids);
    if (found !== root) refuse(`${this.name}/${statePath(step)}: state after step ${step}: expected root ${root}, got ${found}`);
    return { tensors, ids };
  }

  /** The committed root of a state. */
  rootAfter(step, records) { return step ? records[this.checkpointOf(step)].state : this.job.initial_state_root; }

  data() { return tensorsOf(this.file("data.safetensors"), `${this.name}/data.safetensors`, this.program.data); }

  /** The origins of instructions in the client's model, for readers: nobody signs them. */
  async origins() {
    if (!this.files.get("origins.json")) return [];
    try {
      const found = parseJson(await this.whole("origins.json", 1 << 24), 2);
      return Array.isArray(found) ? found : [];
    } catch {
      return [];
    }
  }
}

/** The run in what was dropped, or null: the files of the topmost folder that has a job, and its name. */
export function runIn(files) {
  const depth = (path) => path.split("/").length, jobs = [...files.keys()].filter((path) => /(?:^|\/)job\.bin$/.test(path));
  const job = jobs.sort((a, b) => depth(a) - depth(b))[0];
  if (job === undefined) return null;
  const folder = job.slice(0, -"job.bin".length), inside = [...files].filter(([path]) => path.startsWith(folder));
  return { name: folder.slice(0, -1) || "the run", files: new Map(inside.map(([path, file]) => [path.slice(folder.length), file])) };
}

const statePath = (step) => `checkpoints/${String(step).padStart(12, "0")}.safetensors`;

// ---------------------------------------------------------------- checks without a replay

/**
 * What holds of a run without replaying it, line by line: [holds, words].
 * @param {() => Promise<void>} tell called often; it may wait, and throw
 */
export async function checkRun(run, tell = async () => {}) {
  const lines = [[true, `1. the job is signed by its client 0x${run.job.client} and its trainer 0x${run.job.trainer}`],
    [true, `2. the program is the job's: root ${run.program.root}, ${run.program.body} instructions`]];
  const line = async (number, work) => {
    try {
      const words = await work();
      if (words) lines.push([true, `${number}. ${words}`]);
      return true;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      lines.push([false, `${number}. ${error.message}`]);
      return false;
    }
  };
  await line(3, async () => {
    for (const path of run.headNames) await run.head(path);
    return `${run.headNames.length} ${run.headNames.length === 1 ? "head is" : "heads are"} signed by the trainer`;
  });
  let records = [];
  await line(4, async () => {
    const signed = await run.signed();
    records = signed.records;
    return `${records.length} of ${run.checkpoints} records stand under the last head's root ${signed.head.run_root}`;
  });
  await line(5, async () => {
    const tensors = await run.data(), ids = [];
    for (const slot of run.program.data) {
      ids.push(await tensorId(run.recheck, slot, piecesOf(tensors.get(slot.name))));
      await tell();
    }
    const found = rootOf(run.recheck, DATA, run.program.data, ids);
    if (found !== run.job.data_root) refuse(`${run.name}/data.safetensors: expected root ${run.job.data_root}, got ${found}`);
    return `the data are the job's: root ${found}`;
  });
  const good = [];
  for (const step of run.kept(records)) await line(6, async () => {
    await run.identified(step, run.rootAfter(step, records), tell);
    good.push(step);
  });
  const shown = `${good.slice(0, 8).join(", ")}${good.length > 8 ? ", ..." : ""}`;
  if (good.length) lines.push([true, `6. the states after steps ${shown} are what was committed`]);
  return lines;
}
