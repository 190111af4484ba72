#include "recheck.h"

#include <string.h>

/* The prime of secp256k1's coordinates, the order of its group, and its generator (SEC 2, section 2.4.1). */
static const Wide P = {{0xfffffffefffffc2f, UINT64_MAX, UINT64_MAX, UINT64_MAX}};
static const Wide N = {{0xbfd25e8cd0364141, 0xbaaedce6af48a03b, 0xfffffffffffffffe, UINT64_MAX}};

/* Projective: the point (x / z, y / z), or with z = 0 the one at infinity. */
typedef struct {
    Wide x, y, z;
} Point;

static const Point G = {{{0x59f2815b16f81798, 0x029bfcdb2dce28d9, 0x55a06295ce870b07, 0x79be667ef9dcbbac}},
                        {{0x9c47d08ffb10d4b8, 0xfd17b448a6855419, 0x5da4fbfc0e1108a8, 0x483ada7726a3c465}}, {{1}}};

/* Modulo 2^256 - c, c small: what is above 2^256 counts c times. */
static Wide mod(Wide a, Wide m) {
    Wide c = minus(shifted(wide(1), 256), m);
    while (bits_of(a) > 256) {
        Wide high = shifted(a, -256);
        a = plus(minus(a, shifted(high, 256)), scaled(high, c, 0));
    }
    return compare(a, m) < 0 ? a : minus(a, m);
}

static Wide product(Wide a, Wide b, Wide m) { return mod(scaled(a, b, 0), m); }
static bool bit(Wide a, int k) { return a.w[k / 64] >> k % 64 & 1; }

static Wide power(Wide a, Wide exponent, Wide m) {
    Wide out = wide(1);
    for (int k = 256; k-- > 0;) {
        out = product(out, out, m);
        if (bit(exponent, k)) out = product(out, a, m);
    }
    return out;
}

static Wide inverse(Wide a, Wide m) { return power(a, minus(m, wide(2)), m); } /* Fermat */

/* a b + c d. */
static Wide cross(Wide a, Wide b, Wide c, Wide d) { return mod(plus(scaled(a, b, 0), scaled(c, d, 0)), P); }

/* Of any two points, equal or not: Renes, Costello and Batina 2016, formulas of section 3 for y^2 = x^3 + 7. */
static Point add(Point a, Point b) {
    Wide xxx = product(wide(3), product(a.x, b.x, P), P), yy = product(a.y, b.y, P);
    Wide zz = product(wide(21), product(a.z, b.z, P), P), xz = product(wide(21), cross(a.x, b.z, a.z, b.x), P);
    Wide xy = cross(a.x, b.y, a.y, b.x), yz = cross(a.y, b.z, a.z, b.y);
    Wide less = mod(plus(yy, minus(P, zz)), P), more = mod(plus(yy, zz), P);
    return (Point){cross(xy, less, yz, minus(P, xz)), cross(less, more, xxx, xz), cross(yz, more, xxx, xy)};
}

/* s p + t q. */
static Point combined(Wide s, Point p, Wide t, Point q) {
    Point sum = {{{0}}, {{1}}, {{0}}};
    for (int k = 256; k-- > 0;) {
        sum = add(sum, sum);
        if (bit(s, k)) sum = add(sum, p);
        if (bit(t, k)) sum = add(sum, q);
    }
    return sum;
}

/* x, and y, of a point that is not the one at infinity. */
static Wide affine(Point p, Wide *y) {
    if (is_zero(p.z)) refuse("expected a signature of some key, got that of none");
    Wide scale = inverse(p.z, P);
    *y = product(p.y, scale, P);
    return product(p.x, scale, P);
}

static Digest address_of(Point key) {
    Buffer point = buffer(""), word = buffer("");
    Wide y, x = affine(key, &y);
    put_wide(&point, x, 32), put_wide(&point, y, 32);
    put_word(&word, (Bytes){keccak256(written(&point)).b + 12, 20});
    return digest_at(word.at);
}

static Wide secret_at(Bytes in) {
    Wide secret = wide_at(in);
    if (is_zero(secret) || compare(secret, N) >= 0) refuse("expected a secret of 1 or more, below the order, got another");
    return secret;
}

/* SEC 1, section 4.1.6: r is the x of a point R, and the key is (s R - digest G) / r. */
Digest signer_of(Digest signed_digest, Bytes in) {
    if (in.left != 65) refuse("expected a signature of 65 bytes, got %zu", in.left);
    Wide r = wide_at(cut(&in, 32)), s = wide_at(cut(&in, 32)), digest = mod(wide_at((Bytes){signed_digest.b, 32}), N);
    uint64_t v = number(&in, 1);
    if (is_zero(r) || compare(r, N) >= 0 || is_zero(s) || compare(shifted(s, 1), N) > 0 || v < 27 || v > 28)
        refuse("expected r below the order, s in its lower half and v of 27 or 28, got others");
    Wide square = mod(plus(product(r, product(r, r, P), P), wide(7)), P);
    Wide y = power(square, shifted(plus(P, wide(1)), -2), P);
    if (compare(product(y, y, P), square)) refuse("expected an r that is a coordinate of a point, got another");
    if (bit(y, 0) != (v == 28)) y = minus(P, y);
    Wide back = inverse(r, N);
    Point key = combined(product(s, back, N), (Point){r, y, wide(1)}, product(minus(N, digest), back, N), G);
    return address_of(key);
}

Digest address(Bytes secret) { return address_of(combined(secret_at(secret), G, wide(0), G)); }

/* SEC 1, section 4.1.3, with a nonce that nobody can know without the secret. Its time depends on the secret. */
void sign(Digest digest, Bytes secret, uint8_t out[65]) {
    Buffer seed = buffer(""), signature = buffer("");
    put(&seed, secret.at, secret.left), put_digest(&seed, digest);
    Digest drawn = keccak256(written(&seed));
    Wide nonce = mod(wide_at((Bytes){drawn.b, 32}), N), m = mod(wide_at((Bytes){digest.b, 32}), N), y;
    Wide r = affine(combined(nonce, G, wide(0), G), &y);
    Wide s = product(inverse(nonce, N), mod(plus(m, product(r, secret_at(secret), N)), N), N);
    bool odd = bit(y, 0), high = compare(shifted(s, 1), N) > 0;
    if (compare(r, N) >= 0 || is_zero(s)) refuse("expected a nonce that serves, got another");
    put_wide(&signature, r, 32), put_wide(&signature, high ? minus(N, s) : s, 32), put_number(&signature, 27 + (odd != high), 1);
    memcpy(out, signature.at, 65);
}

Buffer typed(const char *type) {
    Buffer out = buffer("");
    put_digest(&out, keccak256(text(type)));
    return out;
}

void put_word(Buffer *out, Bytes field) {
    if (field.left > 32) refuse("expected a field of at most 32 bytes, got %zu", field.left);
    put_number(out, 0, 32 - field.left), put(out, field.at, field.left);
}

Digest domain_of(uint64_t chain, Bytes contract) {
    Buffer out = typed("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    put_digest(&out, keccak256(text("Tiebreak"))), put_digest(&out, keccak256(text("1")));
    put_number(&out, chain, 32), put_word(&out, contract);
    return keccak256(written(&out));
}

Digest to_sign(Digest domain, const Buffer *structure) {
    Buffer out = buffer("\x19\x01");
    put_digest(&out, domain), put_digest(&out, keccak256(written(structure)));
    return keccak256(written(&out));
}
