/* Jobs and heads (SPEC section 8): their files, the rules that a job keeps, and who signed them. */
import { Refused, bytesOf, hexOf, refuse, utf8 } from "./module.js";
import { itemsOf, requireBytes, uint, unpack, versioned, wide } from "./msgpack.js";

const MAX_FILE = 2048, SIGNATURE = 65, SECONDS = 1n << 28n, GAME_SECONDS = 1n << 25n, MAX_GAMES = 16n;
const STEPS = ["uint64", 1n], COUNT = ["uint32", 1n, 1n << 20n], WEI = ["uint256", 0n, (1n << 128n) - 1n];
export const FINITE_LOSSES = 1n << 24n;
/** Fields in order: their types in Solidity, and the least and the greatest number. */
const JOB = Object.entries({
  client: ["address"], trainer: ["address"], program_root: ["bytes32"], body_count: COUNT, state_count: COUNT,
  data_count: ["uint32", 0n, 1n << 20n], initial_state_root: ["bytes32"], data_root: ["bytes32"], steps: STEPS,
  checkpoint_interval: STEPS, policy: ["uint8", 0n, 1n], precision: ["uint8", 16n, 32n], tolerances: ["uint32"],
  reward: WEI, trainer_stake: WEI, challenger_stake: ["uint256", 1n, (1n << 128n) - 1n],
  challenge_window: ["uint64", 1n, SECONDS], clock: ["uint64", 1n, GAME_SECONDS],
  replay_time: ["uint64", 0n, GAME_SECONDS], talk_time: ["uint64", 0n, GAME_SECONDS],
  audit_time: ["uint64", 0n, SECONDS], deadline: ["uint64", 1n, SECONDS], seats: ["uint8", 0n, 16n], seat_fee: WEI,
  seat_bond: WEI, descent_levels: ["uint8", 1n, 5n], nonce: ["uint256"],
});
const HEAD = Object.entries({ job_id: ["bytes32"], count: STEPS, run_root: ["bytes32"] });
const SIZES = { address: 20, bytes32: 32 };

/** The fields of a record by name, from its decoded array: bytes as hex, numbers as BigInt. */
function fieldsOf(type, kinds, what, item) {
  const items = itemsOf(what, item, kinds.length), isWide = (k) => kinds[k][1][0] === "uint256";
  const values = items.map((one, k) => isWide(k) ? wide(`${what}, field ${k + 1}`, one) : one);
  return Object.fromEntries(kinds.map(([name, [kind, low, high]], k) => {
    const field = `${type}.${name}`, size = SIZES[kind], value = values[k];
    return [name, size ? hexOf(requireBytes(field, value, size)) : uint(field, value, kind.slice(4), low, high)];
  }));
}

/** The bytes of a record that are hashed: the hash of its type (EIP-712), and a word for each field. */
function structure(recheck, type, kinds, record) {
  const camel = (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
  const fields = kinds.map(([name, [kind]]) => `${kind} ${camel(name)}`), words = kinds.map(([name]) => record[name]);
  const padded = words.map((word) => (typeof word === "bigint" ? word.toString(16) : word).padStart(64, "0"));
  return bytesOf(recheck.keccak256(utf8(`${type}(${fields.join(",")})`)) + padded.join(""));
}

/** Requires the signature by an address over a structure in a domain. */
function checkSignature(recheck, { chain, contract }, hashed, signature, address) {
  const domain = recheck.digest("domain", chain, bytesOf(contract));
  const found = recheck.signer(recheck.digest("to_sign", bytesOf(domain), hashed, hashed.length), signature);
  if (found !== address) refuse(`expected a signature by 0x${address}, got one by 0x${found}`);
}

/** A quotient, rounded up. */
const least = (number, divisor) => (number + divisor - 1n) / divisor;

/** The rules of a job beyond the ranges of its fields. */
function checkJob(job) {
  const isLogged = job.policy === 1n, { seats, tolerances, seat_bond: bond, checkpoint_interval: interval } = job;
  const sums = tolerances & ~FINITE_LOSSES;
  ["PLAIN", "PRODUCTS", "SCATTER"].forEach((kind, k) => {
    const sum = tolerances >> BigInt(8 * k) & 255n;
    if (sum && (sum < 2n || sum > 64n)) refuse(`tolerances: expected 0 or 2 to 64 for ${kind} sums, got ${sum}`);
  });
  if (sums >> 24n) refuse(`tolerances: expected a number below 2^24, got 0x${sums.toString(16)}`);
  const stake = least(job.reward + job.trainer_stake + seats * (job.seat_fee + bond), 1n << MAX_GAMES - 2n);
  const game = job.talk_time + 3n * job.clock + 6n * MAX_GAMES * job.replay_time;
  const audits = least(job.steps, interval) * job.audit_time;
  const rules = [
    [BigInt(`0x${job.client}`), "a client address", "zero"],
    [BigInt(`0x${job.trainer}`), "a trainer address", "zero"],
    [isLogged || !(tolerances & FINITE_LOSSES), "policy logged if finite losses are demanded", "policy exact"],
    [isLogged || !tolerances, "tolerances 0 under policy exact", `0x${tolerances.toString(16)}`],
    [!isLogged || !seats, "no seats under policy logged", seats],
    [seats || !job.seat_fee, "a seat fee of 0 without seats", job.seat_fee],
    [!bond === !seats, `a seat bond of ${seats ? "at least 1 with" : "0 without"} seats`, bond],
    [!(bond & bond - 1n), "a seat bond that is a power of two", bond],
    [job.challenger_stake >= stake, `a challenger's stake of at least ${stake} wei`, job.challenger_stake],
    [game <= GAME_SECONDS, `a game of at most ${GAME_SECONDS} seconds`, game],
    [interval <= job.steps, `a checkpoint interval of at most ${job.steps} steps`, interval],
    [audits <= SECONDS, `an audit of all segments of at most ${SECONDS} seconds`, audits],
  ];
  for (const [holds, words, got] of rules) if (!holds) refuse(`job: expected ${words}, got ${got}`);
}

/** A job file, with what follows from its fields. */
export class SignedJob {
  /** @param {Uint8Array} bytes */
  constructor(recheck, bytes) {
    const [chain, contract, fields, ...signatures] = versioned("job file", unpack(bytes, MAX_FILE), 6);
    const of = (n) => `job file, field ${n}`;
    this.domain = { chain: wide(of(2), chain), contract: hexOf(requireBytes(of(3), contract, 20)) };
    if (this.domain.chain >> 64n) refuse(`job file, field 2: expected a chain below 2^64, got ${this.domain.chain}`);
    this.job = fieldsOf("Job", JOB, "job file, field 4", fields);
    checkJob(this.job);
    this.signatures = signatures.map((one, k) => requireBytes(`job file, field ${5 + k}`, one, SIGNATURE));
    this.hashed = structure(recheck, "Job", JOB, this.job);
    this.id = recheck.keccak256(this.hashed);
    this.checkpoints = least(this.job.steps, this.job.checkpoint_interval);
    this.isLogged = this.job.policy === 1n;
    Object.assign(this, { recheck, bytes });
  }

  /** Requires that client and trainer signed. */
  verify() {
    const { recheck, domain, hashed, job, signatures } = this;
    [job.client, job.trainer].forEach((who, k) => checkSignature(recheck, domain, hashed, signatures[k], who));
  }

  /** Refuses the loss of a record that the job forbids. @param {bigint} loss its bits */
  checkLoss(step, loss, Failure = Refused) {
    if (!(this.job.tolerances & FINITE_LOSSES) || (loss & 0x7f800000n) !== 0x7f800000n) return;
    const got = loss & 0x7fffffn ? "nan" : loss >> 31n ? "-inf" : "inf", bits = loss.toString(16).padStart(8, "0");
    throw new Failure(`step ${step}: expected a finite loss, as the job demands, got ${got} (0x${bits})`);
  }
}

/** A head file. */
export class SignedHead {
  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    const items = versioned("head file", unpack(bytes, MAX_FILE), 5);
    this.bytes = bytes;
    this.head = fieldsOf("Head", HEAD, "head", items.slice(0, 3));
    this.signature = requireBytes("head file, field 5", items[3], SIGNATURE);
  }

  /** Requires a head of this job, signed by its trainer. @param {SignedJob} agreement */
  verify({ recheck, id, checkpoints, domain, job }) {
    const { head, signature } = this;
    if (head.job_id !== id) refuse(`head: expected job ${id}, got ${head.job_id}`);
    if (head.count > checkpoints) refuse(`head: expected at most ${checkpoints} checkpoints, got ${head.count}`);
    checkSignature(recheck, domain, structure(recheck, "Head", HEAD, head), signature, job.trainer);
  }
}
