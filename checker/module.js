/** The module `recheck.wasm` (recheck/wasm.c) in JavaScript. Digests and addresses are hex without 0x. */

/** A sentence for the user: what was expected, and what came. */
export class Refused extends Error {}

/** @param {string} sentence @returns {never} */
export const refuse = (sentence) => { throw new Refused(sentence); };

/** What `work` returns and null, or null and its refusal. @template T @param {() => T} work @returns {[T, Refused]} */
export function attempt(work) {
  try {
    return [work(), null];
  } catch (error) {
    if (error instanceof Refused) return [null, error];
    throw error;
  }
}

/** What `work` returns; its refusal gets a name in front, unless that is in it. @template T @param {() => T} work */
export function naming(name, work) {
  const [found, refusal] = attempt(work);
  if (refusal) refuse(refusal.message.includes(name) ? refusal.message : `${name}: ${refusal.message}`);
  return found;
}

/** Awaits work; if it is refused, `instead` gets the reason. @template T @param {() => T} work @returns {Promise<T>} */
export async function refusing(work, instead) {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Refused) return instead(error.message);
    throw error;
  }
}

/** @param {string} hex @returns {Uint8Array} */
export const bytesOf = (hex) => Uint8Array.from(hex.match(/../g) ?? [], (pair) => parseInt(pair, 16));
/** @param {Iterable<number>} bytes @returns {string} */
export const hexOf = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
/** @param {string} text @returns {Uint8Array} */
export const utf8 = (text) => new TextEncoder().encode(text);

/** Kinds of entries. */
export const STATE = 2;
export const DATA = 3;

export class Recheck {
  /** @param {BufferSource} bytes of the module @param {number} limit the most memory that it may take, in bytes */
  constructor(bytes, limit = 1 << 28) {
    const imports = { recheck: { refuse: (at, size) => refuse(new TextDecoder().decode(this.get(at, size))) } };
    this.exports = new WebAssembly.Instance(new WebAssembly.Module(bytes), imports).exports;
    this.exports.limit(BigInt(limit));
    this.empties = [this.digest("empty")];
  }

  /** A copy of bytes in the module's memory. */
  get(at, size) { return new Uint8Array(this.exports.memory.buffer, at >>> 0, size).slice(); }

  /** Writes bytes to an address, or to new memory; the address. */
  put(bytes, at = this.exports.allocate(BigInt(bytes.length)) >>> 0) {
    new Uint8Array(this.exports.memory.buffer, at, bytes.length).set(bytes);
    return at;
  }

  /** Calls `work`, and frees what was made within. @template T @param {() => T} work @returns {T} */
  scratch(work) {
    const mark = this.exports.mark() >>> 0;
    try { return work(); } finally { this.exports.release(mark); }
  }

  /** The digest that an export returns; bytes among the arguments are put into memory first. */
  digest(name, ...given) {
    return this.scratch(() => hexOf(this.get(
      this.exports[name](...given.map((one) => (one instanceof Uint8Array ? this.put(one) : one))), 32)));
  }

  sha256(bytes) {
    return this.scratch(() => {
      const hash = this.exports.sha256_begin();
      this.exports.sha256_add(hash, this.put(bytes), bytes.length);
      return this.digest("sha256_end", hash);
    });
  }

  keccak256(bytes) { return this.digest("keccak256", bytes, bytes.length); }
  node(left, right) { return this.digest("node", bytesOf(left), bytesOf(right)); }

  /** The leaf of an entry of the state or of the data. The name is printable ASCII. */
  entry(kind, name, tensor) { return this.digest("entry", kind, utf8(name), name.length, bytesOf(tensor)); }

  /** The digest of a step record. @param {bigint} step @param {bigint} loss its bits */
  record(step, state, loss, log) { return this.digest("record", step, bytesOf(state), Number(loss), bytesOf(log)); }

  tree(leaves) {
    return this.scratch(() => {
      const tree = this.exports.tree_begin();
      for (const leaf of leaves) this.scratch(() => this.exports.tree_add(tree, this.put(bytesOf(leaf))));
      return this.digest("tree_root", tree);
    });
  }

  /** The root of a tree of this depth without leaves. */
  empty(depth) {
    while (this.empties.length <= depth) this.empties.push(this.node(this.empties.at(-1), this.empties.at(-1)));
    return this.empties[depth];
  }

  fold(leaf, position, siblings) {
    return this.digest("fold", bytesOf(leaf), BigInt(position), bytesOf(siblings.join("")), siblings.length);
  }

  /** The address whose key signed a digest. */
  signer(digest, signature) {
    if (signature.length !== 65) refuse(`expected a signature of 65 bytes, got ${signature.length}`);
    return this.scratch(() => hexOf(this.get(this.exports.signer(this.put(bytesOf(digest)), this.put(signature)), 20)));
  }
}
