/* Zstandard frames without a magic number (RFC 8878), as rounding logs have them: no dictionary, a window of at most 64 KiB,
   and a size that the reader knows beforehand. Any other bytes throw an Error. */

const WINDOW = 1 << 16;
const MAX_BLOCK = 1 << 17;
const LITERAL_BITS = [...Array(16).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const MATCH_BITS = [...Array(32).fill(0), 1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];
const LITERAL_SHARES = [4, 3, ...Array(11).fill(2), 1, 1, 1, ...Array(9).fill(2), 3, 2, 1, 1, 1, 1, 1, -1, -1, -1, -1];
const MATCH_SHARES = [1, 4, 3, 2, 2, 2, 2, 2, 2, ...Array(37).fill(1), ...Array(7).fill(-1)];
const OFFSET_SHARES = [1, 1, 1, 1, 1, 1, 2, 2, 2, ...Array(15).fill(1), -1, -1, -1, -1, -1];

/** The first value of each code, from the number of bits that follow it. */
const basesOf = (bits, first) => bits.reduce((all, n) => [...all, all.at(-1) + (1 << n)], [first]);
const LITERAL_BASES = basesOf(LITERAL_BITS, 0);
const MATCH_BASES = basesOf(MATCH_BITS, 3);

const broken = () => new Error("expected a Zstandard frame");
const requireFrame = (holds) => { if (!holds) throw broken(); };
const topBit = (number) => 31 - Math.clz32(number);

/** Bits of some bytes; `at` counts them from the first byte's lowest. Beyond both ends all are 0. Reads at most 24 at once. */
class Bits {
  constructor(bytes, at = 0) {
    this.bytes = bytes;
    this.at = at;
  }

  /** Of bytes that are read from their end: their highest bit marks it. */
  static backwards(bytes) {
    requireFrame(bytes.length && bytes.at(-1));
    return new Bits(bytes, 8 * (bytes.length - 1) + topBit(bytes.at(-1)));
  }

  peek(at, count) {
    const b = this.bytes, k = at >> 3;
    const word = b[k] | b[k + 1] << 8 | b[k + 2] << 16 | b[k + 3] << 24;
    return word >>> (at & 7) & (1 << count) - 1;
  }

  next(count) {
    this.at += count;
    return this.peek(this.at - count, count);
  }

  back(count) {
    requireFrame(count <= 24);
    this.at -= count;
    return this.peek(this.at, count);
  }
}

/** A table of finite state entropy: of each state the symbol, the bits to read, and the state to which they are added. */
function stateTable(shares, log) {
  const size = 1 << log, next = [], symbols = new Uint8Array(size), bits = new Uint8Array(size), base = new Uint16Array(size);
  let high = size, place = 0;
  shares.forEach((share, symbol) => {
    next[symbol] = Math.abs(share);
    if (share < 0) symbols[--high] = symbol;
  });
  shares.forEach((share, symbol) => {
    for (let k = 0; k < share; k++) {
      symbols[place] = symbol;
      do place = place + (size >> 1) + (size >> 3) + 3 & size - 1; while (place >= high);
    }
  });
  requireFrame(!place);
  for (let state = 0; state < size; state++) {
    const count = next[symbols[state]]++;
    bits[state] = log - topBit(count);
    base[state] = (count << bits[state]) - size;
  }
  return { log, symbols, bits, base };
}

/** Reads a table's description; it and its size in bytes. */
function readTable(bytes, mostLog, mostSymbol) {
  const from = new Bits(bytes), log = 5 + from.next(4), shares = [];
  requireFrame(log <= mostLog);
  let left = 1 << log;
  while (left > 0) {
    const count = topBit(left + 1) + 1, half = (1 << count - 1) - 1, few = (1 << count) - 2 - left;
    let value = from.next(count);
    if ((value & half) < few) {
      from.at--;
      value &= half;
    } else if (value > half) value -= few;
    shares.push(value - 1);
    left -= Math.abs(value - 1);
    for (let zeros = value === 1 ? 3 : 0; zeros === 3;) {
      zeros = from.next(2);
      shares.push(...Array(zeros).fill(0));
    }
    requireFrame(shares.length <= mostSymbol + 1 && from.at <= 8 * bytes.length);
  }
  requireFrame(!left);
  return [stateTable(shares, log), from.at + 7 >> 3];
}

class State {
  constructor(table, from) {
    this.table = table;
    this.at = from.back(table.log);
  }

  get symbol() { return this.table.symbols[this.at]; }

  step(from) { this.at = this.table.base[this.at] + from.back(this.table.bits[this.at]); }
}

/** Reads the description of a Huffman code; the code and its size in bytes. */
function readCode(bytes) {
  const weights = [], first = bytes[0];
  let size = 1 + first;
  if (first > 127) {
    size = 1 + (first - 126 >> 1);
    for (let k = 0; k < first - 127; k++) weights.push(k & 1 ? bytes[1 + (k >> 1)] & 15 : bytes[1 + (k >> 1)] >> 4);
  } else {
    const [table, used] = readTable(bytes.subarray(1, size), 6, 255), from = Bits.backwards(bytes.subarray(1 + used, size));
    const states = [new State(table, from), new State(table, from)];
    for (let k = 0; weights.length < 256; k ^= 1) {
      weights.push(states[k].symbol);
      states[k].step(from);
      if (from.at < 0) {
        weights.push(states[k ^ 1].symbol);
        break;
      }
    }
  }
  const sum = weights.reduce((all, weight) => all + (1 << weight >> 1), 0), log = topBit(sum) + 1, rest = (1 << log) - sum;
  requireFrame(size <= bytes.length && sum && log <= 11 && weights.length < 256 && !(rest & rest - 1));
  weights.push(topBit(rest) + 1);
  const symbols = new Uint8Array(1 << log), lengths = new Uint8Array(1 << log);
  let place = 0;
  for (let weight = 1; weight <= log; weight++)
    weights.forEach((found, symbol) => {
      if (found !== weight) return;
      const end = place + (1 << weight - 1);
      symbols.fill(symbol, place, end);
      lengths.fill(log + 1 - weight, place, end);
      place = end;
    });
  return [{ log, symbols, lengths }, size];
}

function readCoded(code, bytes, out) {
  const from = Bits.backwards(bytes), { log, symbols, lengths } = code;
  for (let k = 0; k < out.length; k++) {
    const state = from.peek(from.at - log, log);
    out[k] = symbols[state];
    from.at -= lengths[state];
    requireFrame(from.at >= 0);
  }
  requireFrame(!from.at);
}

/** The literals of a block, and the bytes behind them. kept: what later blocks use again. */
function readLiterals(bytes, kept) {
  const kind = bytes[0] & 3, form = bytes[0] >> 2 & 3, header = new Bits(bytes);
  const [skip, width] = kind < 2 ? [form & 1 ? 4 : 3, [5, 12, 5, 20][form]] : [4, [10, 10, 14, 18][form]];
  header.at = skip;
  const size = header.next(width), packed = kind < 2 ? kind ? 1 : size : header.next(width), out = new Uint8Array(size);
  let at = header.at + 7 >> 3;
  const end = at + packed;
  requireFrame(size <= MAX_BLOCK && end <= bytes.length);
  if (kind === 0) out.set(bytes.subarray(at, end));
  if (kind === 1) out.fill(bytes[at]);
  if (kind < 2) return [out, bytes.subarray(end)];
  if (kind === 2) {
    const [code, used] = readCode(bytes.subarray(at, end));
    kept.code = code;
    at += used;
  }
  requireFrame(kept.code);
  if (!form) readCoded(kept.code, bytes.subarray(at, end), out);
  else {
    const each = size + 3 >> 2, jumps = [0, 2, 4].map((k) => bytes[at + k] | bytes[at + k + 1] << 8);
    at += 6;
    for (let k = 0; k < 4; k++) {
      const next = k < 3 ? at + jumps[k] : end;
      requireFrame(next <= end && 3 * each <= size);
      readCoded(kept.code, bytes.subarray(at, next), out.subarray(k * each, k < 3 ? (k + 1) * each : size));
      at = next;
    }
  }
  return [out, bytes.subarray(end)];
}

const SEQUENCES = [
  { name: "literals", shares: LITERAL_SHARES, log: 6, mostLog: 9, most: 35 },
  { name: "offsets", shares: OFFSET_SHARES, log: 5, mostLog: 8, most: 31 },
  { name: "matches", shares: MATCH_SHARES, log: 6, mostLog: 9, most: 52 },
];

/** Reads the tables of a block's sequences, and the sequences; calls `each` with the three numbers of every one. */
function readSequences(bytes, kept, each) {
  let at = 1, count = bytes[0];
  requireFrame(bytes.length);
  if (count > 127) {
    count = count < 255 ? (count - 128 << 8) + bytes[1] : bytes[1] + (bytes[2] << 8) + 0x7f00;
    at = bytes[0] < 255 ? 2 : 3;
  }
  if (!count) return requireFrame(bytes.length === at);
  const modes = bytes[at++];
  requireFrame(at <= bytes.length && !(modes & 3));
  SEQUENCES.forEach(({ name, shares, log, mostLog, most }, k) => {
    const mode = modes >> 6 - 2 * k & 3;
    if (mode === 0) kept[name] = stateTable(shares, log);
    if (mode === 1) {
      requireFrame(bytes[at] <= most);
      kept[name] = { log: 0, symbols: [bytes[at++]], bits: [0], base: [0] };
    }
    if (mode === 2) {
      const [table, used] = readTable(bytes.subarray(at), mostLog, most);
      kept[name] = table;
      at += used;
    }
    requireFrame(kept[name]);
  });
  const from = Bits.backwards(bytes.subarray(at));
  const [literals, offsets, matches] = SEQUENCES.map(({ name }) => new State(kept[name], from));
  for (let left = count; left; left--) {
    const offset = (1 << offsets.symbol) + from.back(offsets.symbol);
    const match = MATCH_BASES[matches.symbol] + from.back(MATCH_BITS[matches.symbol]);
    const literal = LITERAL_BASES[literals.symbol] + from.back(LITERAL_BITS[literals.symbol]);
    each(literal, offset, match);
    if (left > 1) for (const state of [literals, matches, offsets]) state.step(from);
    requireFrame(from.at >= 0);
  }
  requireFrame(!from.at);
}

function readBlock(bytes, out, start, kept) {
  const [literals, rest] = readLiterals(bytes, kept), recent = kept.recent;
  let taken = 0, at = start;
  readSequences(rest, kept, (literal, offset, match) => {
    const again = offset - 1 + (literal ? 0 : 1), distance = offset > 3 ? offset - 3 : again < 3 ? recent[again] : recent[0] - 1;
    if (offset > 3 || again) {
      if (offset > 3 || again > 1) recent[2] = recent[1];
      recent[1] = recent[0];
      recent[0] = distance;
    }
    requireFrame(taken + literal <= literals.length && at + literal + match <= out.length);
    out.set(literals.subarray(taken, taken + literal), at);
    taken += literal;
    at += literal;
    requireFrame(distance > 0 && distance <= at);
    for (const end = at + match; at < end; at++) out[at] = out[at - distance];
  });
  requireFrame(at + literals.length - taken <= out.length);
  out.set(literals.subarray(taken), at);
  return at + literals.length - taken;
}

/**
 * The bytes of a frame. Its checksum, if it has one, is not looked at: a root tells whether the bytes are right.
 * @param {Uint8Array} packed one whole frame
 * @param {number} size what it must hold, at most 64 KiB
 */
export function decompressedFrame(packed, size) {
  const head = packed[0], single = head >> 5 & 1, flag = head >> 6, dictionary = [0, 1, 2, 4][head & 3], fields = new Bits(packed, 8);
  const window = single ? size : fields.next(8), sizeBytes = flag ? 1 << flag : single;
  requireFrame(packed.length > 1 && !(head & 8) && packed.subarray(2 - single, 2 - single + dictionary).every((byte) => !byte));
  fields.at += 8 * dictionary;
  let stated = 0;
  for (let k = 0; k < sizeBytes; k++) stated += fields.next(8) * 256 ** k;
  if (flag === 1) stated += 256;
  if (stated !== size || !sizeBytes) throw new Error(`expected a frame of ${size} bytes, got one of ${sizeBytes ? stated : "unknown size"}`);
  const asked = single ? window : (1 << 10 + (window >> 3)) / 8 * (8 + (window & 7));
  if (!single && (window >> 3 > 6 || asked > WINDOW)) throw new Error(`expected a window of at most ${WINDOW} bytes, got more`);
  const out = new Uint8Array(size), kept = { recent: [1, 4, 8] };
  let at = fields.at >> 3, made = 0;
  for (let last = 0; !last;) {
    requireFrame(at + 3 <= packed.length);
    const header = packed[at] | packed[at + 1] << 8 | packed[at + 2] << 16, kind = header >> 1 & 3, length = header >> 3;
    const end = (at += 3) + (kind === 1 ? 1 : length);
    last = header & 1;
    requireFrame(kind < 3 && end <= packed.length && length <= MAX_BLOCK && (kind === 2 || made + length <= size));
    if (kind === 0) out.set(packed.subarray(at, end), made);
    if (kind === 1) out.fill(packed[at], made, made + length);
    made = kind === 2 ? readBlock(packed.subarray(at, end), out, made, kept) : made + length;
    at = end;
  }
  requireFrame(made === size && at + (head & 4) === packed.length);
  return out;
}
