/* The rounding logs of a run's folder: a file for each segment, and in it a log for each step, compressed
   (tiebreak/engine/logged/files.py and encoding.py). The module takes them in the plain form of SPEC section 5.1. */
import { Refused, refuse, bytesOf, hexOf, utf8 } from "./module.js";
import { readAt } from "./tensors.js";
import { decompressedFrame } from "./zstandard.js";

const FILE_HEADER = 48, FRAME = 20, HEADER = 17, BLOCK = 1 << 16, ENTRY = 9;
const CRC = Uint32Array.from({ length: 256 }, (_, k) => {
  for (let bit = 0; bit < 8; bit++) k = k & 1 ? 0xedb88320 ^ k >>> 1 : k >>> 1;
  return k;
});

const crc32 = (...parts) => ~parts.reduce((all, part) => part.reduce((sum, byte) => CRC[(sum ^ byte) & 255] ^ sum >>> 8, all), -1) >>> 0;
const widthOf = (greatest) => {
  let width = 1;
  for (let rest = greatest; rest >= 256; rest /= 256) width++;
  return width;
};
const lateSizes = (program) => program.late.map(({ bytes }) => bytes);

/** An upper bound on the size of any log of a program. */
function mostBytes(program, total) {
  const parts = widthOf(total) + 1, blocks = Math.floor(total / BLOCK) + 1;
  const late = lateSizes(program).reduce((all, size) => all + size + 3 * (Math.floor(size / BLOCK) + 1), 0);
  return HEADER + blocks * (1 + 4 * parts) + total * parts + late;
}

/** Reads one encoded log. */
class Source {
  constructor(bytes, step) { Object.assign(this, { bytes, step, at: 0 }); }

  fail(rule) { return refuse(`encoded rounding log of step ${this.step}, up to byte ${this.at}: ${rule}`); }

  take(count) {
    const found = this.bytes.subarray(this.at, this.at + count);
    this.at += found.length;
    return found.length < count ? this.fail(`truncated: expected ${count} more bytes, got ${found.length}`) : found;
  }

  number(width) { return this.take(width).reduce((all, byte) => all * 256 + byte, 0); }

  expect(what, expected, width) {
    const found = this.take(width).reduce((all, byte) => all * 256n + BigInt(byte), 0n);
    if (found !== BigInt(expected)) this.fail(`expected ${what} ${expected}, got ${found}`);
  }

  part(size) {
    const length = this.number(3);
    if (length < 1 || length > size) this.fail(`expected a part of 1 to ${size} bytes, got ${length}`);
    const kept = this.take(length);
    if (length === size) return kept;
    try {
      return decompressedFrame(kept, size);
    } catch (error) {
      return this.fail(error.message);
    }
  }

  /** The gaps and directions of a block. */
  block(count, limit) {
    const width = this.number(1), gaps = new Float64Array(count);
    if (width < 1 || width > limit) this.fail(`expected gaps of 1 to ${limit} bytes, got ${width}`);
    for (let k = 0; k < width; k++) {
      const plane = this.part(count), scale = 256 ** k;
      if (k && k === width - 1 && plane.every((byte) => !byte)) this.fail(`expected gaps in as few bytes as they need, got ${width}`);
      for (let n = 0; n < count; n++) gaps[n] += plane[n] * scale;
    }
    const up = this.part(count + 7 >> 3);
    if (count & 7 && up.at(-1) & 255 >> (count & 7)) this.fail(`expected zeros after the directions of ${count} entries`);
    return { gaps, up };
  }
}

/** Puts a log into the module in plain form: its address and size, and how many entries it has. */
export function putLog(program, bytes, step) {
  const { recheck, loggedSums: sums } = program, source = new Source(bytes, step);
  const total = sums.reduce((all, { elements }) => all + elements, 0), late = lateSizes(program);
  source.expect("format", 1, 1);
  source.expect("step", step, 8);
  const count = source.number(8);
  if (total > Number.MAX_SAFE_INTEGER) source.fail("expected less than 2^53 elements that may be logged, got more");
  if (count > total) source.fail(`expected at most ${total} entries, got ${count}`);
  if (count >= 2 ** 32) source.fail(`expected less than 2^32 entries, got ${count}`);
  const size = 4 + ENTRY * count + late.reduce((all, one) => all + one, 0);
  const start = recheck.exports.allocate(BigInt(size)) >>> 0;
  let at = start, sum = 0, first = 0, place = -1;
  const put = (piece) => {
    recheck.put(piece, at);
    at += piece.length;
  };
  put(Uint8Array.of(count >>> 24, count >>> 16, count >>> 8, count));
  for (let done = 0; done < count; done += BLOCK) {
    const { gaps, up } = source.block(Math.min(BLOCK, count - done), widthOf(total));
    const plain = new DataView(new ArrayBuffer(ENTRY * gaps.length));
    gaps.forEach((gap, n) => {
      place += gap + 1;
      if (place >= total) outOfRange(sums, total, place, step);
      while (place >= first + sums[sum].elements) first += sums[sum++].elements;
      plain.setUint32(ENTRY * n, sums[sum].number);
      plain.setUint32(ENTRY * n + 4, place - first);
      plain.setUint8(ENTRY * n + 8, up[n >> 3] >> 7 - (n & 7) & 1 ? 2 : 1);
    });
    put(new Uint8Array(plain.buffer));
  }
  const names = program.late.map(({ name }) => name).join(", ");
  late.forEach((whole, k) => {
    for (let done = 0; done < whole; done += BLOCK) {
      const piece = source.part(Math.min(BLOCK, whole - done));
      if (program.late[k].dtype === 2 && piece.some((byte) => byte > 1))
        refuse(`rounding log of step ${step}: expected late data ${names} of their sizes, got others`);
      put(piece);
    }
  });
  if (source.at < bytes.length) source.fail(`expected the end, got ${bytes.length - source.at} more bytes`);
  return { at: start, size, count };
}

function outOfRange(sums, total, place, step) {
  const { number, elements } = sums.at(-1), element = place - (total - elements);
  refuse(`rounding log of step ${step}, instruction ${number}, element ${element}: out of range: expected an element below ${elements}`);
}

/** The log file of a segment. */
export class LogFile {
  /** @param {bigint} first the segment's first step @param {bigint} last */
  constructor(file, path, program, job, first, last) { Object.assign(this, { file, path, program, job, first, last }); }

  /** Finds the logs: reads only what stands before each. */
  async open() {
    const { file, path, program, job, first, last } = this;
    const head = await readAt(file, path, 0, Math.min(FILE_HEADER, file.size));
    const number = new DataView(new ArrayBuffer(8));
    number.setBigUint64(0, first);
    const letter = (byte) => byte > 31 && byte < 127 ? String.fromCharCode(byte) : `\\x${hexOf([byte])}`;
    const shown = (raw) => `b'${Array.from(raw, letter).join("")}'`;
    const asNumber = (raw) => BigInt(`0x0${hexOf(raw)}`);
    const parts = [["a file of rounding logs,", utf8("TBLOGS01"), 0, shown], ["logs of job", bytesOf(job), 8, hexOf],
      ["a segment from step", new Uint8Array(number.buffer), 40, asNumber]];
    for (const [what, expected, at, words] of parts) {
      const found = head.subarray(at, at + expected.length);
      if (hexOf(found) !== hexOf(expected)) refuse(`${path}: expected ${what} ${words(expected)}, got ${words(found)}`);
    }
    this.frames = [];
    const most = mostBytes(program, program.loggedSums.reduce((all, { elements }) => all + elements, 0));
    let at = FILE_HEADER;
    for (let step = first; at < file.size; step++) {
      if (step > last) refuse(`${path}: expected the end after the log of step ${step - 1n}, got ${file.size - at} more bytes`);
      if (at + FRAME > file.size) break;
      const view = new DataView((await readAt(file, path, at, at + FRAME)).slice().buffer);
      const [found, length] = [view.getBigUint64(0), view.getBigUint64(8)];
      if (found !== step) refuse(`${path}: expected the log of step ${step}, got one of step ${found}`);
      if (length < HEADER || length > most)
        refuse(`${path}: expected ${HEADER} to ${most} bytes for the log of step ${step}, got ${length}`);
      if (at + FRAME + Number(length) > file.size) break;
      this.frames.push({ at, length: Number(length), sum: view.getUint32(16) });
      at += FRAME + Number(length);
    }
    this.torn = file.size - at;
    return this;
  }

  /** The encoded log of a step. */
  async read(step) {
    const frame = this.frames[Number(step - this.first)], { file, path } = this;
    if (!frame) {
      const torn = this.torn ? `, and ${this.torn} bytes of a frame that is not whole` : "";
      refuse(`${path}: expected the log of step ${step}, got the end after ${this.frames.length} logs${torn}`);
    }
    const raw = await readAt(file, path, frame.at, frame.at + FRAME + frame.length), log = raw.subarray(FRAME);
    const found = crc32(raw.subarray(0, 16), log), hex = (sum) => sum.toString(16).padStart(8, "0");
    if (found !== frame.sum) refuse(`${path}: expected checksum ${hex(frame.sum)} of the log of step ${step}, got ${hex(found)}`);
    return log;
  }

  /** Puts the log of a step into the module; see `putLog`. */
  put(log, step) {
    try {
      return putLog(this.program, log, step);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return refuse(error.message.startsWith("rounding log") ? `${error.message} (${this.path})` : `${this.path}: ${error.message}`);
    }
  }
}
