/* One game, from the signed head to the verdict (docs/SPEC.md, section 10; the invariants' numbers are those of
 * tiebreak/protocol/game/rules.py). What is left out is hashing and arithmetic: a node of a tree is "true" (what every honest replay
 * computes) or "a lie", and hashes are taken to be injective, so a node is a lie exactly if a leaf below it is one, and
 * what folds to a lie contains one. A tree is committed when its root is shown: `lies` has a bit for each leaf.
 *
 * Who is honest is chosen at the start, together with the head: an honest defender signs a true head only, an honest
 * challenger challenges a false one only. Everybody else does anything that the rules allow, at any instant that they
 * allow, and the network delays an honest move by anything that its maker's clock covers.
 *
 * The board around the game, with several games and the public queue of transactions, is board.pml.
 *
 * Sizes: trees of up to 3 levels (8 leaves), r = 1, 2 or 3, clocks of CLOCK, replays of REPLAY ticks.
 */

#ifndef CLOCK
#define CLOCK 2     /* each side's clock, in ticks; a tick is the time between two blocks */
#endif
#ifndef REPLAY
#define REPLAY 1    /* replayTime: what re-execution may take beside the clock, and here also takes */
#endif
#define WAIT CLOCK  /* for which a proof waits, beside its maker's clock; what that is good for is in board.pml */
#define MAX_DEPTH 3

mtype:phase = { DESCEND, SELECT, OPEN_STEPS, OPEN_VALUES, OPEN_TENSOR, OPEN_CHUNK, SELECT_ELEMENT, OPEN_TERMS, PROVE, OVER };
mtype:level = { RUN, STEPS, VALUES, CHUNKS, TERMS };
mtype:side = { NOBODY, DEFENDER, CHALLENGER };
mtype:reason = { NO_REASON, PADDING, RECOMPUTED, TIMEOUT, CONCEDED };
mtype:seal = { NO_SEAL, TRUTH, OTHER };

/* What the rules remember. */
mtype:phase phase;
mtype:level level;
byte height, position, r;
mtype:side winner = NOBODY;
mtype:reason reason = NO_REASON;
byte defenderRest = CLOCK, challengerRest = CLOCK;
byte elapsed;           /* ticks since the last move */
bool firstSelect;       /* no SELECT was made in this tree yet */
mtype:seal seal = NO_SEAL;

/* What is true: of the tree in which the node stands, and of all that lies left of the path. */
mtype:side honest;      /* NOBODY: neither is */
byte lies;              /* bit i: leaf i of the committed tree is a lie */
bool nodeLies;          /* the current node is one */
bool clean;             /* no lie left of the path in RUN, STEPS, VALUES or TERMS */
byte leaves, halfDepth, body, states;   /* of the current tree; VALUES: D, B and S */

/* For the invariants alone. */
byte spent, granted, before;

/* ------------------------------------------------------------------ trees */

inline depthOf(count, out) {            /* ceil(log2 count) */
    out = (count > 1) + (count > 2) + (count > 4)
}

#define levelsDown      (r < height -> r : height)
/* Leaves p*2^h ... (p+1)*2^h - 1, as a mask. */
#define below(p, h)     (((1 << (1 << (h))) - 1) << ((p) << (h)))
#define childLies(i)    ((lies & below((position << levelsDown) + (i), height - levelsDown)) != 0)
#define leftOf(p, h)    (lies & ((1 << ((p) << (h))) - 1))

inline finish(who, why) {
    /* 8: one verdict, once. */
    assert(winner == NOBODY && phase != OVER);
    winner = who;
    reason = why;
    phase = OVER;
#ifdef WITNESS
    assert(!(WITNESS));
#endif
    /* 9, 10: whoever is honest wins. */
    assert(honest == NOBODY || winner == honest)
}

/* Any set of lies among the first `count` leaves (a power of two). */
inline chooseLies(count) {
    lies = 0;
    chosen = 0;
    do
    :: chosen < count && honest != DEFENDER -> lies = lies | (1 << chosen); chosen++
    :: chosen < count -> chosen++
    :: chosen == count -> break
    od;
    chosen = 0
}

/* ------------------------------------------------------------------ the walk */

inline enter(lv, itsDepth) {
    level = lv;
    height = itsDepth;
    depth = 0;
    position = 0;
    firstSelect = true;
    nodeLies = (lies != 0);
    /* An honest challenger stands on a lie wherever the walk goes: the ties carry it into the next tree. */
    assert(honest != CHALLENGER || nodeLies);
    if
    :: height > 0 -> phase = (lv == RUN -> DESCEND : SELECT)
    :: else -> leaf()
    fi
}

#define half            (1 << halfDepth)
#define isPadding       (level == VALUES -> ((position >= body && position < half) || position >= half + states) \
                                         : position >= leaves)
#if defined(MUTANT_PADDING_CONVICTS)
#define padded          CHALLENGER
#elif defined(MUTANT_PADDING_ACQUITS)
#define padded          DEFENDER
#else
#define padded          (nodeLies -> CHALLENGER : DEFENDER)
#endif

inline leaf() {
    if
    :: isPadding -> finish(padded, PADDING)
    :: else ->
        if
        :: level == RUN -> phase = OPEN_STEPS
        :: level == RUN -> level = STEPS; phase = OPEN_VALUES      /* a segment of one step has no tree of its own */
        :: level == STEPS -> phase = OPEN_VALUES
        :: level == VALUES && position >= half -> phase = PROVE
        :: level == VALUES && position < half -> phase = OPEN_TENSOR
        :: level == CHUNKS -> phase = OPEN_CHUNK
        :: level == TERMS -> phase = PROVE
        fi
    fi;
    lies = 0; position = 0; leaves = 0; body = 0; states = 0; halfDepth = 0    /* done with this tree */
}

/* ------------------------------------------------------------------ clocks */

#define defenderMoves   (phase == DESCEND || phase == OPEN_STEPS || phase == OPEN_VALUES || phase == OPEN_TENSOR \
                         || phase == OPEN_CHUNK || phase == OPEN_TERMS)
#define replays         (phase == OPEN_STEPS || phase == OPEN_VALUES || phase == OPEN_TERMS \
                         || (phase == SELECT && firstSelect && (level == STEPS || level == VALUES || level == TERMS)))
#ifdef MUTANT_NO_ALLOWANCE
#define allowance       0
#else
#define allowance       (replays -> REPLAY : (phase == PROVE -> WAIT : 0))
#endif
#define usedAt(t)       ((t) > allowance -> (t) - allowance : 0)
#define used            usedAt(elapsed)
#define rest            (defenderMoves -> defenderRest : challengerRest)
#define mover           (defenderMoves -> DEFENDER : CHALLENGER)
#ifdef MUTANT_LATE_MOVES
#define inTime          true
#else
#define inTime          (used <= rest)
#endif
#ifdef MUTANT_EARLY_TIMEOUT
#define isTimedOut      (used >= rest)
#else
#define isTimedOut      (used > rest)
#endif
/* An honest party's replay takes its time; nobody waits for a dishonest one's. */
#define isReady         (honest != mover || ((!replays || elapsed >= REPLAY) && (phase != PROVE || elapsed >= WAIT)))
/* The one assumption about the network: it does not hold an honest move back until the clock is over. */
#define mayWait         (honest != mover || !isReady || usedAt(elapsed + 1) <= rest)

/* 7: every move lowers this number, so a game has at most as many moves as its first rank. */
#define levelRank       (level == RUN -> 4 : (level == STEPS -> 3 : (level == VALUES -> 2 : (level == CHUNKS -> 1 : 0))))
#define phaseRank       (phase == DESCEND -> 4 + 2 * height : (phase == SELECT -> 3 + 2 * height : (phase == OPEN_CHUNK -> 3 : \
                         (phase == SELECT_ELEMENT -> 2 : (phase == PROVE -> 0 : 1)))))
#define rank            ((phase == OVER -> 0 : 16 * levelRank + phaseRank + 1))

inline made() {
    assert(rank < before);
    before = 0
}

/* A move is being made: charge its maker. */
inline spend() {
    /* 6: at every instant a move is in time or `timeout` is legal, never both. */
    assert(inTime && !isTimedOut);
    before = rank;
    spent = spent + used;
    granted = granted + elapsed - used;
    /* 12: three moves a side have an allowance, and the proof. */
    assert(granted <= 6 * REPLAY + WAIT);
    if
    :: defenderMoves -> defenderRest = defenderRest - used
    :: else -> challengerRest = challengerRest - used
    fi;
    elapsed = 0;
    /* 5 */
    assert(defenderRest <= CLOCK && challengerRest <= CLOCK && defenderRest + challengerRest + spent == 2 * CLOCK)
}

#define toMove(ph)      (phase == ph && inTime && isReady)

/* ------------------------------------------------------------------ moves */

/* A move whose tie fails is illegal, so it is none. What does tie is made of any lies here. */
#define isLie(p)        ((lies >> (p)) & 1)
#define makeLie(p)      lies = lies | (1 << (p))
#define makeTrue(p)     lies = lies & ~(1 << (p))

/* 1. The nodes fold to the node. */
inline play_descend() {
    spend();
    if
    :: phase = SELECT
#ifdef MUTANT_NO_TIE_DESCEND
    :: honest != DEFENDER -> lies = 0; phase = SELECT
#endif
    fi
}

#ifdef MUTANT_ANY_LIE
#define mayPass         true
#else
#define mayPass         !childLies(chosen)
#endif

/* 2. An honest challenger takes the first node that is a lie; the seal is kept at a leaf of VALUES or TERMS. */
inline play_select() {
    spend();
    chosen = 0;
    do
    :: chosen + 1 < (1 << levelsDown) && (honest != CHALLENGER || mayPass) -> chosen++
    :: honest != CHALLENGER || childLies(chosen) -> break
#ifdef MUTANT_NO_TIE_DESCEND
    :: honest == CHALLENGER && chosen + 1 == (1 << levelsDown) -> break
#endif
    od;
    nodeLies = childLies(chosen);
    position = (position << levelsDown) + chosen;
    height = height - levelsDown;
    chosen = 0;
    firstSelect = false;
    /* What lies left of the path has been passed over as agreed; a chunk is not computed from the chunks left of it. */
    clean = clean && (level == CHUNKS || leftOf(position, height) == 0);
    lies = lies & below(position, height);      /* the rest is never asked for again */
    if
    :: height > 0 -> phase = DESCEND
    :: else ->
        if
        :: level == VALUES || level == TERMS -> chooseSeal()
        :: else
        fi;
        leaf()
    fi
}

/* The challenger fixes the answer of its proof. Only an honest one is sure to know the true one. */
inline chooseSeal() {
    if
    :: seal = TRUTH
    :: honest != CHALLENGER -> seal = OTHER
    fi
}

/* 3. The last record of the segment is the checkpoint (the node). */
inline play_openSteps() {
    spend();
    if
    :: leaves = 2 :: leaves = 3
    fi;
    depthOf(leaves, depth);
    chooseLies(1 << depth);
#ifndef MUTANT_NO_TIE_STEPS
    if
    :: nodeLies -> makeLie(leaves - 1)
    :: else -> makeTrue(leaves - 1)
    fi;
#endif
    enter(STEPS, depth)
}

/* 4. The record is the node: it lies exactly if the loss or the state does. The loss is the last value of the body; the
 * state is the right half, empty behind its own depth. */
inline play_openValues() {
    spend();
    if
    :: body = 1 :: body = 2 :: body = 3
    fi;
    if
    :: states = 1 :: states = 2 :: states = 3
    fi;
    depthOf(body, halfDepth);
    depthOf(states, depth);
    halfDepth = (halfDepth > depth -> halfDepth : depth);
    chooseLies(2 << halfDepth);
    lies = lies & ((1 << (half + (1 << depth))) - 1);
#ifndef MUTANT_NO_TIE_VALUES
    if
    :: nodeLies && (isLie(body - 1) || (lies >> half))
    :: nodeLies && !(isLie(body - 1) || (lies >> half)) -> makeLie(body - 1)
    :: !nodeLies -> lies = lies & ((1 << half) - 1); makeTrue(body - 1)
    fi;
#endif
    enter(VALUES, halfDepth + 1)
}

/* 5. The instruction is the program's; the id binds the chunk root. A source's value is judged as it is. */
inline play_openTensor() {
    spend();
    if
    :: phase = PROVE
    :: true ->
        if
        :: leaves = 1 :: leaves = 2 :: leaves = 3
        fi;
        depthOf(leaves, depth);
        chooseLies(1 << depth);
        tieToNode();
        enter(CHUNKS, depth)
    fi
}

/* A tree whose root is that of the node. */
inline tieToNode() {
    if
    :: nodeLies && lies == 0 -> makeLie(0)
    :: nodeLies && lies != 0
    :: !nodeLies -> lies = 0
    fi
}

/* 6. The chunk is the committed one: two elements, one of which lies if the chunk does. */
inline play_openChunk() {
    spend();
    chooseLies(2);
    tieToNode();
    phase = SELECT_ELEMENT
}

/* 7. A long reduction has a tree of terms (and is sealed there), another element is proved at once. */
inline play_selectElement() {
    spend();
    if
    :: honest != CHALLENGER || (lies & 1) -> nodeLies = ((lies & 1) != 0)
    :: honest != CHALLENGER || !(lies & 1) -> nodeLies = ((lies & 2) != 0)
    fi;
    lies = 0;
    if
    :: phase = OPEN_TERMS
    :: chooseSeal(); phase = PROVE
    fi
}

/* 8. The last accumulator rounds to the claimed value. A lie does only if the accumulator is one; a true value may also
 * come of an accumulator that is a lie. The move names its element: else an answer of an honest defender might be about
 * another one of the same value, after a reorganisation, and its other partial sums would be lies here. */
inline play_openTerms() {
    spend();
    if
    :: leaves = 2 :: leaves = 3
    fi;
    depthOf(leaves, depth);
    chooseLies(1 << depth);
#ifdef MUTANT_ANY_ELEMENT
    if
    :: honest == DEFENDER -> makeLie(0)
    :: true
    fi;
#endif
#ifndef MUTANT_NO_TIE_TERMS
    if
    :: nodeLies -> makeLie(leaves - 1)
    :: else
    fi;
#endif
    enter(TERMS, depth)
}

/* 9. The referee recomputes the leaf from what lies left of it. If that is all true, so is the answer; else nobody knows.
 * Legal with the answer that was sealed, and when it has waited. */
#define mayProve        (elapsed >= WAIT && (seal == TRUTH || (seal == OTHER && !clean)))

inline play_prove() {
    spend();
    /* The honest challenger's seal is the truth: its proof must not be refused for that. */
    assert(honest != CHALLENGER || clean);
    if
    :: seal == TRUTH -> finish((nodeLies -> CHALLENGER : DEFENDER), RECOMPUTED)
    :: seal == OTHER && nodeLies -> finish(DEFENDER, RECOMPUTED)
    :: seal == OTHER -> finish(CHALLENGER, RECOMPUTED)
    fi
}

/* ------------------------------------------------------------------ play */

active proctype Game() {
    byte chosen, depth;

    atomic {
        if
        :: honest = DEFENDER :: honest = CHALLENGER :: honest = NOBODY
        fi;
        if
        :: r = 1 :: r = 2 :: r = 3
        fi;
        /* A head of `leaves` checkpoints in a run tree of `depth`. */
        if
        :: leaves = 1 :: leaves = 2 :: leaves = 3 :: leaves = 5
        fi;
        depthOf(leaves, depth);
        if
        :: depth < MAX_DEPTH -> depth++        /* a head in mid-run: the tree is larger than what is in it */
        :: true
        fi;
        chooseLies(1 << depth);
        if
        :: honest == CHALLENGER && lies == 0 -> phase = OVER; goto none    /* a true head: nothing to challenge */
        :: else
        fi;
        clean = true;
        enter(RUN, depth)
    }
    do
    :: atomic { toMove(DESCEND) -> play_descend(); made() }
    :: atomic { toMove(SELECT) -> play_select(); made() }
    :: atomic { toMove(OPEN_STEPS) -> play_openSteps(); made() }
    :: atomic { toMove(OPEN_VALUES) -> play_openValues(); made() }
    :: atomic { toMove(OPEN_TENSOR) -> play_openTensor(); made() }
    :: atomic { toMove(OPEN_CHUNK) -> play_openChunk(); made() }
    :: atomic { toMove(SELECT_ELEMENT) -> play_selectElement(); made() }
    :: atomic { toMove(OPEN_TERMS) -> play_openTerms(); made() }
    :: atomic { toMove(PROVE) && mayProve -> play_prove(); made() }
    :: atomic { phase != OVER && inTime && honest != mover -> spend(); finish((defenderMoves -> CHALLENGER : DEFENDER), CONCEDED); before = 0 }
    :: atomic { phase != OVER && isTimedOut -> finish((defenderMoves -> CHALLENGER : DEFENDER), TIMEOUT) }
    :: atomic { phase != OVER && !isTimedOut && mayWait -> elapsed++ }
    :: phase == OVER -> break
    od;
none:
    skip
}

/* Every game ends. (Time does not stand still, and somebody calls `timeout`: no run stays in a game for ever.) */
ltl ends { <> (phase == OVER) }
