/* A game that is talked through, and its way onto the chain (docs/SPEC.md, section 10; the invariants' numbers are those
 * of tiebreak/protocol/game/rules.py). Two sides exchange moves off the chain while the talking phase lasts, and sign the
 * state that each of them leads to. Meanwhile, either may enter a state that the other signed, however old, or move on
 * the chain, in any order. What the moves themselves decide is in game.pml; here a walk has two trees of two leaves:
 *
 *   0 DESCEND, 1 SELECT, 2 OPEN_STEPS, 3 SELECT with a seal, 4 PROVE
 *
 * The honest side keeps one line of moves. It signs what its own lawful play led to, once for each number of moves, and
 * moves on the chain when the talk is over, or when its opponent has made another move there. The network may lose any of
 * its messages; the opponent has all of them. The opponent signs, withholds, forks, enters and moves as it likes. Where
 * neither side is honest, both sign anything, lawful or not.
 */

#ifndef CLOCK
#define CLOCK 2     /* each side's clock, in ticks; a tick is the time between two blocks */
#endif
#ifndef TALK
#define TALK 2      /* the talking phase, in ticks */
#endif
#define WAIT CLOCK  /* for which a proof waits after the move before it on the chain, beside its maker's clock */
#define LAST 4      /* the proof */
#define NONE 255

mtype:side = { NOBODY, DEFENDER, CHALLENGER };
mtype:reason = { NO_REASON, RECOMPUTED, TIMEOUT, CONCEDED, FORKED };

/* A state of the game in a byte: the number of moves, the lies among the two leaves shown (after 4 moves: the seal, 1 is
 * the truth and 2 anything else), whether the node is a lie, whether all that lies left of the path is true, and the
 * leaf that was selected first. */
#define place(s, x, lie, good, at)  ((s) | ((x) << 3) | ((lie) << 5) | ((good) << 6) | ((at) << 7))
#define moves(p)    ((p) & 7)
#define shown(p)    (((p) >> 3) & 3)
#define lies(p)     (((p) >> 5) & 1)
#define clean(p)    (((p) >> 6) & 1)
#define first(p)    ((p) >> 7)
#define mover(p)    (moves(p) == 0 || moves(p) == 2 -> DEFENDER : CHALLENGER)
#define other(side) (side == DEFENDER -> CHALLENGER : DEFENDER)

mtype:side honest;              /* NOBODY: neither is */
mtype:side winner = NOBODY;
mtype:reason reason = NO_REASON;

byte chain;                     /* where the game stands on the chain */
byte talkLeft = TALK, elapsed;  /* ticks of talk that are left; ticks since it ended, or since a later move */
byte age;                       /* ticks since a move was made on the chain, or since the challenge, up to WAIT */
byte defenderRest = CLOCK, challengerRest = CLOCK, ticks;

byte line[LAST + 1] = NONE;     /* the honest side's line of moves, by number */
byte spoken;                    /* how far it has come in talking */
byte own[LAST + 1] = NONE;      /* what the honest side signed, by number: the opponent has it */
byte theirs[LAST + 1] = NONE;   /* what its opponent signed and the honest side has */
bool forked, signsTwice;        /* the honest side has two different ones of a number; the opponent tried */

/* For the witnesses alone. */
bool entered, stale, left;      /* a state was entered; one behind the honest side's; the lines parted */

inline finish(who, why) {
    /* 8: one verdict, once. */
    assert(winner == NOBODY);
    winner = who;
    reason = why;
#ifdef WITNESS
    assert(!(WITNESS));
#endif
    /* 9, 10, 13: whoever is honest wins. */
    assert(honest == NOBODY || winner == honest)
}

/* ------------------------------------------------------------------ moves */

/* A state after any move from `p`, of its mover's choice. Legal moves and honest ones are as in game.pml: an honest
 * challenger takes the first leaf that is a lie, and seals the truth. */
inline step(p) {
    if
    :: moves(p) == 0 && honest == DEFENDER -> next = place(1, 0, 0, clean(p), 0)
    :: moves(p) == 0 && honest != DEFENDER ->
        if
        :: lies(p) -> next = place(1, 1, 1, clean(p), 0)
        :: lies(p) -> next = place(1, 2, 1, clean(p), 0)
        :: lies(p) -> next = place(1, 3, 1, clean(p), 0)
        :: !lies(p) -> next = place(1, 0, 0, clean(p), 0)
        fi
    :: moves(p) == 1 ->
        if
        :: honest != CHALLENGER || (shown(p) & 1) -> next = place(2, 0, shown(p) & 1, clean(p), 0)
        :: honest != CHALLENGER || !(shown(p) & 1) -> next = place(2, 0, shown(p) >> 1, (clean(p) && !(shown(p) & 1)), 1)
        fi
    :: moves(p) == 2 && honest == DEFENDER -> next = place(3, 0, 0, clean(p), first(p))
    :: moves(p) == 2 && honest != DEFENDER ->       /* the second leaf is tied to the node, the first to nothing */
        if
        :: next = place(3, 2 * lies(p), lies(p), clean(p), first(p))
        :: next = place(3, 2 * lies(p) + 1, lies(p), clean(p), first(p))
        fi
    :: moves(p) == 3 ->
        if
        :: honest != CHALLENGER || (shown(p) & 1) -> next = place(4, 1, shown(p) & 1, clean(p), first(p))
        :: honest != CHALLENGER || !(shown(p) & 1) ->
            next = place(4, 1, shown(p) >> 1, (clean(p) && !(shown(p) & 1)), first(p))
        :: honest != CHALLENGER -> next = place(4, 2, shown(p) & 1, clean(p), first(p))
        :: honest != CHALLENGER -> next = place(4, 2, shown(p) >> 1, (clean(p) && !(shown(p) & 1)), first(p))
        fi
    fi
}

/* The referee recomputes the leaf from what lies left of it; only then is a seal of anything but the truth of use. */
#define isSealed(p)     (shown(p) == 1 || (shown(p) == 2 && !clean(p)))

inline prove(p) {
    assert(honest != CHALLENGER || (clean(p) && lies(p) && shown(p) == 1));
    if
    :: (shown(p) == 1) == lies(p) -> finish(CHALLENGER, RECOMPUTED)
    :: else -> finish(DEFENDER, RECOMPUTED)
    fi
}

/* ------------------------------------------------------------------ the chain */

#define rest            (mover(chain) == DEFENDER -> defenderRest : challengerRest)
#define talks           (talkLeft > 0)
#define usedAt(t)       (moves(chain) < LAST -> (t) : ((t) > WAIT -> (t) - WAIT : 0))
#define isTimedOut      (usedAt(elapsed) > rest)
#define isOn(side)      (winner == NOBODY && !isTimedOut && mover(chain) == side)
/* The honest side is in time on the chain, once nobody talks any more. */
#define canGoOn         (winner == NOBODY && !isTimedOut && mayWait)
#define mayWait         (talks || mover(chain) != honest || usedAt(elapsed + 1) <= rest)

inline charge() {
    /* 5, 6: the clock of who moves, and for the time after the talk only. */
    assert(!isTimedOut);
    if
    :: mover(chain) == DEFENDER -> defenderRest = defenderRest - elapsed
    :: else -> challengerRest = challengerRest - usedAt(elapsed)
    fi;
    elapsed = 0
}

inline moveOnChain() {
    step(chain);
    charge();
    age = 0;
    chain = next;
    next = 0
}

inline proveOnChain() {
    charge();
    prove(chain)
}

#ifdef MUTANT_ENTER_LATE
#define mayEnter(p)     (winner == NOBODY && (p) != NONE && moves(p) > moves(chain))
#elif defined(MUTANT_ENTER_OLDER)
#define mayEnter(p)     (winner == NOBODY && talks && (p) != NONE && (p) != chain)
#else
#define mayEnter(p)     (winner == NOBODY && talks && (p) != NONE && moves(p) > moves(chain))
#endif

inline enter(p) {
    entered = true;
    stale = stale || (honest != NOBODY && moves(p) < spoken);
    chain = p;
#ifdef MUTANT_ENTER_STARTS_CLOCKS
    talkLeft = 0;
    elapsed = CLOCK + 1
#endif
}

/* ------------------------------------------------------------------ the talk */

/* 13: the honest side signs once for each number of moves. Two different states of one number lose (`reportFork`). */
inline sign(p) {
    if
    :: own[moves(p)] == NONE -> own[moves(p)] = p
    :: own[moves(p)] == p
    :: else -> finish(other(honest), FORKED)
    fi
}

/* Nobody went another way on the chain than the honest side's line. */
#define isOnLine        (line[moves(chain)] == NONE || line[moves(chain)] == chain)
#ifdef MUTANT_SIGN_EVERY_LINE
#define maySign         true
#else
#define maySign         isOnLine
#endif

/* The honest side takes up the chain's line where that has come further, or (a fault) whatever stands there. */
inline follow() {
    if
    :: maySign && (moves(chain) > spoken || !isOnLine) ->
        spoken = moves(chain);
        line[spoken] = chain
    :: else
    fi;
    left = left || !isOnLine
}

inline say() {
    step(line[spoken]);
    spoken++;
    line[spoken] = next;
    sign(next);
    next = 0
}

inline hear() {
    step(line[spoken]);
    spoken++;
    line[spoken] = next;
    theirs[spoken] = next;
    next = 0
}

#define hisTurn         (honest != NOBODY && winner == NOBODY && talks && spoken < LAST && isOnLine)

active proctype Game() {
    byte next, at;

    atomic {
        if
        :: honest = DEFENDER; chain = place(0, 0, 0, 1, 0)
        :: honest = CHALLENGER; chain = place(0, 0, 1, 1, 0)
        :: honest = NOBODY; chain = place(0, 0, 1, 1, 0)
        :: honest = NOBODY; chain = place(0, 0, 0, 1, 0)
        fi;
        line[0] = chain
    }
    do
    /* What the honest side says, and what it hears. */
    :: atomic { hisTurn && mover(line[spoken]) == honest -> say() }
    :: atomic { hisTurn && mover(line[spoken]) != honest -> hear() }
    :: atomic {     /* the opponent signs something else at a number that it signed before */
        honest != NOBODY && winner == NOBODY && talks && spoken > 0 && theirs[spoken] != NONE && !signsTwice ->
        signsTwice = true;
        step(line[spoken - 1]);
        forked = (next != theirs[spoken]);
        next = 0 }
    /* A sealed state is the challenger's, and the proof is too: the defender acknowledges it. */
    :: atomic { honest == DEFENDER && winner == NOBODY && talks && spoken == LAST && own[LAST] == NONE && isOnLine -> sign(line[LAST]) }
    :: atomic { honest == CHALLENGER && winner == NOBODY && talks && spoken == LAST && theirs[LAST] == NONE -> theirs[LAST] = line[LAST] }

    /* Either side enters what the other signed. */
    :: atomic { honest != NOBODY && mayEnter(own[1]) -> enter(own[1]); follow() }
    :: atomic { honest != NOBODY && mayEnter(own[2]) -> enter(own[2]); follow() }
    :: atomic { honest != NOBODY && mayEnter(own[3]) -> enter(own[3]); follow() }
    :: atomic { honest != NOBODY && mayEnter(own[4]) -> enter(own[4]); follow() }
    :: atomic { honest != NOBODY && mayEnter(theirs[1]) -> enter(theirs[1]) }
    :: atomic { honest != NOBODY && mayEnter(theirs[2]) -> enter(theirs[2]) }
    :: atomic { honest != NOBODY && mayEnter(theirs[3]) -> enter(theirs[3]) }
    :: atomic { honest != NOBODY && mayEnter(theirs[4]) -> enter(theirs[4]) }
    /* 14: the challenger proves from what the defender signed, at any time and wherever the game stands. */
    :: atomic { honest == CHALLENGER && winner == NOBODY && theirs[4] != NONE && isSealed(theirs[4]) -> entered = true; prove(theirs[4]) }
    :: atomic { honest == DEFENDER && winner == NOBODY && own[4] != NONE && isSealed(own[4]) -> entered = true; prove(own[4]) }
#ifdef MUTANT_ENTER_UNSIGNED
    :: atomic { honest != NOBODY && winner == NOBODY && talks && moves(chain) < LAST ->
#else
    :: atomic { honest == NOBODY && winner == NOBODY && talks && moves(chain) < LAST ->
#endif
        at = moves(chain) + 1;
        do
        :: at < LAST -> at++
        :: break
        od;
        if
        :: next = place(at, 0, 0, 0, 0) :: next = place(at, 1, 1, 1, 0) :: next = place(at, 2, 0, 0, 1)
        :: next = place(at, 3, 0, 1, 1) :: next = place(at, 1, 0, 1, 0) :: next = place(at, 2, 1, 0, 0)
        fi;
        enter(next);
        at = 0; next = 0 }

    /* Moves on the chain, of either side. An honest one makes them when there is nobody to talk with. */
    :: atomic { isOn(DEFENDER) -> moveOnChain(); follow() }
    :: atomic { isOn(CHALLENGER) && moves(chain) < LAST -> moveOnChain(); follow() }
    :: atomic { isOn(CHALLENGER) && moves(chain) == LAST && age == WAIT && isSealed(chain) -> proveOnChain() }
    /* Nobody has to concede: an honest side that is stuck is not helped by it. */
    :: atomic { canGoOn && honest != DEFENDER -> finish(CHALLENGER, CONCEDED) }
    :: atomic { canGoOn && honest != CHALLENGER -> finish(DEFENDER, CONCEDED) }
    :: atomic { winner == NOBODY && forked -> finish(honest, FORKED) }
    :: atomic { winner == NOBODY && !talks && isTimedOut -> finish(other(mover(chain)), TIMEOUT) }
    :: atomic { canGoOn ->
        age = (age < WAIT -> age + 1 : age);
        ticks++;
        if
        :: talks -> talkLeft--
#ifdef MUTANT_TALK_COSTS
        ; elapsed++
#endif
        :: else -> elapsed++
        fi;
        /* 12: whatever the sides do and enter, a game is over soon after the talk and the clocks. */
        assert(ticks <= TALK + 3 * CLOCK + 1) }
    :: winner != NOBODY -> break
    od
}

/* Every game ends. */
ltl ends { <> (winner != NOBODY) }
