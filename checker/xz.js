/* Files of xz with one stream and one block of LZMA2, as the corpus has them. Checksums are not looked at: the roots of what
   the files hold are. Any other bytes throw an Error. */

const HALF = 1 << 10;
const requireXz = (holds) => { if (!holds) throw new Error("expected a file of xz"); };
const halves = (count) => new Uint16Array(count).fill(HALF);
const lengths = () => ({ choice: halves(2), low: halves(128), middle: halves(128), high: halves(256) });

/** What LZMA keeps from one piece to the next: the probabilities, the last distances, and the kinds of the last symbols. */
class Lzma {
  constructor(out) {
    this.out = out;
    this.at = this.start = 0;
  }

  reset(properties) {
    this.lc = properties % 9;
    this.lp = Math.trunc(properties / 9) % 5;
    this.pb = Math.trunc(properties / 45);
    requireXz(properties < 225 && this.lc + this.lp <= 4);
    Object.assign(this, { state: 0, last: [0, 0, 0, 0], literals: halves(0x300 << this.lc + this.lp), match: halves(192) });
    Object.assign(this, { again: [halves(12), halves(12), halves(12)], oldest: halves(12), short: halves(192), slots: halves(256) });
    Object.assign(this, { special: halves(128), align: halves(16), length: lengths(), againLength: lengths() });
  }

  bit(all, k) {
    const bound = (this.range >>> 11) * all[k], one = this.code >= bound ? 1 : 0;
    if (one) {
      this.code = this.code - bound >>> 0;
      this.range = this.range - bound >>> 0;
      all[k] -= all[k] >> 5;
    } else {
      this.range = bound;
      all[k] += 2048 - all[k] >> 5;
    }
    this.fill();
    return one;
  }

  fill() {
    if (this.range >= 1 << 24) return;
    this.range = this.range << 8 >>> 0;
    this.code = (this.code << 8 | this.from[this.place++]) >>> 0;
  }

  tree(all, offset, count) {
    let node = 1;
    for (let k = 0; k < count; k++) node = node << 1 | this.bit(all, offset + node);
    return node - (1 << count);
  }

  reversed(all, offset, count) {
    let node = 1, found = 0;
    for (let k = 0; k < count; k++) {
      const one = this.bit(all, offset + node);
      node = node << 1 | one;
      found |= one << k;
    }
    return found;
  }

  direct(count) {
    let found = 0;
    for (let k = 0; k < count; k++) {
      this.range >>>= 1;
      const one = this.code >= this.range ? 1 : 0;
      if (one) this.code = this.code - this.range >>> 0;
      this.fill();
      found = found << 1 | one;
    }
    return found;
  }

  lengthOf(from, position) {
    if (!this.bit(from.choice, 0)) return 2 + this.tree(from.low, position << 3, 3);
    return this.bit(from.choice, 1) ? 18 + this.tree(from.high, 0, 8) : 10 + this.tree(from.middle, position << 3, 3);
  }

  distance(length) {
    const slot = this.tree(this.slots, Math.min(length - 2, 3) << 6, 6), count = (slot >> 1) - 1;
    if (slot < 4) return slot;
    const base = (2 | slot & 1) << count;
    if (slot < 14) return base + this.reversed(this.special, base - slot, count);
    return (base >>> 0) + this.direct(count - 4) * 16 + this.reversed(this.align, 0, 4);
  }

  literal() {
    const { out, lc, lp } = this, before = this.at > this.start ? out[this.at - 1] : 0;
    const offset = 0x300 * (((this.at - this.start & (1 << lp) - 1) << lc) + (before >> 8 - lc));
    let node = 1;
    if (this.state > 6)
      for (let match = out[this.at - this.last[0] - 1], same = 1; same && node < 256; match <<= 1) {
        const expected = match >> 7 & 1, one = this.bit(this.literals, offset + (1 + expected << 8) + node);
        node = node << 1 | one;
        same = one === expected;
      }
    while (node < 256) node = node << 1 | this.bit(this.literals, offset + node);
    out[this.at++] = node;
    this.state = this.state < 4 ? 0 : this.state - (this.state < 10 ? 3 : 6);
  }

  /** A symbol that repeats earlier bytes: how many. */
  repeat(position) {
    const { state, last } = this, late = state < 7 ? 0 : 3;
    if (!this.bit(this.again[0], state)) {
      const length = this.lengthOf(this.length, position);
      this.last = [this.distance(length), ...last.slice(0, 3)];
      this.state = 7 + late;
      return length;
    }
    if (!this.bit(this.again[1], state)) {
      if (!this.bit(this.short, (state << 4) + position)) {
        this.state = state < 7 ? 9 : 11;
        return 1;
      }
    } else {
      const which = this.bit(this.again[2], state) ? 2 + this.bit(this.oldest, state) : 1;
      this.last = [last[which], ...last.filter((_, k) => k !== which)];
    }
    this.state = 8 + late;
    return this.lengthOf(this.againLength, position);
  }

  /** Decodes a piece up to an end of the output. */
  decode(from, end) {
    Object.assign(this, { from, place: 5, range: 0xffffffff, code: new DataView(from.buffer, from.byteOffset).getUint32(1) });
    while (this.at < end) {
      const position = this.at - this.start & (1 << this.pb) - 1;
      requireXz(this.place <= from.length);
      if (!this.bit(this.match, (this.state << 4) + position)) {
        this.literal();
        continue;
      }
      const until = this.at + this.repeat(position), distance = this.last[0] + 1;
      requireXz(until <= end && distance <= this.at - this.start);
      for (; this.at < until; this.at++) this.out[this.at] = this.out[this.at - distance];
    }
    requireXz(this.place === from.length && !this.code);
  }
}

/** The pieces of a block: where each begins and ends, its first byte, and its size when unpacked. */
function* piecesOf(data, at) {
  for (;;) {
    const kind = data[at], isPacked = kind > 127, head = isPacked ? (kind >> 5 & 3) > 1 ? 6 : 5 : 3;
    if (kind === 0) return;
    requireXz(at + head <= data.length && (isPacked || kind < 3));
    const size = (isPacked ? (kind & 31) << 16 : 0) + (data[at + 1] << 8) + data[at + 2] + 1;
    const start = at + head, end = start + (isPacked ? (data[at + 3] << 8) + data[at + 4] + 1 : size);
    requireXz(end <= data.length && end - start > (isPacked ? 4 : 0));
    yield { kind, isPacked, size, start, end };
    at = end;
  }
}

/**
 * The bytes of a file of xz.
 * @param {Uint8Array} data
 * @param {number} limit the most that it may hold
 */
export function decompressedXz(data, limit) {
  requireXz(data.length > 32 && [0xfd, 0x37, 0x7a, 0x58, 0x5a, 0].every((byte, k) => data[k] === byte));
  const first = 12 + 4 * (data[12] + 1);
  let size = 0;
  for (const piece of piecesOf(data, first)) size += piece.size; // there may be millions
  if (size > limit) throw new Error(`expected one whole file of at most ${limit} bytes, got more or less`);
  const lzma = new Lzma(new Uint8Array(size));
  let isReady = false;
  for (const { kind, isPacked, size: more, start, end } of piecesOf(data, first)) {
    const reset = isPacked ? kind >> 5 & 3 : 0;
    if (kind === 1 || reset === 3) lzma.start = lzma.at;
    if (reset > 1) lzma.properties = data[start - 1];
    if (reset) {
      requireXz(lzma.properties !== undefined);
      lzma.reset(lzma.properties);
      isReady = true;
    }
    requireXz(isReady || !isPacked);
    if (isPacked) lzma.decode(data.subarray(start, end), lzma.at + more);
    else {
      lzma.out.set(data.subarray(start, end), lzma.at);
      lzma.at += more;
    }
  }
  return lzma.out;
}
