/* A run's folder (tiebreak/engine/run/directory.py): what its job, its heads, its records and its states say. */
import { Refused, refuse, refusing, bytesOf, hexOf, STATE } from "./module.js";
import { printable } from "./formats.js";
import { Folder, piecesOf } from "./tensors.js";
import { SignedHead, SignedJob } from "./job.js";
import { Program, tensorId } from "./replay.js";

/** A request for what is not there. */
export class Asked extends Refused {}
/** A replay contradicts what the trainer signed. details: lines to show below the sentence. place: see `placeOf`. */
export class Fraud extends Refused {}

const MAX_FILE = 1 << 16, MAX_RECORDS = 1 << 25, MAX_PROGRAM = 1 << 30, RECORD = 76, MAX_ORIGIN = 160;
const STATE_NAME = /^checkpoints\/([0-9]{12,20})\.safetensors$/, JOB_NAME = /(?:^|\/)job\.bin$/;

/** The depth of a tree of so many leaves. */
const depthOf = (count) => (count > 1n ? (count - 1n).toString(2).length : 0);
const named = (prefix, work) => refusing(work, (said) => refuse(`${prefix}: ${said}`));

/** Bits of an f32 as a number. */
export const floatOf = (bits) => new Float32Array(Uint32Array.of(bits).buffer)[0];
const pathOfState = (step) => `checkpoints/${String(step).padStart(12, "0")}.safetensors`;

/** An opened run. */
export class Run extends Folder {
  /**
   * Opens a run, perhaps a stranger's: its job, signed by both, and its program, which must be the job's.
   * @param {import("./module.js").Recheck} recheck @param {Folder["files"]} files @param {string} folder the run's
   */
  static async open(recheck, files, folder) {
    const run = Object.assign(new Run(files, folder), { recheck }), { name } = run;
    const raw = await run.whole("job.bin", MAX_FILE);
    await named(`${name}/job.bin`, () => run.readJob(raw));
    const bytes = await run.whole("program.tbp", MAX_PROGRAM);
    const program = run.program = await named(`${name}/program.tbp`, () => new Program(recheck, bytes)), { job } = run;
    const { root, body, state, data } = program;
    const terms = { root: [job.program_root, root], body: [job.body_count, BigInt(body)],
      state: [job.state_count, BigInt(state.length)], data: [job.data_count, BigInt(data.length)] };
    for (const [part, [expected, found]] of Object.entries(terms))
      if (expected !== found) refuse(`program ${part}: expected ${expected} as in the job, got ${found}`);
    return run;
  }

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
  span(checkpoint) { return [this.firstStep(checkpoint), this.lastStep(checkpoint)]; }
  checkpointOf(step) { return Number((step - 1n) / this.job.checkpoint_interval); }

  /** A signed head, checked. */
  async head(path) {
    const raw = await this.whole(path, MAX_FILE);
    const head = await named(`${this.name}/${path}`, () => {
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
    const limit = Math.min(RECORD * Number(this.checkpoints) + RECORD - 1, MAX_RECORDS);
    const raw = await this.whole("records.bin", limit), view = new DataView(raw.buffer, raw.byteOffset);
    return Array.from({ length: Math.floor(raw.length / RECORD) }, (_, k) => {
      const at = RECORD * k, step = view.getBigUint64(at), loss = view.getUint32(at + 40);
      const [state, log] = [8, 44].map((from) => hexOf(raw.subarray(at + from, at + from + 32)));
      if (step !== this.lastStep(k)) refuse(`${this.name}/records.bin: record ${k} is of step ${step}`);
      return { step, state, loss, log, digest: this.recheck.record(step, state, loss, log) };
    });
  }

  /** The last signed head, and the records that it commits to: step (1) of an audit. */
  async signed() {
    const name = [...this.files.keys()].filter((path) => /^heads\/[^/]*\.bin$/.test(path)).sort().at(-1);
    if (!name)
      throw new Asked(`${this.name}: expected at least one signed head, got none; train with the key that signs them`);
    const head = await this.head(name), records = (await this.records()).slice(0, Number(head.count));
    const tree = bytesOf(this.recheck.tree(records.map(({ digest }) => digest))), depth = depthOf(this.checkpoints);
    const root = this.recheck.digest("pad", tree, depthOf(BigInt(records.length)), depth);
    if (BigInt(records.length) < head.count || root !== head.run_root)
      refuse(`expected ${head.count} records with the signed root ${head.run_root}, got ${records.length} with ${root};`
        + " a whole audit needs none of them");
    for (const { step, loss } of records) this.agreement.checkLoss(step, BigInt(loss), Fraud);
    return { head, records };
  }

  /** The steps, ascending, whose states are kept of the initial state and these records. */
  kept(records) {
    const last = records.length ? this.lastStep(records.length - 1) : 0n;
    const isKept = (step) => !step || (step <= last && step === this.lastStep(this.checkpointOf(step)));
    const found = [...this.files.keys()].map((path) => STATE_NAME.exec(path)).filter((match) => match);
    const steps = found.filter(([path, step]) => path === pathOfState(BigInt(step)) && isKept(BigInt(step)));
    return steps.map(([, step]) => BigInt(step)).sort((a, b) => Number(a - b));
  }

  /** The tensors of the state after a step, by name, none read yet. The first file may have those that never change. */
  async state(step) {
    const { state, frozen } = this.program, open = (of, absent) => this.tensors(pathOfState(of), state, absent, true);
    const found = await open(step, step ? frozen : new Set());
    return found.size === state.length ? found : new Map([...await open(0n, new Set()), ...found]);
  }

  /** The ids of a state's tensors, read in pieces, which must lead to its committed root. */
  async identified(step, records, tell = async () => {}) {
    const tensors = await this.state(step), ids = [], root = this.rootAfter(step, records);
    for (const slot of this.program.state) {
      ids.push(await tensorId(this.recheck, slot, piecesOf(tensors.get(slot.name))));
      await tell();
    }
    const leaves = this.program.state.map(({ name }, k) => this.recheck.entry(STATE, name, ids[k]));
    const found = this.recheck.tree(leaves), path = `${this.name}/${pathOfState(step)}`;
    if (found !== root) refuse(`${path}: state after step ${step}: expected root ${root}, got ${found}`);
    return { tensors, ids };
  }

  /** The committed root of a state. */
  rootAfter(step, records) { return step ? records[this.checkpointOf(step)].state : this.job.initial_state_root; }

  /** Where in the client's model an instruction comes from, for readers: nobody signs it. */
  async origin(instruction) {
    try {
      const found = JSON.parse(new TextDecoder().decode(await this.whole("origins.json", 1 << 24)))[instruction];
      return printable(String(found ?? "")).slice(0, MAX_ORIGIN);
    } catch {
      return "";
    }
  }
}

/** The topmost folder with a job in what was dropped. */
export function folderOfRun(files) {
  const depth = (path) => path.split("/").length, jobs = [...files.keys()].filter((path) => JOB_NAME.test(path));
  const job = jobs.sort((a, b) => depth(a) - depth(b))[0];
  if (!job) throw new Asked("expected the folder of a run, got none that has a job.bin; see `tiebreak agree`");
  return job.replace(JOB_NAME, "");
}
