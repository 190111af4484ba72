/* A run's folder (tiebreak/engine/run/directory.py): what its job, its heads and its records say, and replays of its segments
   as `tiebreak audit` makes them (tiebreak/engine/run/audit.py). */
import { Refused, refuse, bytesOf, hexOf, utf8, STATE, DATA } from "./module.js";
import { parseJson, quoted } from "./formats.js";
import { unpack, versioned, itemsOf, requireBytes, uint, wide } from "./msgpack.js";
import { DTYPES, piecesOf, readWhole, tensorsOf } from "./tensors.js";
import { LATE, Program, Replay, operationOf, rootOf, structOf, tensorId, typedDigest } from "./replay.js";
import { LogFile } from "./logs.js";

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

const COUNT = ["uint32", 1n, 1n << 20n], WEI = ["uint256", 0n, (1n << 128n) - 1n], STEPS = ["uint64", 1n];
const SECONDS = 1n << 28n, GAME_SECONDS = 1n << 25n, MAX_GAMES = 16n, FINITE_LOSSES = 1n << 24n;
const JOB = Object.entries({
  client: ["address"], trainer: ["address"], program_root: ["bytes32"], body_count: COUNT, state_count: COUNT,
  data_count: ["uint32", 0n, 1n << 20n], initial_state_root: ["bytes32"], data_root: ["bytes32"], steps: STEPS,
  checkpoint_interval: STEPS, policy: ["uint8", 0n, 1n], precision: ["uint8", 16n, 32n], tolerances: ["uint32"], reward: WEI,
  trainer_stake: WEI, challenger_stake: ["uint256", 1n, (1n << 128n) - 1n], challenge_window: ["uint64", 1n, SECONDS],
  clock: ["uint64", 1n, GAME_SECONDS], replay_time: ["uint64", 0n, GAME_SECONDS], talk_time: ["uint64", 0n, GAME_SECONDS],
  audit_time: ["uint64", 0n, SECONDS], deadline: ["uint64", 1n, SECONDS], seats: ["uint8", 0n, 16n], seat_fee: WEI,
  seat_bond: WEI, descent_levels: ["uint8", 1n, 5n], nonce: ["uint256"],
});
const HEAD = Object.entries({ job_id: ["bytes32"], count: STEPS, run_root: ["bytes32"] });
const MAX_FILE = 1 << 16, MAX_MESSAGE = 2048, MAX_RECORDS = 1 << 26, MAX_PROGRAM = 1 << 30, RECORD = 76, SIGNATURE = 65;
const WORDS = { address: 20, bytes32: 32 };
const STATE_NAME = /^checkpoints\/([0-9]{12,20})\.safetensors$/;

const camel = (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
const typeOf = (name, kinds) => `${name}(${kinds.map(([field, [kind]]) => `${kind} ${camel(field)}`).join(",")})`;
const bitsIn = (kind) => Number(kind.slice(4));
const least = (number, divisor) => (number + divisor - 1n) / divisor;
const depthOf = (count) => BigInt(count - 1n).toString(2).length * (count > 1n ? 1 : 0);
const named = (prefix, work) => {
  try {
    return work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return refuse(`${prefix}: ${error.message}`);
  }
};

/** The fields of a record by name, from its decoded array: bytes as hex, numbers as BigInt. */
function fieldsOf(type, kinds, what, item) {
  const items = itemsOf(what, item, kinds.length);
  const values = kinds.map(([, [kind]], k) => kind === "uint256" ? wide(`${what}, field ${k + 1}`, items[k]) : items[k]);
  return Object.fromEntries(kinds.map(([name, [kind, low, high]], k) => {
    const field = `${type}.${name}`, length = WORDS[kind];
    return [name, length ? hexOf(requireBytes(field, values[k], length)) : uint(field, values[k], bitsIn(kind), low, high)];
  }));
}

/** The rules of a job beyond the ranges of its fields, in the order in which they are checked. */
function checkJob(job) {
  const fail = (words) => refuse(words.startsWith("tolerances") ? words : `job: ${words}`), isLogged = job.policy === 1n;
  for (const name of ["client", "trainer"]) if (!BigInt(`0x${job[name]}`)) fail(`expected a ${name} address, got zero`);
  ["PLAIN", "PRODUCTS", "SCATTER"].forEach((kind, k) => {
    const n = job.tolerances >> BigInt(8 * k) & 255n;
    if (n && (n < 2n || n > 64n)) fail(`tolerances: expected 0 or 2 to 64 for ${kind} sums, got ${n}`);
  });
  const sums = job.tolerances & ~FINITE_LOSSES;
  if (sums >> 24n) fail(`tolerances: expected a number below 2^24, got 0x${sums.toString(16)}`);
  if (job.tolerances & FINITE_LOSSES && !isLogged) fail("expected policy logged if finite losses are demanded, got policy exact");
  if (job.tolerances && !isLogged) fail(`expected tolerances 0 under policy exact, got 0x${job.tolerances.toString(16)}`);
  if (job.seats && isLogged) fail(`expected no seats under policy logged, got ${job.seats}`);
  if (job.seat_fee && !job.seats) fail(`expected a seat fee of 0 without seats, got ${job.seat_fee}`);
  if (!job.seat_bond !== !job.seats) fail(`expected a seat bond ${job.seats ? "of at least 1 with seats" : "of 0 without seats"}, got ${job.seat_bond}`);
  if (job.seat_bond & job.seat_bond - 1n) fail(`expected a seat bond that is a power of two, got ${job.seat_bond}: jobs of one bond share a pool`);
  const stake = least(job.reward + job.trainer_stake + job.seats * (job.seat_fee + job.seat_bond), 1n << MAX_GAMES - 2n);
  if (job.challenger_stake < stake)
    fail(`expected a challenger's stake of at least ${stake} wei, got ${job.challenger_stake}: for less a trainer could fill the job with ${MAX_GAMES} games of its own and shut challengers out`);
  const game = job.talk_time + 3n * job.clock + 6n * MAX_GAMES * job.replay_time;
  if (game > GAME_SECONDS) fail(`expected a game of at most ${GAME_SECONDS} seconds, got ${game}: talk, three clocks, and six allowances, each for ${MAX_GAMES} games`);
  if (job.checkpoint_interval > job.steps) fail(`expected a checkpoint interval of at most ${job.steps} steps, got ${job.checkpoint_interval}`);
  const audits = least(job.steps, job.checkpoint_interval) * job.audit_time;
  if (audits > SECONDS) fail(`expected an audit of all segments of at most ${SECONDS} seconds, got ${audits}`);
}

/** Bits of an f32 as a number. */
const floatOf = (bits) => new Float32Array(Uint32Array.of(bits).buffer)[0];
const inPython = (number) => Number.isNaN(number) ? "nan" : String(number).replace("Infinity", "inf");

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
    const { recheck } = this, top = versioned("job file", unpack(raw, MAX_MESSAGE), 6);
    const chain = wide("job file, field 2", top[1]), contract = hexOf(requireBytes("job file, field 3", top[2], 20));
    const job = fieldsOf("Job", JOB, "job file, field 4", top[3]);
    checkJob(job);
    const signatures = [4, 5].map((k) => k === 5 && top[k].length === 0 ? top[k] : requireBytes(`job file, field ${k + 1}`, top[k], SIGNATURE));
    Object.assign(this, { job, domain: { chain, contract }, isLogged: job.policy === 1n });
    this.id = structOf(recheck, typeOf("Job", JOB), JOB.map(([name]) => job[name]));
    this.checkpoints = least(job.steps, job.checkpoint_interval);
    const digest = typedDigest(recheck, this.domain, this.id);
    this.checkSignature(digest, signatures[0], job.client);
    this.checkSignature(digest, signatures[1], job.trainer);
  }

  checkSignature(digest, signature, address) {
    if (signature.length !== SIGNATURE) refuse(`expected a signature of ${SIGNATURE} bytes, got ${signature.length}`);
    const found = this.recheck.signer(digest, signature);
    if (found !== address) refuse(`expected a signature by 0x${address}, got one by 0x${found}`);
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
      const top = versioned("head file", unpack(raw, MAX_MESSAGE), 5), found = fieldsOf("Head", HEAD, "head", top.slice(1, 4));
      const signature = requireBytes("head file, field 5", top[4], SIGNATURE);
      if (found.job_id !== this.id) refuse(`head: expected job ${this.id}, got ${found.job_id}`);
      if (found.count > this.checkpoints) refuse(`head: expected at most ${this.checkpoints} checkpoints, got ${found.count}`);
      const struct = structOf(this.recheck, typeOf("Head", HEAD), HEAD.map(([name]) => found[name]));
      this.checkSignature(typedDigest(this.recheck, this.domain, struct), signature, this.job.trainer);
      return found;
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
      throw new CannotCheck(`expected ${head.count} records with the signed root ${head.run_root}, got ${records.length} with ${root}; a whole audit needs none of them`);
    for (const { step, loss } of records)
      if (this.job.tolerances & FINITE_LOSSES && (loss & 0x7f800000) === 0x7f800000)
        throw new Fraud(`step ${step}: expected a finite loss, as the job demands, got ${inPython(floatOf(loss))} (0x${loss.toString(16).padStart(8, "0")})`);
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
  const job = [...files.keys()].filter((path) => /(?:^|\/)job\.bin$/.test(path)).sort((a, b) => a.split("/").length - b.split("/").length)[0];
  if (job === undefined) return null;
  const folder = job.slice(0, -"job.bin".length), inside = [...files].filter(([path]) => path.startsWith(folder));
  return { name: folder.slice(0, -1) || "run", files: new Map(inside.map(([path, file]) => [path.slice(folder.length), file])) };
}

const statePath = (step) => `checkpoints/${String(step).padStart(12, "0")}.safetensors`;

// ---------------------------------------------------------------- draws

/** Draws different segments of 0 ... total - 1 by a seed and the signed root, as `tiebreak audit --sample` does. */
export function drawSegments(recheck, total, sample, seed, root) {
  if (!(sample >= 1 && sample <= total)) throw new Asked(`expected a sample of 1 to ${total} segments, got ${sample}`);
  const key = recheck.sha256(Uint8Array.of(...utf8("tiebreak: segments of an audit"), ...bytesOf(recheck.sha256(utf8(seed))), ...bytesOf(root)));
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
  const shown = chances(total, sample).map(([count, chance]) => `${count > 1 ? `${count} false segments` : "one false segment"}: ${digits(100 * chance, 3)}%`);
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
    Object.assign(this, { run, records, tell, budget, held: -1n, checked: [], starts: [], refused: [], steps: 0, entries: 0, loggedSteps: 0 });
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
    const path = `logs/${String(last).padStart(12, "0")}.log`, roots = [];
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
      throw new CannotCheck(`${name}: logs of steps ${first} to ${last}: expected log root ${records[checkpoint].log}, as committed, got ${this.logRoot}; without the committed logs nobody can say whether these steps are right`);
  }

  async readLog(step, work) {
    try {
      return await work();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      throw new CannotCheck(`${this.run.name}: log of step ${step}: expected what was committed, got none that can be read: ${error.message}`);
    }
  }

  async step(number) {
    const { run } = this, checkpoint = run.checkpointOf(number);
    if (run.isLogged && (!this.logs || this.logs.first !== run.firstStep(checkpoint))) await this.openLogs(checkpoint);
    let put = null;
    if (run.isLogged) {
      const log = await this.readLog(number, () => this.logs.read(number));
      put = () => {
        const { at, size, count } = this.logs.put(log, number);
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
    const [place, unknown] = first < last ? [`steps ${first} to ${last}`, "step, module and instruction"] : [`step ${last}`, "module and instruction"];
    const what = committed.state !== replayed.state ? "state" : committed.loss !== replayed.loss ? "loss" : "record";
    const finder = `a dispute with the replay of a whole audit (\`tiebreak audit ${run.name}\`)`;
    throw new Fraud(
      `the run leaves the program first in checkpoint ${checkpoint + 1} of ${records.length}, ${place}, where the ${what} differs; ${finder} names the ${unknown}`,
      [`  record     expected ${replayed.digest}, got ${committed.digest}`, `  signed by  0x${run.job.trainer}`],
      await placeOf(this, checkpoint, committed, replayed),
    );
  }
}

/**
 * Audits segments of a run.
 * @param {Run} run @param {number[]} wanted segments from 0, ascending
 * @param {(progress: {steps: number, step: bigint, done: bigint, work: bigint, loss: number}) => Promise<void>} tell called
 *   often: it may wait, to pause, and throw, to stop @returns the lines of `tiebreak audit`, and what it counted
 */
export async function auditSegments(run, { head, records }, wanted, tell = async () => {}, budget = undefined) {
  if (!wanted.length || wanted.some((one) => one < 0 || one >= records.length))
    throw new Asked(`expected a checkpoint below ${records.length}, got ${wanted.at(-1)}`);
  const audit = new SegmentAudit(run, records, tell, budget), mark = run.recheck.exports.mark(), began = performance.now();
  try {
    await audit.open();
    for (const checkpoint of wanted) await audit.segment(checkpoint);
    const { checked, starts, refused, steps, entries } = audit, last = run.lastStep(Number(head.count) - 1);
    const reached = checked.at(-1) === records.length - 1 && run.kept(records).includes(last);
    const sampled = reached ? await sampledIn(run, records, last) : null;
    return { checked, starts, refused, steps, entries, seconds: (performance.now() - began) / 1000, lines: linesOf(run, audit, records.length, sampled) };
  } finally {
    run.recheck.exports.release(mark);
  }
}

/** Checks the last state, which becomes the weights; whether all rollouts were the model's samples, if it says so. */
async function sampledIn(run, records, last) {
  try {
    const { ids } = await run.identified(last, run.rootAfter(last, records)), slot = run.program.state.findIndex(({ name }) => name === SAMPLED);
    return slot < 0 ? null : ids[slot] === await tensorId(run.recheck, { dtype: 0, dims: [] }, [Uint8Array.of(0, 0, 128, 63)]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    throw new CannotCheck(`expected the state after step ${last} that the trainer committed to, which is right, got another file; fetch it again or take the replay's: ${error.message}`);
  }
}

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
    const rewards = entries.map((name) => /^model\.rollouts\.mean_reward_[0-9]+_(.*)$/.exec(name)?.[1]).filter((name) => name !== undefined);
    if (rewards.length) found.rewards = `by the program: ${listed(rewards)}`;
  }
  const named = names.filter((name) => !(isChecked && OF_SAMPLES.includes(name)));
  if (named.length) found.declared = `by the trainer: ${listed(named)}`;
  return found;
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
  if (!run.kept(records).includes(step)) return { step, note: `the state after step ${step} was not kept, so no number of it can be compared` };
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
          operation: operationOf(instruction), origin: typeof origin === "string" ? origin : "", element, dims: slot.dims,
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
  const more = place.what === "loss" ? [] : [
    `made by instruction ${place.instruction} of ${place.of}: ${place.operation}${place.origin ? `, of ${quoted(place.origin).slice(1, -1).slice(0, 160)}` : ""}`,
    `at [${place.at.join(", ")}] of ${DTYPES[0].toLowerCase()}[${place.dims.join(", ")}]; ${place.differing} ${place.differing === 1 ? "entry differs" : "entries differ"} of those that were kept`,
    "an earlier instruction may be the first that was false: only the trainer's values of the step show it, in a dispute",
  ];
  return [where, ...more, claim("expected", place.expected), claim("got", place.got)];
}

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
  if (good.length) lines.push([true, `6. the states after steps ${good.slice(0, 8).join(", ")}${good.length > 8 ? ", ..." : ""} are what was committed`]);
  return lines;
}
