/* A job with seats, from the acceptance to the last wei (docs/SPEC.md, section 11.1).
 *
 * Two seats. Seat 0 belongs to an honest auditor, or to nobody in particular; seat 1 to somebody who computes nothing, or
 * to an accomplice of the trainer, who is told its root. The trainer is honest (true head, opened in time) or plays
 * anything: a false head, no opening, slashing itself. It decides what it seals before the draw. A game is one step: the
 * honest auditor that sees another root opened than it has sealed convicts the trainer within the window.
 *
 * A tick is a block. An honest party's transaction comes into a block before its time is over. The client draws at any
 * time that the rules allow, or never.
 */

#ifndef WINDOW
#define WINDOW 2
#endif
#ifndef REPLAY
#define REPLAY 3            /* ticks from the draw until an honest auditor has replayed the run; the audit time */
#endif
#define SEATS 2
#define REWARD 5
#define STAKE 13            /* W = 6, a share 2 */
#define FEE 4
#define BOND 3
#define SHARE (STAKE / 2 / (1 + SEATS))

mtype:status = { ACTIVE, SETTLED, SLASHED, ABANDONED };
/* What a seal fixes: the true root, the trainer's false one, or something that is neither. */
mtype:root = { NOTHING, TRUE_ROOT, FALSE_ROOT, GUESS };

#define CLIENT  0
#define TRAINER 1
#define HONEST  2
#define OTHER   3
#define BURNED  4

mtype:status status = ACTIVE;
mtype:root head;                    /* what the trainer has sealed */
mtype:root roots[SEATS];
bool isSealed, isOpened, isDrawn, isClosed;
bool claimed[SEATS];
bool trainerHonest, told;           /* told: the trainer shows its root to seat 1 */
bool willDraw;
byte age, sinceDraw, audit;         /* ticks since the last progress or the end; since the draw; of the audit time */
byte pot, fees, credit[5], balance;

#define held        (status == ACTIVE -> REWARD + STAKE : 0)
#define credits     (credit[CLIENT] + credit[TRAINER] + credit[HONEST] + credit[OTHER] + credit[BURNED])
#define isAudited   (isDrawn && audit <= REPLAY && !isOpened)
#define isOpenNow   (age <= WINDOW || isAudited)
#define ended       (status != ACTIVE)

inline checked() {
    assert(balance == held + pot + credits)
}

inline end(how) {
    assert(status == ACTIVE);
    status = how;
    age = 0
}

inline slash(prover) {
    end(SLASHED);
    credit[CLIENT] = credit[CLIENT] + REWARD;
    credit[prover] = credit[prover] + SHARE;
    pot = pot + STAKE / 2 - SHARE;
    credit[BURNED] = credit[BURNED] + STAKE - STAKE / 2
}

#ifdef MUTANT_SEAL_AFTER_OPENING
#define maySeal(s)      (status == ACTIVE && isDrawn && roots[s] == NOTHING && (isOpened || isOpenNow))
#else
#define maySeal(s)      (status == ACTIVE && isDrawn && !isOpened && roots[s] == NOTHING && isOpenNow)
#endif
inline seal(s, what) {
    roots[s] = what;
    balance = balance + BOND;
    pot = pot + BOND
}

#define agrees(s)       (isOpened && roots[s] == head)
#ifdef MUTANT_CLAIM_TWICE
#define mayClaim(s)     (ended && !isClosed && age <= WINDOW && roots[s] != NOTHING && (status != SETTLED || agrees(s)) && pot >= BOND + FEE)
#else
#define mayClaim(s)     (ended && !isClosed && age <= WINDOW && roots[s] != NOTHING && !claimed[s] && (status != SETTLED || agrees(s)))
#endif
inline claim(s, whose) {
#ifdef MUTANT_SLASH_TAKES_BONDS
    amount = (status == SLASHED && agrees(s) -> 0 : BOND);
#else
    amount = BOND;
#endif
    if
    :: (status == SETTLED) == agrees(s) ->
        amount = amount + FEE + (status == SLASHED -> SHARE : 0);
        assert(fees > 0);
        fees--
    :: else
    fi;
    assert(pot >= amount);
    pot = pot - amount;
    credit[whose] = credit[whose] + amount;
    claimed[s] = true
}

#ifdef MUTANT_CLOSE_EARLY
#define mayClose        (ended && !isClosed)
#else
#define mayClose        (ended && !isClosed && age > WINDOW)
#endif
#ifdef MUTANT_UNDRAWN_FEES_BACK
#define isWasted        false
#else
#define isWasted        (status == SETTLED && !isDrawn)
#endif
#ifdef MUTANT_SETTLE_SEALED
#define maySettle       (status == ACTIVE && (isSealed || isOpened) && !isOpenNow)
#else
#define maySettle       (status == ACTIVE && isOpened && !isOpenNow)
#endif
#define mayAbandon      (status == ACTIVE && isSealed && !isOpened && age > 2 * WINDOW && !isAudited)

/* What honest parties do not let pass. */
#define computed        (isDrawn && sinceDraw >= REPLAY)
#define lastToSeal      (isOpenNow && !(age + 1 <= WINDOW || (isDrawn && audit + 1 <= REPLAY)))
#define mustSeal        (computed && maySeal(0) && lastToSeal)
#define mustConvict     (status == ACTIVE && isOpened && roots[0] != NOTHING && roots[0] != head && age == WINDOW)
#define mustOpen        (trainerHonest && status == ACTIVE && isSealed && !isOpened && !isOpenNow && age >= 2 * WINDOW)
#define mustClaim       (mayClaim(0) && !claimed[0] && age == WINDOW)
#define mustDraw        (willDraw && status == ACTIVE && isSealed && !isDrawn && age == WINDOW)
#define isDue           (mustSeal || mustConvict || mustOpen || mustClaim || mustDraw)
#define mayTick         (!isDue && (isSealed || ended) && !isClosed && (age <= 2 * WINDOW || isAudited))

active proctype Job() {
    byte amount;

    atomic {
        balance = REWARD + STAKE + SEATS * FEE;
        pot = SEATS * FEE;
        fees = SEATS;
        head = NOTHING; roots[0] = NOTHING; roots[1] = NOTHING;
        if
        :: trainerHonest = true
        :: trainerHonest = false
        fi;
        if
        :: told = true
        :: told = false
        fi;
        if
        :: willDraw = true
        :: willDraw = false
        fi
    }
    do
    :: atomic { status == ACTIVE && !isSealed -> head = TRUE_ROOT; isSealed = true; age = 0; checked() }
    :: atomic { status == ACTIVE && !isSealed && !trainerHonest -> head = FALSE_ROOT; isSealed = true; age = 0; checked() }
    :: atomic { willDraw && status == ACTIVE && isSealed && !isOpened && !isDrawn && age <= WINDOW ->
        isDrawn = true; sinceDraw = 0;
#ifndef MUTANT_DRAW_GIVES_NO_TIME
        age = 0; audit = 0;
#endif
        checked() }
    :: atomic { computed && maySeal(0) && !isOpened -> seal(0, TRUE_ROOT); checked() }
    :: atomic { maySeal(1) -> seal(1, GUESS); checked() }
    :: atomic { maySeal(1) && told -> seal(1, head); checked() }
    :: atomic { maySeal(1) && isOpened ->
        /* Nobody who computes nothing, and is not told, ever seals what was opened. */
        assert(told);
        seal(1, head); checked() }
    :: atomic { status == ACTIVE && isSealed && !isOpened && !isOpenNow && !mayAbandon -> isOpened = true; age = 0; checked() }
    :: atomic { status == ACTIVE && isOpened && isOpenNow && roots[0] != NOTHING && roots[0] != head -> slash(HONEST); checked() }
    :: atomic { status == ACTIVE && !trainerHonest -> slash(OTHER); checked() }
    :: atomic { maySettle && !mustConvict ->
        /* No lie is paid for where the client draws and an honest auditor sits. */
        assert(head == TRUE_ROOT || !willDraw);
        end(SETTLED);
        credit[TRAINER] = credit[TRAINER] + REWARD + STAKE; checked() }
    :: atomic { mayAbandon ->
        assert(!trainerHonest);
        end(ABANDONED);
        credit[CLIENT] = credit[CLIENT] + REWARD + STAKE; checked() }
    :: atomic { mayClaim(0) -> claim(0, HONEST); checked() }
    :: atomic { mayClaim(1) -> claim(1, OTHER); checked() }
    :: atomic { mayClose ->
        /* An honest auditor never loses its bond, and is paid if the trainer was honest, or convicted for a lie. */
        assert(roots[0] == NOTHING || credit[HONEST] >= BOND);
        assert(roots[0] == NOTHING || status != SETTLED || credit[HONEST] == BOND + FEE);
        assert(roots[0] == NOTHING || status != SLASHED || head == TRUE_ROOT || credit[HONEST] >= BOND + FEE + SHARE);
        amount = (isWasted -> 0 : fees * FEE);
        assert(pot >= amount);
        credit[CLIENT] = credit[CLIENT] + amount;
        credit[BURNED] = credit[BURNED] + pot - amount;
        pot = 0;
        isClosed = true;
        /* A client that gets a job settled without a draw does not get it cheaper for that. */
        assert(isDrawn || status != SETTLED || credit[CLIENT] == 0);
        checked() }
    :: d_step { mayTick -> age++;
        if
        :: isDrawn && sinceDraw <= REPLAY -> sinceDraw++
        :: else
        fi;
        if
        :: isSealed && audit <= REPLAY -> audit++
        :: else
        fi }
    :: isClosed -> break
    od;
#ifdef WITNESS
    assert(!(WITNESS));
#endif
    assert(pot == 0 && balance == credits)
}

/* Every pot is paid out: nothing is held for ever. */
ltl ends { <> isClosed }
