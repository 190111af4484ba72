/* A program in the module, and its replay: state and data are filled in, and each step is computed in pieces. */
import { STATE, DATA, hexOf, refuse } from "./module.js";
import { DTYPES, piecesOf } from "./tensors.js";

const LATE = 4, MOST_MEMORY = 2 ** 32 - 2 ** 16, LEAST_LIMIT = 2 ** 28, MANY_ENTRIES = 1 << 23, SLACK = 1 << 23;
/** Milliseconds. */
const REST = 50;
const SIZES = [4, 8, 1], SOURCE = 1, SUMS = [3, 5];
const FAMILIES = ["", "source", "map", "reduce", "gather", "scatter sum", "window", "iota", "random", "shuffle"];
const MAPS = "copy add sub mul div sqrt neg abs max min exp log tanh erf sin cos bf16 . . . lt le eq ne and or not "
  + "where cast . floordiv mod";
const FUNCTIONS = { 1: "const step state data late", 2: MAPS, 3: "sum max argmax sum_bf16", 6: "fill else" };

/** A program whose bytes are in the module, which may take the memory of a replay from then on. */
export class Program {
  /** @param {import("./module.js").Recheck} recheck @param {Uint8Array} bytes */
  constructor(recheck, bytes) {
    const { exports } = recheck, at = exports.program(recheck.put(bytes), bytes.length), body = exports.count(at, 0);
    const root = recheck.digest("program_root", at), work = BigInt.asUintN(64, exports.work(at));
    /** work: the terms of a step. */
    Object.assign(this, { recheck, exports, at, body, root, work });
    const slot = (kind, k) => this.describe(exports.slot(at, kind, k));
    [this.state, this.data, this.late] = [STATE, DATA, LATE].map((kind) =>
      Array.from({ length: exports.count(at, kind) }, (_, k) => slot(kind, k)));
    /** All instructions of the body; the sums that a log may decide, in order, and how many elements these have. */
    this.all = Array.from({ length: body }, (_, k) => this.describe(k));
    this.loggedSums = this.all.filter((i) => SUMS.includes(i.opcode) && i.function === 0 && i.dtype === 0);
    this.loggable = this.loggedSums.reduce((sum, { elements }) => sum + elements, 0);
    const counts = new Map();
    for (const { operand } of this.state) counts.set(operand, (counts.get(operand) ?? 0) + 1);
    const frozen = this.state.filter(({ name, operand }) => {
      const made = this.all[operand], isSame = made.opcode === SOURCE && made.function === STATE && made.name === name;
      return isSame && counts.get(operand) === 1;
    });
    /** The names of the entries that no step changes. */
    this.frozen = new Set(frozen.map(({ name }) => name));
    /** About how many bytes a replay takes: program, state, data, and all values of a step with its log. */
    const made = this.all.filter((i) => i.opcode !== SOURCE || i.function < STATE);
    this.memory = [this.state, this.state, this.data, this.late, this.late, made].flat()
      .reduce((sum, one) => sum + one.bytes + 64, 2 * bytes.length + 9 * Math.min(this.loggable, MANY_ENTRIES) + SLACK);
    if (this.memory > MOST_MEMORY)
      refuse(`expected a replay in at most ${MOST_MEMORY} bytes of memory, got one in ${this.memory}`);
    exports.limit(BigInt(Math.max(this.memory, LEAST_LIMIT)));
  }

  /** An instruction: opcode, function, dtype, dims, its first operand's value, name, elements, bytes. */
  describe(number) {
    const view = new DataView(this.recheck.get(this.exports.describe(this.at, number), 192).buffer);
    const [opcode, kind, dtype, rank, , , operand, , , at, length] = new Uint32Array(view.buffer);
    const dims = Array.from({ length: rank }, (_, k) => Number(view.getBigUint64(64 + 8 * k, true)));
    const elements = Number(view.getBigUint64(48, true)), name = new TextDecoder().decode(this.recheck.get(at, length));
    return { number, opcode, function: kind, dtype, dims, operand, name, elements, bytes: elements * SIZES[dtype] };
  }
}

/** An instruction's family, function and result: `reduce sum → f32[8, 16]`. */
export function operationOf({ opcode, function: kind, dtype, dims }) {
  const name = FUNCTIONS[opcode]?.split(" ")[kind] ?? "", shape = dims.length ? `[${dims.join(", ")}]` : "";
  return `${`${FAMILIES[opcode]} ${name}`.trim()} → ${DTYPES[dtype].toLowerCase()}${shape}`;
}

/** The id of a tensor, from its pieces; memory is that of a piece. */
export async function tensorId(recheck, { dtype, dims }, pieces) {
  const { exports } = recheck, mark = exports.mark();
  try {
    const sizes = new Uint8Array(BigUint64Array.from(dims, BigInt).buffer);
    const tensor = exports.tensor_begin(dtype, dims.length, recheck.put(sizes));
    for await (const piece of pieces)
      recheck.scratch(() => exports.tensor_add(tensor, recheck.put(piece), piece.length));
    return recheck.digest("tensor_id", tensor);
  } finally {
    exports.release(mark);
  }
}

/** One replay, whose memory whoever made it releases. */
export class Replay {
  /** @param {Program} program */
  constructor(program, precision, tolerances) {
    const { recheck, exports } = program, at = exports.replay(program.at, precision, tolerances);
    Object.assign(this, { program, recheck, exports, at, until: 0 });
  }

  place(kind, slot) { return this.exports.tensor(this.at, kind, slot) >>> 0; }

  /** Fills in the state or the data, which must have this root. @param {Map<string, object>} tensors by name */
  async fill(kind, tensors, expected, what) {
    const { program, recheck } = this, slots = kind === STATE ? program.state : program.data;
    for (const [slot, { name }] of slots.entries()) {
      let at = this.place(kind, slot);
      for await (const piece of piecesOf(tensors.get(name))) at = recheck.put(piece, at) + piece.length;
    }
    const found = recheck.digest("inputs", this.at, kind);
    if (found !== expected) refuse(`${what}: expected root ${expected}, got ${found}`);
  }

  /**
   * Computes a step. log: puts the step's log into the module, see `putLog`; null: none.
   * @param {bigint} number @param {(done: bigint) => Promise<void>} tell called after each piece, about `budget` terms
   * @returns {Promise<{state: string, loss: number, ids: string[]}>} ids: those of the entries of the new state
   */
  async step(number, log, tell, budget = 1n << 22n) {
    const { exports, recheck, program } = this, mark = exports.mark();
    try {
      const { at, size } = log ? log() : { at: 0, size: 0 };
      exports.begin(this.at, number, at, size);
      while (!exports.advance(this.at, budget)) {
        await tell(BigInt.asUintN(64, exports.done(this.at)));
        await this.rest();
      }
      await this.rest();
      const state = recheck.digest("state", this.at), loss = exports.loss(this.at) >>> 0;
      const all = exports.ids(this.at) >>> 0;
      const ids = program.state.map(({ operand }) => hexOf(recheck.get(all + 32 * operand, 32)));
      exports.end(this.at);
      return { state, loss, ids };
    } finally {
      exports.release(mark);
    }
  }

  /** Lets messages in now and then, such as one to pause: awaiting what is there already does not. */
  async rest() {
    if (performance.now() < this.until) return;
    await new Promise((resolve) => { setTimeout(resolve); });
    this.until = performance.now() + REST;
  }

  /** The digest of the record of a step. log: the root of its segment's logs, if there are any. */
  record(step, { state, loss }, log = "00".repeat(32)) { return this.recheck.record(step, state, loss, log); }
}
