// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.30;

/// Seconds since the epoch. A block's time fits until the year 36812; a window later (2^38 s) until 28102.
type Instant is uint40;

/// Seconds.
type Duration is uint40;

using {earlier, isAfter, later, plus, since} for Instant global;
using {exceeds, minus, reducedBy} for Duration global;

/// @return whether `a` is later than `b`
function isAfter(Instant a, Instant b) pure returns (bool) {
    return Instant.unwrap(a) > Instant.unwrap(b);
}

/// @return the earlier of both
function earlier(Instant a, Instant b) pure returns (Instant) {
    return a.isAfter(b) ? b : a;
}

/// @return the later of both
function later(Instant a, Instant b) pure returns (Instant) {
    return a.isAfter(b) ? a : b;
}

/// @return the instant `d` later
function plus(Instant a, Duration d) pure returns (Instant) {
    return Instant.wrap(Instant.unwrap(a) + Duration.unwrap(d));
}

/// @return how long `a` is after `b`; reverts if it is before (time does not run backward)
function since(Instant a, Instant b) pure returns (Duration) {
    return Duration.wrap(Instant.unwrap(a) - Instant.unwrap(b));
}

/// @return whether `a` is longer than `b`
function exceeds(Duration a, Duration b) pure returns (bool) {
    return Duration.unwrap(a) > Duration.unwrap(b);
}

/// @return what is left of `a` after `b`; reverts if `b` is longer
function minus(Duration a, Duration b) pure returns (Duration) {
    return Duration.wrap(Duration.unwrap(a) - Duration.unwrap(b));
}

/// @return what `a` has over `b`, or nothing
function reducedBy(Duration a, Duration b) pure returns (Duration) {
    return a.exceeds(b) ? a.minus(b) : Duration.wrap(0);
}

/// @return the block's time
function currentInstant() view returns (Instant) {
    return Instant.wrap(uint40(block.timestamp));
}
