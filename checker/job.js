/* Jobs and heads (SPEC section 8): their fields, the rules that a job keeps, and what is signed of them. */
import { bytesOf, hexOf, refuse, utf8 } from "./module.js";
import { itemsOf, requireBytes, uint, wide } from "./msgpack.js";

const COUNT = ["uint32", 1n, 1n << 20n], WEI = ["uint256", 0n, (1n << 128n) - 1n], STEPS = ["uint64", 1n];
const SECONDS = 1n << 28n, GAME_SECONDS = 1n << 25n, MAX_GAMES = 16n;
export const FINITE_LOSSES = 1n << 24n;
export const JOB = Object.entries({
  client: ["address"], trainer: ["address"], program_root: ["bytes32"], body_count: COUNT, state_count: COUNT,
  data_count: ["uint32", 0n, 1n << 20n], initial_state_root: ["bytes32"], data_root: ["bytes32"], steps: STEPS,
  checkpoint_interval: STEPS, policy: ["uint8", 0n, 1n], precision: ["uint8", 16n, 32n], tolerances: ["uint32"], reward: WEI,
  trainer_stake: WEI, challenger_stake: ["uint256", 1n, (1n << 128n) - 1n], challenge_window: ["uint64", 1n, SECONDS],
  clock: ["uint64", 1n, GAME_SECONDS], replay_time: ["uint64", 0n, GAME_SECONDS], talk_time: ["uint64", 0n, GAME_SECONDS],
  audit_time: ["uint64", 0n, SECONDS], deadline: ["uint64", 1n, SECONDS], seats: ["uint8", 0n, 16n], seat_fee: WEI,
  seat_bond: WEI, descent_levels: ["uint8", 1n, 5n], nonce: ["uint256"],
});
export const HEAD = Object.entries({ job_id: ["bytes32"], count: STEPS, run_root: ["bytes32"] });
const WORDS = { address: 20, bytes32: 32 };

const camel = (name) => name.replace(/_([a-z0-9])/g, (_, letter) => letter.toUpperCase());
export const typeOf = (name, kinds) => `${name}(${kinds.map(([field, [kind]]) => `${kind} ${camel(field)}`).join(",")})`;
const bitsIn = (kind) => Number(kind.slice(4));
/** A quotient, rounded up. */
export const least = (number, divisor) => (number + divisor - 1n) / divisor;

/** The fields of a record by name, from its decoded array: bytes as hex, numbers as BigInt. */
export function fieldsOf(type, kinds, what, item) {
  const items = itemsOf(what, item, kinds.length);
  const values = kinds.map(([, [kind]], k) => kind === "uint256" ? wide(`${what}, field ${k + 1}`, items[k]) : items[k]);
  return Object.fromEntries(kinds.map(([name, [kind, low, high]], k) => {
    const field = `${type}.${name}`, length = WORDS[kind];
    return [name, length ? hexOf(requireBytes(field, values[k], length)) : uint(field, values[k], bitsIn(kind), low, high)];
  }));
}

/** The rules of a job beyond the ranges of its fields, in the order in which they are checked. */
export function checkJob(job) {
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
  const bond = job.seats ? "of at least 1 with seats" : "of 0 without seats";
  if (!job.seat_bond !== !job.seats) fail(`expected a seat bond ${bond}, got ${job.seat_bond}`);
  if (job.seat_bond & job.seat_bond - 1n)
    fail(`expected a seat bond that is a power of two, got ${job.seat_bond}: jobs of one bond share a pool`);
  const stake = least(job.reward + job.trainer_stake + job.seats * (job.seat_fee + job.seat_bond), 1n << MAX_GAMES - 2n);
  if (job.challenger_stake < stake)
    fail(`expected a challenger's stake of at least ${stake} wei, got ${job.challenger_stake}: for less a trainer could fill `
      + `the job with ${MAX_GAMES} games of its own and shut challengers out`);
  const game = job.talk_time + 3n * job.clock + 6n * MAX_GAMES * job.replay_time;
  if (game > GAME_SECONDS)
    fail(`expected a game of at most ${GAME_SECONDS} seconds, got ${game}: talk, three clocks, and six allowances, each for `
      + `${MAX_GAMES} games`);
  if (job.checkpoint_interval > job.steps)
    fail(`expected a checkpoint interval of at most ${job.steps} steps, got ${job.checkpoint_interval}`);
  const audits = least(job.steps, job.checkpoint_interval) * job.audit_time;
  if (audits > SECONDS) fail(`expected an audit of all segments of at most ${SECONDS} seconds, got ${audits}`);
}

const padded = (hex) => hex.padStart(64, "0");

/** A keccak of words in hex. */
export const keccakOf = (recheck, ...words) => recheck.keccak256(bytesOf(words.join("")));

/** The hash of a structure: its type in words, and its values, hex or BigInt. */
export function structOf(recheck, type, values) {
  const words = values.map((value) => padded(typeof value === "bigint" ? value.toString(16) : value));
  return keccakOf(recheck, recheck.keccak256(utf8(type)), ...words);
}

/** What is signed of a structure in a domain. */
export function typedDigest(recheck, { chain, contract }, struct) {
  const [name, version] = ["Tiebreak", "1"].map((text) => recheck.keccak256(utf8(text)));
  const type = "EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";
  return keccakOf(recheck, "1901", structOf(recheck, type, [name, version, chain, contract]), struct);
}
